//! What trajectories hold outside the core: each thing is released once.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::TrajectoryId;
use crate::trajectory::{Keep, LogState};
use crate::version::RequestId;

#[derive(Default)]
pub(super) struct Outside {
    /// Drivers that run, and what they were told to run.
    pub(super) drivers: BTreeSet<TrajectoryId>,
    /// Sandboxes that are open. They outlive the process.
    pub(super) sandboxes: BTreeSet<TrajectoryId>,
    /// Requests in flight.
    pub(super) requests: BTreeSet<(TrajectoryId, RequestId)>,
    /// Reward services that are asked.
    pub(super) calls: BTreeSet<TrajectoryId>,
    /// Token logs.
    pub(super) logs: BTreeMap<TrajectoryId, LogState>,
    /// Records that are being written.
    pub(super) writes: BTreeMap<TrajectoryId, Keep>,
    /// Every trajectory that was ever given away.
    pub(super) started: Vec<TrajectoryId>,
    closed: BTreeSet<TrajectoryId>,
    dropped: BTreeSet<TrajectoryId>,
    asked: BTreeSet<TrajectoryId>,
}

impl Outside {
    /// A driver begins: it opens a sandbox.
    pub(super) fn start(&mut self, trajectory: &TrajectoryId) {
        assert!(!self.started.contains(trajectory), "{trajectory} was given away twice");
        self.started.push(trajectory.clone());
        self.drivers.insert(trajectory.clone());
        self.sandboxes.insert(trajectory.clone());
        self.logs.insert(trajectory.clone(), LogState::default());
    }

    pub(super) fn abort_request(&mut self, trajectory: &TrajectoryId, request: RequestId) {
        let held = self.requests.remove(&(trajectory.clone(), request));
        assert!(held, "{trajectory} has no request {request:?}");
    }

    pub(super) fn close_sandbox(&mut self, trajectory: &TrajectoryId) {
        assert!(self.closed.insert(trajectory.clone()), "{trajectory}: sandbox closed twice");
        self.sandboxes.remove(trajectory);
    }

    pub(super) fn score(&mut self, trajectory: &TrajectoryId) {
        assert!(self.asked.insert(trajectory.clone()), "{trajectory} is scored twice");
        self.calls.insert(trajectory.clone());
    }

    pub(super) fn cancel_reward(&mut self, trajectory: &TrajectoryId) {
        assert!(self.calls.remove(trajectory), "{trajectory} is not being scored");
    }

    pub(super) fn drop_log(&mut self, trajectory: &TrajectoryId) {
        assert!(self.dropped.insert(trajectory.clone()), "{trajectory} is dropped twice");
        self.logs.remove(trajectory);
        self.writes.remove(trajectory);
    }

    /// The process has ended; drivers and sandboxes have not.
    pub(super) fn crash(&mut self) {
        self.requests.clear();
        self.calls.clear();
        self.logs.clear();
        self.writes.clear();
        self.closed.clear();
        self.dropped.clear();
        self.asked.clear();
    }
}
