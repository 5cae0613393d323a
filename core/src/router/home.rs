//! Where each trajectory had its last turn: its context is cached there.

use std::collections::HashMap;
use std::mem;

use super::config::Sticky;
use super::worker::Seat;
use crate::ids::TrajectoryId;
use crate::time::Time;

/// The workers of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) worker: Seat,
    pub(super) prefill: Option<Seat>,
}

/// A map that forgets what was not used for long, in constant time: two generations,
/// of which the older is dropped as a whole.
#[derive(Debug, Default)]
pub(super) struct Homes {
    young: HashMap<TrajectoryId, Home>,
    old: HashMap<TrajectoryId, Home>,
    turned: Time,
}

impl Homes {
    pub(super) fn get(&self, trajectory: &TrajectoryId) -> Option<Home> {
        self.young.get(trajectory).or_else(|| self.old.get(trajectory)).copied()
    }

    pub(super) fn set(&mut self, trajectory: &TrajectoryId, home: Home, rule: &Sticky, now: Time) {
        if let Some(known) = self.young.get_mut(trajectory) {
            *known = home;
        } else {
            self.turn_if_due(rule, now);
            let (trajectory, _) =
                self.old.remove_entry(trajectory).unwrap_or_else(|| (trajectory.clone(), home));
            self.young.insert(trajectory, home);
        }
    }

    fn turn_if_due(&mut self, rule: &Sticky, now: Time) {
        let full = self.young.len() >= (rule.max_trajectories / 2).max(1);
        if full || now.since(self.turned) >= rule.idle {
            self.old = mem::take(&mut self.young);
            self.turned = now;
        }
    }

    pub(super) fn forget(&mut self, trajectory: &TrajectoryId) {
        self.young.remove(trajectory);
        self.old.remove(trajectory);
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
