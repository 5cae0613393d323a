//! What is to run.

use crate::cluster::{Bytes, nanos};

/// Millionths in one unit.
pub const UNIT: u64 = 1_000_000;

/// One rollout: phases, one after another.
#[derive(Debug, Clone, Default)]
pub struct Trajectory {
    /// Its name.
    pub name: String,
    /// Nanoseconds after time zero.
    pub arrival: u64,
    /// What its sandbox holds.
    pub memory: Bytes,
    /// In order.
    pub phases: Vec<Phase>,
}

impl Trajectory {
    /// Its CPU actions.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.phases.iter().filter_map(|phase| match phase {
            Phase::Generate(_) => None,
            Phase::Act(action) => Some(action),
        })
    }
}

/// A part of a trajectory.
#[derive(Debug, Clone)]
pub enum Phase {
    /// Generation, in nanoseconds: uses no pool.
    Generate(u64),
    /// An action.
    Act(Action),
}

impl Phase {
    /// The least that it takes.
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Generate(nanos) => *nanos as f64 / 1e9,
            Self::Act(action) => action.seconds(action.largest() as f64 / UNIT as f64),
        }
    }
}

/// One invocation of a pool.
#[derive(Debug, Clone)]
pub struct Action {
    /// Place of its pool.
    pub pool: usize,
    /// Place of its service, on a GPU pool.
    pub service: Option<usize>,
    /// Millionths of units that it may get, ascending, never empty, each of which fits a
    /// node; only the first may be below one unit.
    pub units: Vec<u64>,
    /// Seconds on one unit.
    pub duration: f64,
    /// The part that more units do not shorten, 0 to 1.
    pub serial: f64,
    /// May be given another of its units while it runs.
    pub malleable: bool,
}

impl Action {
    /// Seconds on this many units, one or more; a share takes its time at one unit.
    pub fn seconds(&self, units: f64) -> f64 {
        self.duration * (self.serial + (1.0 - self.serial) / units.max(1.0))
    }

    /// The same in nanoseconds, from millionths of units.
    pub fn nanos(&self, units: u64) -> u64 {
        nanos(self.seconds(units as f64 / UNIT as f64))
    }

    /// The largest of its units up to `limit` millionths.
    pub fn largest_up_to(&self, limit: u64) -> Option<u64> {
        self.units.iter().rev().copied().find(|&units| units <= limit)
    }

    /// The fewest units.
    pub fn smallest(&self) -> u64 {
        self.units[0]
    }

    /// The most units.
    pub fn largest(&self) -> u64 {
        self.units[self.units.len() - 1]
    }
}
