//! `/rollout/v1/trajectories`.

use std::time::Duration;

use rollwright_core::fault::{Fault, FaultKind};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{FaultBody, field};

/// Where a trajectory stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its agent is at work.
    Running,
    /// Its agent has ended; its reward is being found.
    Scoring,
    /// It has a reward and is kept.
    Scored,
    /// Its group has settled with it.
    Settled,
    /// It was given up.
    Aborted,
}

/// A trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(example = json!({"id": "g1/0", "group": "g1", "task": "math", "state": "scored",
    "turns": 3, "prompt_tokens": 812, "generated_tokens": 240, "start_version": 7,
    "oldest_version": 7, "reward": 1.0}))]
pub struct Trajectory {
    /// Its id.
    pub id: String,
    /// Its group.
    pub group: String,
    /// Its task.
    pub task: String,
    /// Where it stands.
    pub state: State,
    /// Generation requests that were answered.
    pub turns: u32,
    /// Tokens of its context that were not generated.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Version of the weights when it started.
    pub start_version: u64,
    /// Oldest version that generated one of its tokens.
    pub oldest_version: u64,
    /// Its reward, once scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Why it was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultBody>,
}

/// A tool call that ended.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "bash", "seconds": 2.5, "observation_tokens": 118}))]
pub struct Step {
    /// The tool.
    #[serde(default, deserialize_with = "field::text")]
    #[schema(max_length = 1024)]
    pub name: Option<String>,
    /// How long it took, at most a day.
    #[serde(default, deserialize_with = "field::day")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 86400)]
    pub seconds: Option<Duration>,
    /// Length of what it returned.
    #[serde(default)]
    pub observation_tokens: Option<u64>,
}

/// What a step report learns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"state": "running", "version": 7}))]
pub struct StepTaken {
    /// Where the trajectory stands.
    pub state: State,
    /// The current version of the weights.
    pub version: u64,
}

/// The end of a trajectory's rollout.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reward": 1.0, "metadata": {"answer": "42"}}))]
pub struct CompleteTrajectory {
    /// Its reward; where not given, the job's reward services find it.
    #[serde(default)]
    pub reward: Option<f64>,
    /// Any JSON of at most 64 KiB, given back in the batch.
    #[serde(default, deserialize_with = "field::metadata")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub metadata: Option<Box<RawValue>>,
}

/// Where a trajectory stands after a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"state": "scoring"}))]
pub struct TrajectoryState {
    /// Where it stands.
    pub state: State,
}

/// Why a trajectory is given up.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "the browser crashed", "infrastructure": true}))]
pub struct AbortTrajectory {
    /// For people.
    #[serde(default, deserialize_with = "field::text")]
    #[schema(max_length = 1024)]
    pub reason: Option<String>,
    /// Not the policy's fault: it is replaced by another trajectory.
    #[serde(default)]
    pub infrastructure: bool,
}

/// A turn that was generated elsewhere, token by token.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"prompt_ids": [1, 5, 9], "response_ids": [7, 2],
    "logprobs": [-0.1, -1.5], "version": 7}))]
pub struct RecordedTokens {
    /// The whole context that the turn was generated from.
    pub prompt_ids: Vec<u32>,
    /// What was generated.
    pub response_ids: Vec<u32>,
    /// The log-probability of each of `response_ids`.
    pub logprobs: Vec<f32>,
    /// Version of the weights that generated it.
    pub version: u64,
}

impl RecordedTokens {
    /// Refuses what cannot be one turn.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let invalid = |message| Err(Fault::new(FaultKind::User, "InvalidBody", message));
        if self.response_ids.is_empty() {
            return invalid("`response_ids` is empty: a turn has at least one token".to_owned());
        }
        let (tokens, logprobs) = (self.response_ids.len(), self.logprobs.len());
        if tokens != logprobs {
            return invalid(format!(
                "`logprobs` has {logprobs} numbers and `response_ids` {tokens}: give one for each token"
            ));
        }
        match self.logprobs.iter().position(|logprob| !(logprob.is_finite() && *logprob <= 0.0)) {
            Some(at) => invalid(format!("`logprobs[{at}]` is not the logarithm of a probability")),
            None => Ok(()),
        }
    }
}
