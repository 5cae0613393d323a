//! A reward model on GPUs that it leaves between calls.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::default_timeout;
use crate::degrees::Degrees;
use crate::duration::TimeSpan;
use crate::engine::{Engine, Model};
use crate::name::Name;
use crate::quantity::ByteSize;

/// A model on GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
    "!has(self.model.volume)",
    "model.volume is not mounted for reward services yet: name a directory of the node that its policy opens to engines, a path in their image, or a hub name"
    ),
    validation = (
    "!has(self.engine.secretEnv) || self.engine.secretEnv.size() == 0",
    "engine.secretEnv does not reach reward services yet: use a model that needs no secret, for example one in the engine's image"
    ),
    validation = (
    "self.engine.type == 'OpenAI' || (has(self.ask) && self.ask != 'Reward')",
    "vLLM and SGLang have no /reward for ask: Reward: write ask: Pooling for a reward model, or ask: LogProbs for a teacher"
    ),
    validation = (
    "self.footprints.all(f, f.degree in self.degrees) && self.degrees.all(d, self.footprints.exists_one(f, f.degree == d))",
    "footprints has exactly one entry for each of degrees"
    )
)]
pub struct GpuReward {
    /// ActionQueue that schedules its calls.
    pub queue: Name,
    /// `gpu` pool of that queue.
    pub pool: Name,
    /// What is served.
    pub model: Model,
    /// What serves it.
    pub engine: Engine,
    /// GPUs that one call may have, ascending.
    pub degrees: Degrees,
    /// What a job asks of it for a trajectory.
    #[serde(default)]
    pub ask: Ask,
    /// How it leaves the device between calls.
    #[serde(default)]
    pub evict: EvictBackend,
    /// Running time of one call.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// Calls that may run together on one engine.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 1024))]
    pub batch: u32,
    /// So many of its engines at each degree are never moved to make room for others.
    #[serde(default)]
    #[schemars(range(max = 1024))]
    pub pinned: u32,
    /// What one engine needs, at each of `degrees`.
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["degree".into()]))]
    pub footprints: Vec<Footprint>,
    /// How long its engine may take to start, to come back, to leave and to end.
    #[serde(default)]
    pub limits: OrderLimits,
    /// A small request that proves that the engine serves; absent: one token of
    /// `/v1/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
}

/// What a job asks of a model for a trajectory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ask {
    /// `POST /reward` with the trajectory as JSON, answered by `{"reward": NUMBER}`: for a
    /// program of yours (`engine.type: OpenAI`), since vLLM and SGLang have no such path.
    #[default]
    Reward,
    /// The last number that a reward model gives for its tokens: vLLM's `/pooling`, SGLang's
    /// `/classify`.
    Pooling,
    /// The log-probability of each of its tokens: a teacher, for distillation. It rewards
    /// nothing; the records that a trainer takes carry what it said.
    LogProbs,
}

fn default_batch() -> u32 {
    1
}

/// What one engine needs at a degree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!has(self.residue) || !isQuantity(self.residue) || !isQuantity(self.device) || quantity(self.device).compareTo(quantity(self.residue)) > 0",
    "device must be more than residue: an engine that is awake holds what it keeps asleep, and its weights"
))]
pub struct Footprint {
    /// GPUs of the engine: one of `degrees`.
    pub degree: u32,
    /// Memory of each GPU while it is resident.
    pub device: ByteSize,
    /// Memory of each GPU that it keeps asleep (context, communication buffers); absent:
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residue: Option<ByteSize>,
    /// Memory of the node that it keeps as long as its process lives; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<ByteSize>,
}

/// Time limits of the orders for an engine; beyond them it is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OrderLimits {
    /// To start the engine and load its model.
    pub launch: TimeSpan,
    /// To bring a sleeping engine back.
    pub wake: TimeSpan,
    /// To put it to sleep.
    pub evict: TimeSpan,
    /// To end its process.
    pub stop: TimeSpan,
}

impl Default for OrderLimits {
    fn default() -> Self {
        Self {
            launch: TimeSpan::secs(600),
            wake: TimeSpan::secs(60),
            evict: TimeSpan::secs(30),
            stop: TimeSpan::secs(30),
        }
    }
}

/// A small request that proves that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    /// Where it is posted.
    #[schemars(length(max = 512))]
    #[x_kube(validation = (
        "self.matches('^/[^ ]*$')",
        "path begins with / and has no spaces, for example \"/v1/score\""
    ))]
    pub path: String,
    /// What is posted: a JSON object as text.
    #[schemars(length(max = 65_536))]
    #[x_kube(validation = (
        "self.startsWith('{') && self.endsWith('}')",
        "body is a JSON object as text, for example '{\"input\": \"1\"}'"
    ))]
    pub body: String,
}

/// How a service leaves the device between calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EvictBackend {
    /// The engine's own sleep mode.
    #[default]
    EngineSleep,
    /// The driver's checkpoint of the process.
    CudaCheckpoint,
    /// Weights in pinned host memory.
    HostPinned,
}
