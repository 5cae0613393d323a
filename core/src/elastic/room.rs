//! How full a node is.

use super::line::Line;
use crate::resources::Units;

/// Cores of a node: exclusive ones, and those that shares occupy together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    cores: u64,
    exclusive: u64,
    /// Millionths of a core.
    shares: u64,
}

impl Room {
    pub(super) fn empty(cores: u64) -> Self {
        Self { cores, exclusive: 0, shares: 0 }
    }

    pub(super) fn of(line: &Line) -> Self {
        let mut room = Self::empty(u64::from(line.cores));
        for running in line.running {
            room.take(running.units);
        }
        room
    }

    fn used(&self) -> u64 {
        self.exclusive + self.shares.div_ceil(u64::from(Units::CORE))
    }

    pub(super) fn fits(&self, units: Units) -> bool {
        let mut room = *self;
        room.take(units);
        room.used() <= self.cores
    }

    pub(super) fn take(&mut self, units: Units) {
        if units.is_share() {
            self.shares += u64::from(units.micros());
        } else {
            self.exclusive += u64::from(units.ceil());
        }
    }

    pub(super) fn give_back(&mut self, units: Units) {
        if units.is_share() {
            self.shares -= u64::from(units.micros());
        } else {
            self.exclusive -= u64::from(units.ceil());
        }
    }

    /// Whole cores.
    pub(super) fn free(&self) -> u32 {
        self.cores.saturating_sub(self.used()) as u32
    }
}
