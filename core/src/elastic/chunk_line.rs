//! What a decision on the line of a GPU pool is made from.

use super::work::Work;
use crate::arrange::Chunks;
use crate::time::Time;

/// The GPUs of a pool, and which service is resident where.
pub trait ChunkPool: Clone {
    /// An aligned chunk that an action holds.
    type Chunk: Copy + std::fmt::Debug;

    /// GPUs in all.
    fn gpus(&self) -> u64;
    /// Aligned chunks on which nothing runs.
    fn idle(&self) -> Chunks;
    /// Whether a chunk of `gpus` is idle.
    fn fits(&self, gpus: u64) -> bool;
    /// Chunks of `gpus` where `service` is resident: those on which nothing runs, and all.
    fn residents(&self, service: usize, gpus: u64) -> (usize, usize);
    /// Takes a chunk for an action of `service`; true beside it where the service must be
    /// restored there. `None` where no chunk of that size is idle.
    fn take(&mut self, service: usize, gpus: u64) -> Option<(Self::Chunk, bool)>;
    /// The action on a chunk ended; its service stays resident.
    fn give_back(&mut self, chunk: Self::Chunk, now: Time);
    /// GPUs of a chunk.
    fn size(chunk: Self::Chunk) -> u64;
}

/// A pool of GPUs and its line at one instant.
#[derive(Debug)]
pub struct ChunkLine<'a, P: ChunkPool> {
    /// The instant.
    pub now: Time,
    /// The GPUs, those that run included.
    pub pool: &'a P,
    /// What runs, and when it is expected to end.
    pub running: &'a [(Time, P::Chunk)],
    /// Those that wait, in order.
    pub waiting: &'a [ChunkWaiting<'a>],
    /// How many more wait behind them.
    pub beyond: usize,
}

/// What a GPU action needs besides GPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    /// Number of its service.
    pub service: usize,
    /// Seconds to bring the service to a chunk where it is not resident.
    pub restore: f64,
}

/// An action that waits for a chunk.
#[derive(Debug, Clone, Copy)]
pub struct ChunkWaiting<'a> {
    /// Its choices, whose units are GPUs; restores are not in them.
    pub work: &'a Work,
    /// Its service.
    pub demand: Demand,
    /// When it was submitted.
    pub submitted: Time,
}
