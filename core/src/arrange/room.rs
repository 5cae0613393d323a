//! What tasks take units from: Algorithm 3's operator.

use std::hash::Hash;

use super::chunks::Chunks;

/// A topology of free units.
pub(super) trait Room {
    /// What is left.
    type Left: Copy + Eq + Ord + Hash;

    /// Everything.
    fn full(&self) -> Self::Left;
    /// What remains after `units` were taken for one task.
    fn take(left: Self::Left, units: u64) -> Option<Self::Left>;
    /// Units in it.
    fn units(left: Self::Left) -> u64;
    /// True where a lesser number of units left means less of everything.
    const TOTAL_ORDER: bool;
}

/// Interchangeable units.
#[derive(Debug)]
pub(super) struct Cores(pub(super) u64);

impl Room for Cores {
    type Left = u64;
    const TOTAL_ORDER: bool = true;

    fn full(&self) -> u64 {
        self.0
    }

    fn take(left: u64, units: u64) -> Option<u64> {
        left.checked_sub(units)
    }

    fn units(left: u64) -> u64 {
        left
    }
}

impl Room for Chunks {
    type Left = Self;
    const TOTAL_ORDER: bool = false;

    fn full(&self) -> Self {
        *self
    }

    fn take(left: Self, units: u64) -> Option<Self> {
        Self::take(&left, units)
    }

    fn units(left: Self) -> u64 {
        left.gpus()
    }
}
