//! `ActionQueue`: one scheduler over the pools that are bound to it.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::duration::TimeSpan;
use crate::name::Name;
use crate::quantity::ByteSize;

mod profile;
mod template;

pub use profile::ActionProfile;
pub use template::{
    ExecMode, IoLimits, NetworkAccess, ResetTimeouts, SandboxTemplate, TmpfsMount,
    parse_destination,
};

/// One scheduler over the pools bound to it, shared by jobs in weighted fair shares.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "rollwright.dev",
    version = "v1alpha1",
    kind = "ActionQueue",
    plural = "actionqueues",
    shortname = "aq",
    category = "rollwright",
    namespaced,
    status = "ActionQueueStatus",
    derive = "PartialEq",
    doc = "One scheduler of actions over the pools that are bound to it, shared by many jobs in weighted fair shares.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy.type"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Trajectories", type_ = "integer", json_path = ".status.trajectories"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionQueueSpec {
    /// ResourcePools that this queue schedules, all of them `cpu` or `quota`, or
    /// `gpu` pools that host rewards.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pools: Vec<Name>,
    /// How actions get their units and their turn.
    #[serde(default)]
    pub policy: Policy,
    /// Weights of jobs in the fair share; a job that is not named has weight 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["namespace".into(), "name".into()]))]
    pub jobs: Vec<JobShare>,
    /// What sandboxes look like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub templates: Vec<SandboxTemplate>,
    /// What actions need. A request that names no profile has the one called `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub profiles: Vec<ActionProfile>,
    /// How long results are kept.
    #[serde(default)]
    pub results: ResultRetention,
    /// Bounds beyond which the queue answers "full" (429 with `Retry-After`).
    #[serde(default)]
    pub limits: QueueLimits,
}

/// How actions get their units and their turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
        "has(self.dop) == (self.type == 'FixedDop')",
        "dop is needed with type FixedDop and has no meaning with another type"
    ),
    validation = (
        "has(self.cores) == (self.type == 'Static')",
        "cores is needed with type Static and has no meaning with another type"
    ),
    validation = (
        "!has(self.depth) || self.type == 'Elastic'",
        "depth has a meaning only with type Elastic"
    )
)]
pub struct Policy {
    /// How units are chosen.
    #[serde(default, rename = "type")]
    pub kind: PolicyType,
    /// `FixedDop`: units of every action, cut to the largest that its profile allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub dop: Option<u32>,
    /// `Static`: cores that every trajectory holds for life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub cores: Option<u32>,
    /// In which order waiting actions are looked at.
    #[serde(default)]
    pub ordering: Ordering,
    /// Entries of the units of an action that the estimate of the paper's algorithm tries. The
    /// queue has no use for it: the policy of this version plays the line forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub depth: Option<u32>,
}

/// A setting that a policy does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The field below `spec.policy`.
    pub field: &'static str,
    /// What it says.
    pub value: &'static str,
    /// What it may say.
    pub instead: &'static str,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, value, instead } = self;
        write!(f, "spec.policy.{field} `{value}` is there only with type Elastic: use {instead}")
    }
}

impl ActionQueueSpec {
    /// What it asks for that no queue can do.
    pub fn unavailable(&self) -> Option<Unavailable> {
        let (field, value, instead) = ("ordering", "TrajectoryAware", "Fcfs");
        let asked = self.policy.ordering == Ordering::TrajectoryAware
            && self.policy.kind != PolicyType::Elastic;
        asked.then_some(Unavailable { field, value, instead })
    }
}

/// How units are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    /// By the elastic algorithm, for the least total completion time: units follow the
    /// load, short actions go first, with ageing.
    #[default]
    Elastic,
    /// The same for every action.
    FixedDop,
    /// Every trajectory holds its cores for life: what pods do, for comparison.
    Static,
}

/// In which order waiting actions are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ordering {
    /// First come, first served; under `Elastic` by submission plus own work.
    #[default]
    Fcfs,
    /// Longest predicted remaining trajectory first, with ageing.
    TrajectoryAware,
}

/// Weight of one job in the fair share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobShare {
    /// Namespace of the job; empty: the queue's own. Outside a cluster it has no meaning.
    #[serde(default)]
    #[schemars(length(max = 63), regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"))]
    pub namespace: String,
    /// Name of the `RolloutJob`, or what callers give as `job`.
    pub name: Name,
    /// Its share against the other jobs' that have work.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// How long results are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultRetention {
    /// Time from its end for which an action's id returns its first result.
    #[serde(default = "default_keep_for")]
    pub keep_for: TimeSpan,
}

fn default_keep_for() -> TimeSpan {
    TimeSpan::secs(3600)
}

impl Default for ResultRetention {
    fn default() -> Self {
        Self { keep_for: default_keep_for() }
    }
}

/// Bounds beyond which the queue answers "full".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueLimits {
    /// Actions accepted and not started.
    #[serde(default = "default_max_waiting")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_waiting: u32,
    /// Trajectories open or opening.
    #[serde(default = "default_max_trajectories")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_trajectories: u32,
    /// Output and request bytes held in memory for all callers together.
    #[serde(default = "default_max_buffered")]
    pub max_buffered_bytes: ByteSize,
}

fn default_max_waiting() -> u32 {
    100_000
}

fn default_max_trajectories() -> u32 {
    10_000
}

fn default_max_buffered() -> ByteSize {
    ByteSize::mib(256)
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            max_waiting: default_max_waiting(),
            max_trajectories: default_max_trajectories(),
            max_buffered_bytes: default_max_buffered(),
        }
    }
}

/// What a queue holds at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionQueueStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Host and port of its gRPC and HTTP service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Agents with a live link.
    #[serde(default)]
    pub agents: u32,
    /// Actions accepted and not started.
    #[serde(default)]
    pub waiting: u32,
    /// Actions that run.
    #[serde(default)]
    pub running: u32,
    /// Trajectories open.
    #[serde(default)]
    pub trajectories: u32,
}
