//! The rollout loop of a job.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::TimeSpan;
use crate::quantity::ByteSize;

/// The rollout loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Rollouts of one prompt.
    #[schemars(range(min = 1, max = 4096))]
    pub group_size: u32,
    /// Groups of one training batch.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch_groups: u32,
    /// Which request is generated next.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Which worker generates it.
    #[serde(default)]
    pub placement: Placement,
    /// Where predicted lengths come from.
    #[serde(default)]
    pub predictor: Predictor,
    /// Rollouts begun beyond those needed.
    #[serde(default)]
    pub redundancy: Redundancy,
    /// How the distribution of lengths is shaped.
    #[serde(default)]
    pub shaping: Shaping,
    /// Longest trajectory; absent: the model's context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_cap: Option<LengthCap>,
    /// Policy versions that a trajectory may lie behind its start.
    #[serde(default = "one")]
    #[schemars(range(max = 1000))]
    pub staleness_bound: u32,
    /// What becomes of a trajectory beyond that.
    #[serde(default)]
    pub on_stale: OnStale,
    /// How new weights reach the workers.
    #[serde(default)]
    pub weight_sync: WeightSync,
    /// Most workers that an evaluation keeps at its pinned version.
    #[serde(default = "one")]
    #[schemars(range(max = 10_000))]
    pub evaluation_workers: u32,
}

fn one() -> u32 {
    1
}

/// Which request is generated next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scheduling {
    /// The order.
    #[serde(default)]
    pub policy: SchedulingPolicy,
    /// Pre-empt the lowest running when a waiting one outranks it.
    #[serde(default)]
    pub preemption: bool,
    /// By which part of its predicted length it must outrank it.
    #[serde(default = "default_margin")]
    #[x_kube(validation = ("self >= 0.0", "preemptionMargin must not be negative"))]
    pub preemption_margin: f64,
}

fn default_margin() -> f64 {
    0.1
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            policy: SchedulingPolicy::default(),
            preemption: false,
            preemption_margin: default_margin(),
        }
    }
}

/// The order of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Longest predicted remaining trajectory first, with ageing.
    LongestFirst,
}

/// Which worker generates a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// The choice at a trajectory's start.
    #[serde(default)]
    pub policy: PlacementPolicy,
    /// Moves during tool calls.
    #[serde(default)]
    pub migration: Migration,
}

/// The choice of a worker at a trajectory's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlacementPolicy {
    /// The worker with the least load; the trajectory stays there.
    #[default]
    LeastLoaded,
    /// By the least makespan of the predicted lengths.
    Makespan,
}

/// Moves during tool calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    /// Whether trajectories move.
    #[serde(default)]
    pub enabled: bool,
}

/// Where predicted lengths come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "has(self.url) == (self.type == 'External')",
    "url is needed with type External and has no meaning with another type"
))]
pub struct Predictor {
    /// The model.
    #[serde(default, rename = "type")]
    pub kind: PredictorType,
    /// `External`: where features are posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (
        "self.matches('^https?://[^/ ]+')",
        "url begins with http:// or https:// and a host, for example \"http://predictor:8080/length\""
    ))]
    pub url: Option<String>,
}

/// The model that predicts lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PredictorType {
    /// The mean of earlier trajectories of the prompt or task.
    #[default]
    History,
    /// A regression that is updated after every step.
    Regression,
    /// A service of yours.
    External,
}

/// Rollouts begun beyond those needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Redundancy {
    /// Further rollouts of each group.
    #[serde(default)]
    #[schemars(range(max = 4096))]
    pub environments: u32,
    /// Further groups of each batch.
    #[serde(default)]
    #[schemars(range(max = 1_000_000))]
    pub groups: u32,
}

/// How the distribution of lengths is shaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "has(self.maxOversample) == (self.type != 'None')",
    "maxOversample is needed with type Darts or DynamicK and has no meaning with None"
))]
pub struct Shaping {
    /// The method.
    #[serde(default, rename = "type")]
    pub kind: ShapingType,
    /// Most rollouts begun for one prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_oversample: Option<u32>,
}

/// The method of shaping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ShapingType {
    /// Every rollout begun is finished.
    #[default]
    None,
    /// Budgeted oversampling, kept from both ends, the tail pruned.
    Darts,
    /// A group settles when enough are back and both outcomes are present.
    DynamicK,
}

/// Longest trajectory: exactly one of `tokens` and `percentile`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "has(self.tokens) != has(self.percentile)",
    "set exactly one of tokens and percentile"
))]
pub struct LengthCap {
    /// As a number of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub tokens: Option<u32>,
    /// As a percentile of the lengths of successful trajectories.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        "self > 0.0 && self <= 100.0",
        "percentile is above 0 and at most 100, for example 99"
    ))]
    pub percentile: Option<f64>,
    /// Tokens before the cap over which the reward falls linearly; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub soft_penalty_tokens: Option<u32>,
}

/// What becomes of a trajectory beyond the staleness bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnStale {
    /// It is aborted and its group opens another.
    #[default]
    Abort,
    /// It goes on; its oldest token counts.
    Continue,
}

/// How new weights reach the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightSync {
    /// The way.
    #[serde(default)]
    pub strategy: WeightSyncStrategy,
    /// `Store`: size of one bucket.
    #[serde(default = "default_bucket")]
    pub bucket_size: ByteSize,
    /// Time from begin to commit after which the update is aborted.
    #[serde(default = "default_deadline")]
    pub deadline: TimeSpan,
    /// What becomes of turns in flight.
    #[serde(default)]
    pub in_flight: InFlight,
}

fn default_bucket() -> ByteSize {
    ByteSize::mib(1024)
}

fn default_deadline() -> TimeSpan {
    TimeSpan::secs(600)
}

impl Default for WeightSync {
    fn default() -> Self {
        Self {
            strategy: WeightSyncStrategy::default(),
            bucket_size: default_bucket(),
            deadline: default_deadline(),
            in_flight: InFlight::default(),
        }
    }
}

/// What becomes of turns in flight at a weight update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InFlight {
    /// They end on the old weights first.
    Keep,
    /// They are taken back and go on token by token where they were, their prefix
    /// computed anew by the new weights.
    #[default]
    Recompute,
    /// They begin again.
    Abort,
}

/// The way of new weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WeightSyncStrategy {
    /// All workers pause, update and go on together.
    #[default]
    Pause,
    /// One worker after the other, with version fences.
    Rolling,
    /// Buckets pushed to a store once and pulled during generation.
    Store,
}
