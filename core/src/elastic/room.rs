//! What a line's actions take room of: the cores of a node, or the GPUs of a pool.

use super::chunk_line::{ChunkPool, Demand};
use super::line::Line;
use crate::resources::Units;
use crate::time::Time;

/// Room that can be played forward.
pub(super) trait Space: Clone {
    /// What an action holds of it.
    type Held: Copy;

    /// Whether so many units can be had now.
    fn holds(&self, demand: Demand, units: Units) -> bool;
    /// Seconds that the action would lose at its start.
    fn loses(&self, demand: Demand, units: Units) -> f64;
    /// Takes units that fit; with the seconds that are lost.
    fn take(&mut self, demand: Demand, units: Units) -> Option<(Self::Held, f64)>;
    /// What was held is free, at a time that only some look at.
    fn give_back(&mut self, held: Self::Held, now: impl FnOnce() -> Time);
    /// Whole units that nobody holds.
    fn free(&self) -> u32;
    /// Where it is the cores of a node.
    fn cores(&self) -> Option<Room> {
        None
    }
}

impl Space for Room {
    type Held = Units;

    fn holds(&self, _demand: Demand, units: Units) -> bool {
        self.fits(units)
    }

    fn loses(&self, _demand: Demand, _units: Units) -> f64 {
        0.0
    }

    fn take(&mut self, _demand: Demand, units: Units) -> Option<(Units, f64)> {
        self.take(units);
        Some((units, 0.0))
    }

    fn give_back(&mut self, held: Units, _now: impl FnOnce() -> Time) {
        self.give_back(held);
    }

    fn free(&self) -> u32 {
        self.free()
    }

    fn cores(&self) -> Option<Room> {
        Some(*self)
    }
}

/// The GPUs of a pool.
#[derive(Debug, Clone)]
pub(super) struct Gpus<P>(pub(super) P);

impl<P: ChunkPool> Space for Gpus<P> {
    type Held = P::Chunk;

    fn holds(&self, demand: Demand, units: Units) -> bool {
        let gpus = u64::from(units.ceil());
        self.0.residents(demand.service, gpus).0 > 0 || self.0.fits(gpus)
    }

    fn loses(&self, demand: Demand, units: Units) -> f64 {
        let gpus = u64::from(units.ceil());
        let (idle, all) = self.0.residents(demand.service, gpus);
        // One that is busy may be had later.
        let had = idle > 0 || (all > 0 && !self.0.fits(gpus));
        if had { 0.0 } else { demand.restore }
    }

    fn take(&mut self, demand: Demand, units: Units) -> Option<(P::Chunk, f64)> {
        let (chunk, restored) = self.0.take(demand.service, u64::from(units.ceil()))?;
        Some((chunk, if restored { demand.restore } else { 0.0 }))
    }

    fn give_back(&mut self, held: P::Chunk, now: impl FnOnce() -> Time) {
        self.0.give_back(held, now());
    }

    fn free(&self) -> u32 {
        u32::try_from(self.0.idle().gpus()).unwrap_or(u32::MAX)
    }
}

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
