//! What there is to run on.

use rollwright_core::quota::QuotaLimit;

/// Pools and the services on them.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// In the order given.
    pub pools: Vec<Pool>,
    /// In the order given.
    pub services: Vec<Service>,
    /// How many of its units Tangram's Algorithm 2 tries for the first that waits;
    /// absent for all.
    pub depth: Option<u64>,
}

/// Equal nodes, or a quota.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name in workloads and reports.
    pub name: String,
    /// What it consists of.
    pub kind: PoolKind,
}

/// What a pool consists of.
#[derive(Debug, Clone, Copy)]
pub enum PoolKind {
    /// Nodes with cores and memory.
    Cpu {
        /// How many.
        nodes: u64,
        /// Cores of each.
        cores: u64,
        /// Memory of each.
        memory: Bytes,
    },
    /// Nodes with GPUs.
    Gpu {
        /// How many.
        nodes: u64,
        /// GPUs of each.
        gpus: u64,
    },
    /// Calls that someone else allows.
    Quota(QuotaLimit),
}

/// A service that runs its actions on aligned chunks of GPUs.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name in workloads.
    pub name: String,
    /// Place of its pool.
    pub pool: usize,
    /// GPUs that it can run on, ascending, out of 1, 2, 4 and 8; those that a node of
    /// its pool holds.
    pub degrees: Vec<u64>,
    /// Nanoseconds to bring it to a chunk where it is not resident.
    pub restore: u64,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// From GiB, to the nearest byte.
    pub fn from_gib(gib: f64) -> Self {
        Self((gib * f64::from(1 << 30)).round() as u64)
    }
}

/// Nanoseconds, to the nearest.
pub fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
