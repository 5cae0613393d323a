//! What the router is told.

use crate::fault::Fault;
use crate::ids::{Class, Task, TrajectoryId, WorkerId};
use crate::version::{RequestId, Version};

/// An input of [`super::Router::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A worker exists. One of the same name that exists already has left.
    Joined {
        /// Which worker.
        worker: WorkerId,
        /// What it is.
        spec: WorkerSpec,
        /// It gets no request before [`Event::Release`].
        held: bool,
    },
    /// A worker is gone. What it had in flight is aborted and sent elsewhere.
    Left(WorkerId),
    /// A worker is about to go: it ends what it has and gets nothing more.
    Drain(WorkerId),
    /// A worker that was about to go stays.
    Stay(WorkerId),
    /// A worker may have another number of requests in flight; at least 1. What it has
    /// beyond goes on.
    Slots {
        /// Which worker.
        worker: WorkerId,
        /// From now on.
        slots: u32,
    },
    /// A worker answers its health check; a worker that joins counts as healthy.
    Healthy(WorkerId),
    /// A worker does not answer its health check. What it has in flight goes on.
    Unhealthy {
        /// Which worker.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// A worker holds this version of the weights; `None` is unknown.
    Version {
        /// Which worker.
        worker: WorkerId,
        /// What it holds.
        version: Option<Version>,
    },
    /// The worker gets no new request until [`Event::Release`]. What it has in flight
    /// goes on; [`super::Command::Idle`] tells when that has ended.
    Hold(WorkerId),
    /// The worker gets requests again.
    Release(WorkerId),
    /// The worker holds an older version for an evaluation: it gets only requests that
    /// are pinned to its version.
    Reserve {
        /// Which worker.
        worker: WorkerId,
        /// From now on, or no longer.
        reserved: bool,
    },
    /// What the worker has in flight is aborted and sent again later, first in line.
    TakeBack {
        /// Which worker.
        worker: WorkerId,
        /// What was generated is dropped: the requests start again.
        restart: bool,
    },
    /// A request arrives.
    Arrived {
        /// Which request.
        request: RequestId,
        /// What it asks for.
        ask: Ask,
    },
    /// Nobody waits for the request any more: its client is gone or its trajectory
    /// aborted. One that is not known is ignored.
    Withdrawn(RequestId),
    /// The prefill worker has done its part. Only of use where prefill and decode are
    /// separate; ignored otherwise.
    Prefilled(RequestId),
    /// A request that was sent has ended on its worker. Exactly one for each
    /// [`super::Command::Send`], also after [`super::Command::Abort`].
    Ended {
        /// Which request.
        request: RequestId,
        /// How.
        outcome: Outcome,
    },
    /// The trajectory's further turns go to this worker.
    Move {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Where to.
        to: WorkerId,
    },
    /// The trajectory has ended: its place is forgotten.
    Forget(TrajectoryId),
    /// Time has passed: see [`super::Router::next_deadline`].
    Tick,
}

/// What a worker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Its class of hardware.
    pub class: Class,
    /// Its part in a generation.
    pub role: Role,
    /// Requests that it may have in flight; at least 1.
    pub slots: u32,
    /// The version of the weights that it holds, where that is known.
    pub version: Option<Version>,
}

/// A worker's part in a generation (`RollArt` 6.3, prefill-decode disaggregation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// All of it.
    Mixed,
    /// The prefill, for a decode worker.
    Prefill,
    /// The decoding, after a prefill worker.
    Decode,
}

impl Role {
    /// The word used in JSON and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The reverse of [`Role::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Mixed, Self::Prefill, Self::Decode].into_iter().find(|role| role.as_str() == text)
    }
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The trajectory whose turn this is.
    pub trajectory: Option<TrajectoryId>,
    /// The domain of its task.
    pub task: Task,
    /// Higher is served first.
    pub priority: i64,
    /// The least version of the weights that may generate it: the newest that the
    /// trajectory has tokens of.
    pub at_least: Option<Version>,
    /// The only version that may generate it (evaluation).
    pub pinned: Option<Version>,
}

/// How a request ended on its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was generated.
    Done(Usage),
    /// It was not.
    Failed {
        /// Why. An infrastructure or timeout fault counts against the worker.
        fault: Fault,
        /// It may be sent again: its client has seen nothing, or it can be continued.
        resumable: bool,
        /// The prefill worker of the pair failed.
        prefill: bool,
    },
    /// The worker could not be reached, so nothing was generated or lost: the request waits
    /// for another, and the worker gets no more until a probe has reached it.
    Unreached {
        /// Why.
        fault: Fault,
        /// It was the prefill worker of the pair.
        prefill: bool,
    },
    /// It was taken back before its end: sent again, first in line.
    Back,
}

/// What a request took, for the profile of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of them that the worker had in its cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
}
