//! How many generation workers of which degree.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::degrees::Degrees;
use crate::duration::TimeSpan;
use crate::name::Name;

/// How many workers of which degree: exactly one of `fixed` and `adaptive`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "has(self.fixed) != has(self.adaptive)",
    "set exactly one of fixed and adaptive"
))]
pub struct Allocation {
    /// As listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Fixed>,
    /// As the planner finds best for the lengths seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<Adaptive>,
    /// While workers are replaced, those that serve keep this part of the planned GPUs, in
    /// percent; a condition says where the nodes leave no way to.
    #[serde(default = "default_minimum")]
    #[schemars(range(max = 100))]
    pub min_serving_percent: u32,
    /// Time that a worker has for the requests that it has in flight before it is removed.
    #[serde(default = "default_drain")]
    pub drain_timeout: TimeSpan,
}

fn default_minimum() -> u32 {
    50
}

fn default_drain() -> TimeSpan {
    TimeSpan::secs(600)
}

/// Workers as listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fixed {
    /// Workers of one pool and degree each.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pool".into(), "degree".into()]))]
    pub groups: Vec<WorkerGroup>,
}

/// Workers of one pool and degree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerGroup {
    /// `gpu` pool.
    pub pool: Name,
    /// GPUs of each worker.
    #[x_kube(validation = ("self in [1, 2, 4, 8]", "degree must be 1, 2, 4 or 8"))]
    pub degree: u32,
    /// Workers.
    #[schemars(range(min = 1, max = 10_000))]
    pub workers: u32,
}

/// Workers as the planner finds best.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Adaptive {
    /// `gpu` pools to take from.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pools: Vec<Name>,
    /// Most GPUs in all.
    #[schemars(range(min = 1, max = 100_000))]
    pub gpus: u32,
    /// Degrees that a worker may have, ascending.
    pub degrees: Degrees,
    /// Most workers; absent: as many as the GPUs allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_workers: Option<u32>,
    /// Training steps between two plans.
    #[serde(default = "default_replan")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub replan_every_steps: u32,
}

fn default_replan() -> u32 {
    10
}

/// Prefill and decode on workers of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disaggregation {
    /// `gpu` pool of the prefill workers.
    pub prefill_pool: Name,
    /// `gpu` pool of the decode workers.
    pub decode_pool: Name,
    /// Prefill workers to decode workers.
    #[schemars(length(max = 9))]
    #[x_kube(validation = (
        "self.matches('^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$')",
        "ratio is prefill to decode workers, for example \"1:3\""
    ))]
    pub ratio: String,
}
