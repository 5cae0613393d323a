//! `/rollout/v1/batches`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::field;

/// Which batch is wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"groups": 64, "wait": 60}))]
pub struct TakeBatch {
    /// Groups in it; the job's `batchGroups` where not given.
    #[serde(default, deserialize_with = "field::count")]
    #[schema(minimum = 1, maximum = 4096)]
    pub groups: Option<u32>,
    /// For how many seconds to wait for one; 60 where not given, at most 600.
    #[serde(default, deserialize_with = "field::wait")]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 600)]
    pub wait: Option<Duration>,
}

impl TakeBatch {
    /// For how long to wait for a batch.
    pub fn wait(&self) -> Duration {
        self.wait.unwrap_or(Duration::from_mins(1))
    }
}

/// A batch as it is sent: streamed, never built whole. Its schema.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchBody<'a> {
    /// Its number, by which it is acknowledged.
    pub id: u64,
    /// The policy's version when it was made up.
    pub version: u64,
    /// Its groups, each whole.
    pub groups: Vec<BatchGroupBody<'a>>,
    /// For how long this call waited.
    pub waited_seconds: f64,
}

/// A group of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub struct BatchGroupBody<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its task.
    pub task: &'a str,
    /// What its caller gave.
    #[schema(value_type = serde_json::Value)]
    pub payload: Option<&'a RawValue>,
    /// Its scored trajectories.
    pub trajectories: Vec<RecordBody<'a>>,
}

/// A scored trajectory as it is stored and sent; [`RecordBody::to_bytes`] makes the form
/// that is stored.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({"id": "g1/0", "reward": 1.0, "metadata": null, "turns": 1,
    "start_version": 7, "oldest_version": 7, "token_ids": [1, 5, 7, 2],
    "logprobs": [null, null, -0.1, -1.5], "loss_mask": [0, 0, 1, 1],
    "versions": [{"start": 2, "end": 4, "version": 7}], "finish": "stop"}))]
pub struct RecordBody<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its reward.
    pub reward: f64,
    /// What was given when it completed.
    #[schema(value_type = serde_json::Value)]
    pub metadata: Option<&'a RawValue>,
    /// Generation requests that were answered.
    pub turns: u32,
    /// Version of the weights when it started.
    pub start_version: u64,
    /// Oldest version that generated one of its tokens.
    pub oldest_version: u64,
    /// Its whole context: prompt, generated tokens and observations.
    pub token_ids: &'a [u32],
    /// Null where not generated.
    pub logprobs: &'a [Option<f32>],
    /// 1 where generated.
    pub loss_mask: &'a [u8],
    /// Which version generated what; covers the generated tokens.
    pub versions: &'a [VersionRange],
    /// What each teacher of the job gives its tokens, by the teacher's name: as long as
    /// `token_ids`, null where not generated. Left out where there is no teacher.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, Vec<Option<f32>>>, required = false)]
    pub teacher_logprobs: BTreeMap<&'a str, &'a [Option<f32>]>,
    /// How its last turn ended: `stop`, `length`...
    pub finish: &'a str,
}

impl RecordBody<'_> {
    /// The JSON object that is stored once and sent as it is. Fails only for a reward
    /// that is not a number.
    pub fn to_bytes(&self) -> Result<bytes::Bytes, serde_json::Error> {
        // About seven digits of an id, twelve of a log-probability, two of the mask.
        let mut json = Vec::with_capacity(512 + self.token_ids.len() * 22);
        serde_json::to_writer(&mut json, self)?;
        Ok(json.into())
    }
}

/// A stretch of generated tokens of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct VersionRange {
    /// Index of the first.
    pub start: u64,
    /// Index after the last.
    pub end: u64,
    /// The version that generated them.
    pub version: u64,
}

/// A batch that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"id": 3}))]
pub struct Acknowledged {
    /// Its number.
    pub id: u64,
}
