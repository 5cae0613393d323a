//! One request between its arrival and its end.

use super::affinity::TaskIndex;
use super::home::Home;
use super::line::Place;
use super::need::Need;
use super::worker::Seat;
use crate::ids::TrajectoryId;
use crate::time::Time;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) trajectory: Option<TrajectoryId>,
    pub(super) task: TaskIndex,
    pub(super) priority: i64,
    pub(super) arrived: Time,
    pub(super) need: Need,
    /// Where the last turn of its trajectory was, or this one's last try.
    pub(super) home: Option<Home>,
    /// No turn of its trajectory was seen before.
    pub(super) first_turn: bool,
    /// The worker where it failed last: any other one comes before.
    pub(super) avoid: Option<Seat>,
    /// Failed tries.
    pub(super) failures: u32,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    /// Neither in line nor on a worker: only within one event.
    New,
    /// In line since then.
    Waiting { since: Time, place: Place },
    /// On a worker.
    Running(Run),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) worker: Seat,
    /// The prefill worker, until its part is done.
    pub(super) prefill: Option<Seat>,
    /// It was told to end.
    pub(super) aborted: bool,
    /// Nobody waits for it.
    pub(super) withdrawn: bool,
}

impl Request {
    pub(super) fn waits_since(&self, since: Time) -> bool {
        matches!(self.state, State::Waiting { since: mine, .. } if mine == since)
    }

    pub(super) fn run(&self) -> Option<Run> {
        if let State::Running(run) = self.state { Some(run) } else { None }
    }
}
