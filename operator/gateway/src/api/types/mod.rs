//! Bodies of `/rollout/v1`. What a caller sends is checked while it is read; what it
//! gets is plain.

mod batches;
mod field;
mod groups;
mod status;
mod trajectories;
mod weights;
mod workers;

pub use self::batches::{
    Acknowledged, BatchBody, BatchGroupBody, RecordBody, TakeBatch, VersionRange,
};
pub use self::groups::{Group, GroupState, GroupTrajectory, OpenGroup, Tokens, Wait};
pub use self::status::{BatchCounts, BufferReport, StatusReport, TrajectoryCounts, WorkerReport};
pub use self::trajectories::{
    AbortTrajectory, CompleteTrajectory, RecordedTokens, State, Step, StepTaken, Trajectory,
    TrajectoryState,
};
pub use self::weights::{
    AbortWeights, BeginWeights, Begun, Bucket, CommitWeights, Committed, Transfer, UpdateAborted,
    WeightsReport, WeightsWorker, WorkerUrl,
};
pub use self::workers::{WishedWorker, WorkerRole, WorkerSet, WorkerStates, WorkerStatus};

use rollwright_core::fault::Fault;
use serde::Serialize;
use utoipa::ToSchema;

/// A fault, as it is told everywhere.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(example = json!({"message": "group `g1` is not known: open it first",
    "type": "user", "code": "GroupNotFound", "param": null}))]
pub struct FaultBody {
    /// One sentence: what was wrong and what would be right.
    pub message: String,
    /// Its family.
    #[serde(rename = "type")]
    #[schema(pattern = "^(user|action|timeout|infrastructure|cancelled|stale)$")]
    pub kind: String,
    /// A stable `CamelCase` word for programs.
    pub code: String,
    /// Always null: there for clients of OpenAI's interface.
    #[schema(value_type = Option<String>)]
    pub param: (),
}

impl From<&Fault> for FaultBody {
    fn from(fault: &Fault) -> Self {
        Self {
            message: fault.message.clone(),
            kind: fault.kind.as_str().to_owned(),
            code: fault.reason.to_string(),
            param: (),
        }
    }
}

/// The body of every refusal.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Refusal {
    /// The fault.
    pub error: FaultBody,
}
