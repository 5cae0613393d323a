//! What a scorer is told of a trajectory.

use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::Version;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A trajectory that is to be scored. Services that are called over HTTP get it as JSON,
/// in snake case, with absent fields left out.
#[derive(Debug)]
pub struct Subject {
    /// Its id, which is its sandbox's too.
    pub trajectory: TrajectoryId,
    /// Its group.
    pub group: GroupId,
    /// Its task.
    pub task: Task,
    /// What the caller gave when it opened the group.
    pub payload: Option<Box<RawValue>>,
    /// What the agent gave when it completed the trajectory.
    pub metadata: Option<Box<RawValue>>,
    /// The conversation, where it is known.
    pub messages: Option<Box<RawValue>>,
    /// Its tokens, where they were recorded.
    pub tokens: Option<Tokens>,
    /// Turns generated.
    pub turns: u32,
    /// Tokens of all prompts, each counted once.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Version of the policy when it started.
    pub start_version: Version,
    /// Version that made its oldest token.
    pub oldest_version: Version,
}

/// The whole context of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Prompt, generated tokens and observations.
    pub token_ids: Vec<u32>,
    /// 1 where a token was generated, else 0; as long as `token_ids`.
    pub loss_mask: Vec<u8>,
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut to = serializer.serialize_struct("Subject", 13)?;
        to.serialize_field("trajectory", self.trajectory.as_str())?;
        to.serialize_field("group", self.group.as_str())?;
        to.serialize_field("task", self.task.as_str())?;
        to.serialize_field("turns", &self.turns)?;
        to.serialize_field("prompt_tokens", &self.prompt_tokens)?;
        to.serialize_field("generated_tokens", &self.generated_tokens)?;
        to.serialize_field("start_version", &self.start_version.0)?;
        to.serialize_field("oldest_version", &self.oldest_version.0)?;
        for (name, value) in
            [("payload", &self.payload), ("metadata", &self.metadata), ("messages", &self.messages)]
        {
            match value {
                Some(value) => to.serialize_field(name, value)?,
                None => to.skip_field(name)?,
            }
        }
        if let Some(tokens) = &self.tokens {
            to.serialize_field("token_ids", &tokens.token_ids)?;
            to.serialize_field("loss_mask", &tokens.loss_mask)?;
        } else {
            to.skip_field("token_ids")?;
            to.skip_field("loss_mask")?;
        }
        to.end()
    }
}
