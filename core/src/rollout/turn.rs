//! A generation request of a trajectory, between its arrival and its answer.

use crate::ids::TrajectoryId;
use crate::tokens::{LengthCap, TokenLog};
use crate::trajectory::LogState;
use crate::version::Version;

/// A turn in flight.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) trajectory: TrajectoryId,
    /// Its tokens go to the log.
    pub(super) recorded: bool,
    /// The version of the worker that has it: requests are never in flight on a worker
    /// whose weights change, so every token of it until its end is of this version.
    pub(super) version: Option<Version>,
    /// The trajectory knows of tokens of this version.
    pub(super) noted: Option<Version>,
    /// The prompt is in the log.
    pub(super) prompted: bool,
    /// When it is sent again, what it has generated is dropped.
    pub(super) restart: bool,
}

impl Turn {
    pub(super) const fn new(trajectory: TrajectoryId, recorded: bool) -> Self {
        Self { trajectory, recorded, version: None, noted: None, prompted: false, restart: false }
    }
}

/// Where a log stands, as the trajectory's life cycle counts it.
pub(super) fn state(log: &TokenLog) -> LogState {
    LogState {
        turns: log.turns(),
        prompt_tokens: (log.len() - log.generated()) as u64,
        generated_tokens: log.generated() as u64,
        start: log.start_version(),
        oldest: log.oldest_version(),
    }
}

/// The log of a trajectory that has none yet.
pub(super) fn begin(cap: LengthCap) -> Box<TokenLog> {
    Box::new(TokenLog::new(cap))
}
