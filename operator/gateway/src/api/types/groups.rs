//! `/rollout/v1/groups`.

use std::time::Duration;

use rollwright_core::ids::{GroupId, Task};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::trajectories::State;
use super::{FaultBody, field};

/// A group to be opened: the rollouts of one prompt.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"id": "step-7/prompt-3", "task": "math", "rollouts": 8,
    "payload": {"prompt": "What is 6 x 7?", "answer": "42"}}))]
pub struct OpenGroup {
    /// A name of the caller's choosing; a group that is open under it is given again.
    #[serde(default, deserialize_with = "field::group_id")]
    #[schema(value_type = Option<String>, max_length = 117, pattern = "^[A-Za-z0-9._/-]+$")]
    pub id: Option<GroupId>,
    /// The family of prompts that it belongs to; `default` where not given.
    #[serde(default, deserialize_with = "field::task")]
    #[schema(value_type = Option<String>, max_length = 128, pattern = "^[A-Za-z0-9._/-]+$")]
    pub task: Option<Task>,
    /// Trajectories that a batch needs of it; the job's `groupSize` where not given.
    #[serde(default, deserialize_with = "field::count")]
    #[schema(minimum = 1, maximum = 4096)]
    pub rollouts: Option<u32>,
    /// Any JSON of at most 1 MiB, given back in the batch.
    #[serde(default, deserialize_with = "field::payload")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Rolled out for its rewards only: it never enters a batch.
    #[serde(default)]
    pub evaluation: bool,
    /// For an evaluation: the version of the weights to use; the current one where not given.
    #[serde(default)]
    pub version: Option<u64>,
    /// Whether token ids and log-probabilities are recorded; `required` where not given.
    #[serde(default)]
    pub tokens: Tokens,
}

/// Whether a trajectory's tokens are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tokens {
    /// Every turn must come with token ids and log-probabilities.
    #[default]
    Required,
    /// Nothing is recorded.
    None,
}

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// Its trajectories are being rolled out and scored.
    Open,
    /// Enough of them are scored; the others were aborted.
    Settled,
    /// It will not be in a batch.
    Aborted,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(example = json!({"id": "g1", "task": "math", "state": "open", "needed": 2, "start": 3,
    "trajectories": [{"id": "g1/0", "state": "running"}, {"id": "g1/1", "state": "running"},
        {"id": "g1/2", "state": "scored", "reward": 1.0}], "version": 7, "evaluation": false}))]
pub struct Group {
    /// Its id.
    pub id: String,
    /// Its task.
    pub task: String,
    /// Where it stands.
    pub state: GroupState,
    /// Trajectories that settle it.
    pub needed: u32,
    /// Trajectories that were started: `needed`, and as many more as the job's redundancy says.
    pub start: u32,
    /// All that were started, replacements included.
    pub trajectories: Vec<GroupTrajectory>,
    /// Version of the weights when it was opened, or that is pinned.
    pub version: u64,
    /// True for an evaluation.
    pub evaluation: bool,
}

/// A trajectory, as its group tells.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct GroupTrajectory {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// Its reward, once scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why it was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultBody>,
}

/// How long a caller waits.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wait {
    /// For how many seconds to wait, at most 600; 0 where not given.
    #[serde(default, deserialize_with = "field::wait")]
    #[param(value_type = Option<f64>, minimum = 0, maximum = 600)]
    pub wait: Option<Duration>,
}
