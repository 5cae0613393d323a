//! What the store says about groups, records and batches, and how that is written.

use std::time::Duration;

use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::{BatchId, Version};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::segment::Place;

/// Version of what is written; another one is refused.
pub(super) const SCHEMA: &str = "rollwright-gateway/1";

/// A group as it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMeta {
    /// Its id.
    pub id: GroupId,
    /// Its task.
    pub task: Task,
    /// Trajectories that settle it.
    pub needed: u32,
    /// Trajectories that were started at first.
    pub start: u32,
    /// Numbers of its trajectories below this may have been given away.
    pub numbers: u32,
    /// Version of the weights when it was opened, or that is pinned.
    pub version: Version,
    /// True when it never enters a batch.
    pub evaluation: bool,
    /// True when the token ids of its trajectories are recorded.
    pub tokens: bool,
}

/// A scored trajectory, without its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordMeta {
    /// Its id.
    pub trajectory: TrajectoryId,
    /// Its group.
    pub group: GroupId,
    /// Its reward.
    pub reward: f64,
    /// Version of the weights when it was opened.
    pub opened_at: Version,
    /// From its opening until it was scored.
    pub took: Duration,
    /// Version that generated its first token, if it has one.
    pub start: Option<Version>,
    /// Oldest version that generated one of its tokens.
    pub oldest: Option<Version>,
    /// Generation requests that were answered.
    pub turns: u32,
    /// Tokens that were not generated.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
}

/// A batch that was made up for the trainer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBatch {
    /// Its number.
    pub id: BatchId,
    /// The policy's version when it was made up.
    pub version: Version,
    /// Its groups, in order.
    pub groups: Vec<GroupId>,
}

/// The current version of the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// The version.
    pub version: Version,
    /// From where the workers loaded it; none where only they know.
    pub source: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct GroupForm {
    task: String,
    needed: u32,
    start: u32,
    /// As in [`GroupMeta`].
    pub(super) numbers: u32,
    version: u64,
    evaluation: bool,
    tokens: bool,
    pub(super) payload: Option<Place>,
    /// Its place in the order of settling.
    pub(super) settled: Option<u64>,
    /// The records that it settled with, in order.
    pub(super) kept: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct RecordForm {
    group: String,
    reward: f64,
    opened_at: u64,
    took: Duration,
    start: Option<u64>,
    oldest: Option<u64>,
    turns: u32,
    prompt_tokens: u64,
    generated_tokens: u64,
    pub(super) place: Place,
}

#[derive(Serialize, Deserialize)]
pub(super) struct BatchForm {
    version: u64,
    groups: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WeightsForm {
    version: u64,
    source: Option<String>,
}

/// How many batches were acknowledged, and the last of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Acknowledged {
    pub(super) count: u64,
    pub(super) last: Option<u64>,
}

fn corrupt(what: &'static str, key: &str, message: &impl ToString) -> StoreError {
    StoreError::Corrupt { what, key: key.to_owned(), message: message.to_string() }
}

/// Reads a form.
pub(super) fn decode<T: DeserializeOwned>(
    what: &'static str,
    key: &str,
    value: &[u8],
) -> Result<T, StoreError> {
    postcard::from_bytes(value).map_err(|error| corrupt(what, key, &error))
}

/// Writes a form.
pub(super) fn encode<T: Serialize>(form: &T) -> Result<Vec<u8>, StoreError> {
    postcard::to_stdvec(form).map_err(|error| corrupt("form", "new", &error))
}

impl GroupForm {
    pub(super) fn new(meta: &GroupMeta, payload: Option<Place>) -> Self {
        Self {
            task: meta.task.to_string(),
            needed: meta.needed,
            start: meta.start,
            numbers: meta.numbers,
            version: meta.version.0,
            evaluation: meta.evaluation,
            tokens: meta.tokens,
            payload,
            settled: None,
            kept: Vec::new(),
        }
    }

    pub(super) fn meta(&self, id: &str) -> Result<GroupMeta, StoreError> {
        Ok(GroupMeta {
            id: group_id(id)?,
            task: Task::new(&self.task).map_err(|error| corrupt("group", id, &error))?,
            needed: self.needed,
            start: self.start,
            numbers: self.numbers,
            version: Version(self.version),
            evaluation: self.evaluation,
            tokens: self.tokens,
        })
    }
}

impl RecordForm {
    pub(super) fn new(meta: &RecordMeta, place: Place) -> Self {
        Self {
            group: meta.group.to_string(),
            reward: meta.reward,
            opened_at: meta.opened_at.0,
            took: meta.took,
            start: meta.start.map(|version| version.0),
            oldest: meta.oldest.map(|version| version.0),
            turns: meta.turns,
            prompt_tokens: meta.prompt_tokens,
            generated_tokens: meta.generated_tokens,
            place,
        }
    }

    pub(super) fn meta(&self, id: &str) -> Result<RecordMeta, StoreError> {
        Ok(RecordMeta {
            trajectory: TrajectoryId::new(id).map_err(|error| corrupt("record", id, &error))?,
            group: group_id(&self.group)?,
            reward: self.reward,
            opened_at: Version(self.opened_at),
            took: self.took,
            start: self.start.map(Version),
            oldest: self.oldest.map(Version),
            turns: self.turns,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
        })
    }
}

impl BatchForm {
    pub(super) fn new(batch: &TakenBatch) -> Self {
        let groups = batch.groups.iter().map(GroupId::to_string).collect();
        Self { version: batch.version.0, groups }
    }

    pub(super) fn batch(&self, id: BatchId) -> Result<TakenBatch, StoreError> {
        let groups = self.groups.iter().map(|group| group_id(group)).collect::<Result<_, _>>()?;
        Ok(TakenBatch { id, version: Version(self.version), groups })
    }
}

impl WeightsForm {
    pub(super) fn new(weights: &Weights) -> Self {
        Self { version: weights.version.0, source: weights.source.clone() }
    }

    pub(super) fn weights(self) -> Weights {
        Weights { version: Version(self.version), source: self.source }
    }
}

fn group_id(id: &str) -> Result<GroupId, StoreError> {
    GroupId::new(id).map_err(|error| corrupt("group", id, &error))
}
