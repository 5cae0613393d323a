//! A GPU pool: chunks, residents, and what runs on them.

use rollwright_core::elastic::{CHUNK_WINDOW, Newcomers};

use super::{Crowd, Queued};
use crate::chunks::{Chunk, Gpus};
use crate::workload::UNIT;
use crate::world::World;

/// Those that wait for one GPU pool.
pub(crate) trait GpuLine<'a> {
    /// An action joins the line.
    fn submitted(&mut self, queued: Queued<'a>, pool: &GpuPool);
    /// What starts now, on chunks that are taken. It has left the line.
    fn round(&mut self, pool: &mut GpuPool, now: u64) -> Vec<(Queued<'a>, Chunk)>;
}

/// The GPUs of a pool and what runs on them.
pub(crate) struct GpuPool {
    pub(crate) gpus: Gpus,
    pub(crate) running: Vec<OnChunk>,
    /// Trajectories that may come.
    pub(crate) newcomers: Newcomers,
    /// Actions that wait.
    waiting: usize,
    /// Something happened at this instant.
    changed: bool,
}

/// An action that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnChunk {
    pub(crate) of: usize,
    pub(crate) chunk: Chunk,
    /// When it ends, in nanoseconds.
    pub(crate) ends: u64,
}

impl GpuPool {
    pub(super) fn new(nodes: u64, gpus: u64) -> Self {
        Self {
            gpus: Gpus::new(nodes, gpus),
            running: Vec::new(),
            newcomers: Crowd::default().newcomers(0, 1),
            waiting: 0,
            changed: false,
        }
    }

    pub(super) fn submitted(&mut self, crowd: Crowd) {
        self.changed = true;
        self.waiting += 1;
        self.gpus.expect();
        self.count(crowd);
    }

    fn count(&mut self, crowd: Crowd) {
        self.newcomers = crowd.newcomers(self.waiting + self.running.len(), 1);
    }

    pub(super) fn finished(&mut self, of: usize, units: u64, pool: usize, world: &mut World<'_>) {
        world.usage[pool].busy.remove(units, world.now);
        world.usage[pool].held.remove(units, world.now);
        if let Some(place) = self.running.iter().position(|running| running.of == of) {
            let ended = self.running.remove(place);
            self.gpus.give(ended.chunk, world.now);
        }
        self.changed = true;
    }

    pub(super) fn round<'a>(
        &mut self,
        line: &mut impl GpuLine<'a>,
        crowd: Crowd,
        world: &mut World<'a>,
    ) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        self.count(crowd);
        loop {
            let starts = line.round(self, world.now);
            let again = starts.len() >= CHUNK_WINDOW;
            self.waiting -= starts.len();
            for (Queued { of, action, .. }, chunk) in starts {
                let units = chunk.gpus * UNIT;
                let restored = action.service.filter(|_| !chunk.resident);
                let restore = restored.map_or(0, |service| world.cluster.services[service].restore);
                let nanos = restore.saturating_add(action.nanos(units));
                self.running.push(OnChunk { of, chunk, ends: world.now.saturating_add(nanos) });
                world.usage[action.pool].held.add(units, world.now);
                world.start(of, action, units, nanos);
            }
            if !again {
                return;
            }
        }
    }
}
