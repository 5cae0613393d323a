//! What the rollout of a job is told.

use crate::buffer::{self, Taker};
use crate::fault::Fault;
use crate::ids::{GroupId, Task, TrajectoryId, WorkerId};
use crate::reward::{Answer, CallId};
use crate::router::{Outcome, WorkerSpec};
use crate::tokens::Finish;
use crate::trajectory::{OpenGroup, RecoveredGroup};
use crate::version::{BatchId, RequestId, Version};
use crate::weights;

/// An input of [`super::Rollout::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// What an earlier process left on disk. Comes first, before any worker.
    Recovered(Recovered),

    /// A worker exists; `spec.version` is what it says that it holds.
    WorkerJoined {
        /// Which worker.
        worker: WorkerId,
        /// What it is.
        spec: WorkerSpec,
    },
    /// A worker is gone.
    WorkerLeft(WorkerId),
    /// A worker is about to go.
    WorkerDrains(WorkerId),
    /// A worker that was about to go stays.
    WorkerStays(WorkerId),
    /// A worker may have another number of requests in flight.
    WorkerResized {
        /// Which worker.
        worker: WorkerId,
        /// From now on; at least 1.
        slots: u32,
    },
    /// A worker answers its health check.
    WorkerHealthy(WorkerId),
    /// A worker does not answer its health check.
    WorkerUnhealthy {
        /// Which worker.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// A worker began anew, with the version that it says it holds.
    WorkerRestarted {
        /// Which worker.
        worker: WorkerId,
        /// What it says.
        version: Option<Version>,
    },

    /// A generation request arrives.
    Arrived {
        /// Which request.
        request: RequestId,
        /// What it asks for.
        ask: Ask,
    },
    /// The request's prompt, of a recorded trajectory, as the engine sees it. Refused when
    /// it does not extend the token log: then the request must be ended as failed.
    Prompted {
        /// Which request.
        request: RequestId,
        /// The whole prompt.
        prompt: Vec<u32>,
    },
    /// Tokens that its worker generated, of a recorded trajectory.
    Generated {
        /// Which request.
        request: RequestId,
        /// Their ids.
        ids: Vec<u32>,
        /// Their log-probabilities.
        logprobs: Vec<f32>,
        /// The version that the engine says has made them, where it says one.
        said: Option<Version>,
    },
    /// What the request has generated is dropped: it starts again from its prompt.
    Restarted(RequestId),
    /// A prefill worker has done its part.
    Prefilled(RequestId),
    /// The request ended on its worker: one for each [`super::Command::Send`].
    Ended {
        /// Which request.
        request: RequestId,
        /// How.
        outcome: Outcome,
        /// The engine's finish reason, where it was generated.
        finish: Option<Finish>,
    },
    /// The request's client is gone.
    Withdrawn(RequestId),

    /// A caller opens a group.
    OpenGroup(OpenGroup),
    /// A caller aborts a group.
    AbortGroup(GroupId),
    /// A trajectory's driver reports a step of its environment.
    Step(TrajectoryId),
    /// A turn that was generated elsewhere.
    TokensGiven {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its prompt.
        prompt: Vec<u32>,
        /// The tokens.
        ids: Vec<u32>,
        /// Their log-probabilities.
        logprobs: Vec<f32>,
        /// The version that made them.
        version: Version,
    },
    /// A trajectory's driver has ended it.
    Complete {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its reward; `None`: a reward service scores it.
        reward: Option<f64>,
    },
    /// A trajectory is to be aborted; replaced if the fault is one of infrastructure.
    AbortTrajectory {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Why.
        fault: Fault,
    },
    /// A trajectory's record is on disk, or could not be written.
    Kept {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// The fault of the disk.
        result: Result<(), Fault>,
    },
    /// A call of a reward service has ended.
    RewardEnded {
        /// Which call.
        call: CallId,
        /// What the service said, or why it did not.
        outcome: Result<Answer, Fault>,
    },

    /// Somebody waits for a batch.
    Take {
        /// Who.
        taker: Taker,
        /// Groups of the batch; `None`: the job's.
        groups: Option<usize>,
    },
    /// Somebody does not wait for a batch any more.
    Leave(Taker),
    /// The trainer has the batch safe.
    Ack(BatchId),

    /// Weights: an update begins, is committed or aborted, a worker's step ended.
    Weights(weights::Event),

    /// Time has passed: see [`super::Rollout::next_deadline`].
    Tick,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The trajectory whose turn it is. One that no group opened is a session: it stays on
    /// one worker, and nothing is recorded.
    pub trajectory: Option<TrajectoryId>,
    /// Its task; a trajectory of a group has its group's.
    pub task: Task,
}

/// What was on disk.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// The current version.
    pub version: Version,
    /// Where its weights came from.
    pub source: weights::Source,
    /// Open groups.
    pub groups: Vec<RecoveredGroup>,
    /// The buffer: settled groups and the batch that is out. Its `version` is not read.
    pub buffer: buffer::Recovered,
}
