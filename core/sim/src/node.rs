//! Cores and memory of one CPU node.

use crate::cluster::Bytes;
use crate::workload::UNIT;

/// What is taken of a node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    cores: u64,
    exclusive: u64,
    /// Millionths of cores that shares take together.
    shares: u64,
    pub(crate) memory: Bytes,
}

impl Node {
    pub(crate) fn new(cores: u64, memory: Bytes) -> Self {
        Self { cores, exclusive: 0, shares: 0, memory }
    }

    /// Cores that are somebody's: shares together round up.
    pub(crate) fn occupied(&self) -> u64 {
        self.exclusive + self.shares.div_ceil(UNIT)
    }

    /// Takes `units` millionths where they fit.
    pub(crate) fn take(&mut self, units: u64) -> bool {
        let mut after = self.clone();
        after.add(units);
        let fits = after.occupied() <= self.cores;
        if fits {
            *self = after;
        }
        fits
    }

    fn add(&mut self, units: u64) {
        if units < UNIT {
            self.shares += units;
        } else {
            self.exclusive += units / UNIT;
        }
    }

    /// Gives them back.
    pub(crate) fn give(&mut self, units: u64) {
        if units < UNIT {
            self.shares -= units;
        } else {
            self.exclusive -= units / UNIT;
        }
    }
}
