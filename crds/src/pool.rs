//! `ResourcePool`: what hardware or quota there is.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::duration::TimeSpan;
use crate::name::Name;
use crate::quantity::ByteSize;

/// What hardware or quota there is: exactly one of `cpu`, `gpu` and `quota`.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "rollwright.dev",
    version = "v1alpha1",
    kind = "ResourcePool",
    plural = "resourcepools",
    shortname = "rp",
    category = "rollwright",
    status = "ResourcePoolStatus",
    derive = "PartialEq",
    doc = "What hardware or quota there is. It has one owner at a time: the ActionQueue, or the generation of RolloutJobs, that it is bound to.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Cores", type_ = "integer", json_path = ".status.capacity.cores"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.capacity.gpus"),
    printcolumn(name = "Owner", type_ = "string", json_path = ".status.boundTo.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
        "[has(self.cpu), has(self.gpu), has(self.quota)].filter(x, x).size() == 1",
        "set exactly one of cpu, gpu and quota"
    ),
    validation = (
        "has(self.cpu) == has(oldSelf.cpu) && has(self.gpu) == has(oldSelf.gpu)",
        "a pool cannot change between cpu, gpu and quota; make another pool"
    )
)]
pub struct ResourcePoolSpec {
    /// CPU nodes for sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPool>,
    /// GPU nodes for generation or reward services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuPool>,
    /// Limits of things outside, such as an API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaPool>,
    /// Namespaces whose queues and jobs may use the pool; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_namespaces: Vec<Name>,
}

/// CPU nodes for sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CpuPool {
    /// Labels that a node must carry; empty: every node. Ignored on one machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// Cores of each node that actions never get.
    #[serde(default)]
    #[schemars(range(max = 4096))]
    pub reserved_cores: u32,
    /// Memory of each node that sandboxes never get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_memory: Option<ByteSize>,
    /// How the cores of one action relate to NUMA nodes.
    #[serde(default)]
    #[x_kube(validation = (
        "self == 'Prefer'",
        "numaPolicy Require and Ignore are not built yet: write Prefer, or leave it out"
    ))]
    pub numa_policy: NumaPolicy,
    /// Which Docker engine the sandboxes run on.
    #[serde(default)]
    pub docker: DockerMode,
    /// Cores of each node that are kept for shares (units below 1); shares take more
    /// as they need them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub shared_cores: Option<u32>,
}

/// How the cores of one action relate to NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NumaPolicy {
    /// All on one node where possible, else the fewest remote cores.
    #[default]
    Prefer,
    /// All on one node, or wait. Not built yet, and refused.
    Require,
    /// Any cores. Not built yet, and refused.
    Ignore,
}

/// Which Docker engine the sandboxes run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DockerMode {
    /// The node's own, by its socket.
    #[default]
    Host,
    /// One in a sidecar of the agent.
    Dind,
}

/// GPU nodes for generation or reward services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuPool {
    /// Labels that a node must carry; empty: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,
    /// GPU class that affinities name, such as `h800`.
    pub class: Name,
    /// What one GPU can do.
    pub profile: GpuProfile,
    /// GPUs of each node.
    #[x_kube(validation = ("self in [1, 2, 4, 8]", "gpusPerNode must be 1, 2, 4 or 8"))]
    pub gpus_per_node: u32,
    /// Memory of each node that engines of reward services may hold; absent: what other pods
    /// leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<ByteSize>,
    /// What the pool may host.
    #[serde(default = "both_roles")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub hosts: Vec<GpuRole>,
}

fn both_roles() -> Vec<GpuRole> {
    vec![GpuRole::Generation, GpuRole::Reward]
}

/// What a GPU pool may host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GpuRole {
    /// Generation workers of RolloutJobs.
    Generation,
    /// RewardServices.
    Reward,
}

/// What one GPU can do; the scheduler's and the planner's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuProfile {
    /// Dense BF16 rate in TFLOPS.
    #[x_kube(validation = ("self > 0.0", "tflops must be more than zero"))]
    pub tflops: f64,
    /// Device memory.
    pub hbm: ByteSize,
    /// Bandwidth of device memory in TB/s.
    #[x_kube(validation = ("self > 0.0", "hbmTbps must be more than zero"))]
    pub hbm_tbps: f64,
    /// Price of one GPU for an hour, in any one currency.
    #[serde(default)]
    #[x_kube(validation = ("self >= 0.0", "costPerHour must not be negative"))]
    pub cost_per_hour: f64,
}

/// Limits of things outside, such as an API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QuotaPool {
    /// The limits, by name.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<QuotaLimit>,
}

/// One named limit: by concurrency, by amount per period, or by both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = (
        "has(self.concurrency) || has(self.amount)",
        "set concurrency, or amount and period, or all three"
    ),
    validation = ("has(self.amount) == has(self.period)", "amount and period belong together")
)]
pub struct QuotaLimit {
    /// What profiles and permits call it.
    pub name: Name,
    /// Most that is taken at one moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub concurrency: Option<u32>,
    /// Most that is begun in any window of `period`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub amount: Option<u32>,
    /// Length of that window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<TimeSpan>,
}

/// What a pool has and who holds it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcePoolStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The one owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<PoolOwner>,
    /// Nodes that match and are ready.
    #[serde(default)]
    pub nodes: u32,
    /// What they have for us together.
    #[serde(default)]
    pub capacity: PoolAmounts,
    /// What of it is taken.
    #[serde(default)]
    pub in_use: PoolAmounts,
    /// Free GPU chunks by size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_chunks: Vec<FreeChunks>,
    /// Share of free GPUs outside the largest free chunk of their node, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<f64>,
    /// Engines of reward services that are on its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residents: Vec<Resident>,
    /// State of each quota limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaUse>,
}

/// The owner of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolOwner {
    /// `ActionQueue` or `RolloutJob`.
    pub kind: String,
    /// Namespace of the owner.
    pub namespace: String,
    /// Name of the owner.
    pub name: String,
}

/// Amounts of hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolAmounts {
    /// Logical CPUs.
    #[serde(default)]
    pub cores: u32,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// GPUs.
    #[serde(default)]
    pub gpus: u32,
}

/// How many chunks of a size are free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreeChunks {
    /// GPUs of a chunk: 1, 2, 4 or 8.
    pub gpus: u32,
    /// Free chunks of that size.
    pub count: u32,
}

/// An engine of a reward service that is on GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resident {
    /// The service, as `namespace.name`.
    pub service: String,
    /// The node.
    pub node: String,
    /// Number of the first of its GPUs.
    pub first_gpu: u32,
    /// How many it has.
    pub degree: u32,
}

/// State of one quota limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUse {
    /// The limit's name.
    pub name: String,
    /// Taken at this moment.
    pub running: u32,
    /// Waiting in its line.
    pub waiting: u32,
}
