//! `RolloutJob`: generation workers and the rollout loop.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::engine::{Engine, Model};
use crate::name::Name;

mod allocation;
mod rollout;

pub use allocation::{Adaptive, Allocation, Disaggregation, Fixed, WorkerGroup};
pub use rollout::{
    InFlight, LengthCap, Migration, OnStale, Placement, PlacementPolicy, Predictor, PredictorType,
    Redundancy, Rollout, Scheduling, SchedulingPolicy, Shaping, ShapingType, WeightSync,
    WeightSyncStrategy,
};

/// Generation workers and the rollout loop that feeds one trainer.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "rollwright.dev",
    version = "v1alpha1",
    kind = "RolloutJob",
    plural = "rolloutjobs",
    shortname = "rj",
    category = "rollwright",
    namespaced,
    status = "RolloutJobStatus",
    derive = "PartialEq",
    doc = "Generation workers and the rollout loop that feeds one trainer.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workersReady"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".status.policyVersion"),
    printcolumn(name = "Buffer", type_ = "integer", json_path = ".status.bufferDepth"),
    printcolumn(name = "Tokens/s", type_ = "number", json_path = ".status.tokensPerSecond"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!self.autoAffinity || !has(self.hardwareAffinity) || self.hardwareAffinity.size() == 0",
    "set hardwareAffinity or autoAffinity, not both"
))]
pub struct RolloutJobSpec {
    /// The policy.
    pub model: Model,
    /// What serves it.
    pub engine: Engine,
    /// How many workers of which degree.
    pub allocation: Allocation,
    /// Prefill and decode on workers of their own; absent: together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation: Option<Disaggregation>,
    /// GPU classes by task, the preferred first; `default` serves tasks that are not
    /// named. A class without room is passed over, and a condition says so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "affinity_schema")]
    #[x_kube(validation = (
        "self.all(task, self[task].size() >= 1 && self[task].size() <= 16)",
        "each task of hardwareAffinity lists 1 to 16 GPU classes, for example [h800, h20]"
    ))]
    pub hardware_affinity: BTreeMap<String, Vec<Name>>,
    /// Affinity from the measured prefill and decode profile of each task.
    #[serde(default)]
    pub auto_affinity: bool,
    /// The rollout loop.
    pub rollout: Rollout,
    /// ActionQueue that runs the tools; absent: the tools are elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_queue: Option<QueueRef>,
    /// What scores, in the order tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub reward_services: Vec<RewardRef>,
    /// Among jobs that want the same GPUs, the higher first.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Give the workers back and start none.
    #[serde(default)]
    pub suspend: bool,
}

/// A map of bounded lists, so that the API server can tell what its rules cost.
fn affinity_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut classes = generator.subschema_for::<Vec<Name>>();
    classes.insert("maxItems".to_owned(), 16.into());
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": classes })
}

/// An ActionQueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueRef {
    /// Its name.
    pub name: Name,
    /// Its namespace; absent: the job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
}

/// A RewardService of the job's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardRef {
    /// Its name.
    pub name: Name,
    /// Tasks that it scores; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub tasks: Vec<String>,
}

/// Where a job stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutJobStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// What it is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Workers ready, in all.
    #[serde(default)]
    pub workers_ready: u32,
    /// Workers by pool and degree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerCount>,
    /// What the planner chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// Newest policy version that all workers hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<i64>,
    /// Scored trajectories that wait for the trainer.
    #[serde(default)]
    pub buffer_depth: u32,
    /// Share of begun trajectories that reach the trainer, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_fraction: Option<f64>,
    /// Longest over mean trajectory time of a batch, less 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler_tax: Option<f64>,
    /// Generated tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Host and port of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Workers are not there yet.
    Pending,
    /// Workers generate.
    Running,
    /// Workers take a new policy version over.
    SyncingWeights,
    /// `spec.suspend` is set.
    Suspended,
    /// It cannot go on; the conditions say why.
    Failed,
}

/// Workers of one pool and degree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerCount {
    /// The pool.
    pub pool: String,
    /// GPUs of each worker.
    pub degree: u32,
    /// Workers wanted.
    pub wanted: u32,
    /// Workers that serve.
    pub ready: u32,
}

/// What the planner chose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Workers by degree, the largest first.
    pub degrees: Vec<DegreeCount>,
    /// On what ground, as a sentence.
    pub ground: String,
    /// Predicted time of one batch in seconds; absent where nothing was predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makespan_seconds: Option<f64>,
}

/// Workers of one degree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DegreeCount {
    /// GPUs of each.
    pub degree: u32,
    /// How many.
    pub workers: u32,
}
