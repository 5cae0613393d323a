//! One service: who waits for it, and whether it may be called.

use std::collections::BTreeMap;

use super::ServiceStats;
use super::circuit::Breaker;
use super::config::Service;
use crate::ids::TrajectoryId;
use crate::time::Time;

/// The state of one service.
#[derive(Debug)]
pub(super) struct Desk {
    /// Who may be called for, by order of asking.
    pub(super) line: BTreeMap<u64, TrajectoryId>,
    /// Calls in flight, cancelled ones too.
    pub(super) running: usize,
    pub(super) breaker: Breaker,
    /// It asked to be left alone until then.
    pub(super) paused: Time,
    pub(super) stats: ServiceStats,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            line: BTreeMap::new(),
            running: 0,
            breaker: Breaker::new(),
            paused: Time::ZERO,
            stats: ServiceStats::default(),
        }
    }

    /// The next to be called for now, in order of asking.
    pub(super) fn next(&mut self, service: &Service, now: Time) -> Option<TrajectoryId> {
        let room = self.running < service.concurrency.max(1) && self.paused <= now;
        if self.line.is_empty() || !room || !self.breaker.allows(now) {
            return None;
        }
        self.line.pop_first().map(|(_, trajectory)| trajectory)
    }
}
