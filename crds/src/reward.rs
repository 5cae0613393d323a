//! `RewardService`: what scores trajectories.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::CommandLine;
use crate::conditions::Condition;
use crate::duration::TimeSpan;
use crate::name::Name;

mod fit;
mod gpu;

pub use fit::Misfit;
pub use gpu::{Ask, EvictBackend, Footprint, GpuReward, OrderLimits, Probe};

/// What scores trajectories: exactly one of `gpu`, `serverless` and `sandbox`.
#[derive(Clone, Debug, PartialEq, Eq, CustomResource, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "rollwright.dev",
    version = "v1alpha1",
    kind = "RewardService",
    plural = "rewardservices",
    shortname = "rws",
    category = "rollwright",
    namespaced,
    status = "RewardServiceStatus",
    derive = "PartialEq",
    doc = "What scores trajectories: a model on GPUs that is evicted between calls, a serverless endpoint, or a command in a sandbox.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Backend", type_ = "string", json_path = ".status.backend"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Resident", type_ = "integer", json_path = ".status.resident"),
    printcolumn(name = "Restores", type_ = "integer", json_path = ".status.restores"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "[has(self.gpu), has(self.serverless), has(self.sandbox)].filter(x, x).size() == 1",
    "set exactly one of gpu, serverless and sandbox"
))]
pub struct RewardServiceSpec {
    /// A model on GPUs, restored to a chunk only while a call needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuReward>,
    /// An endpoint that somebody else runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serverless: Option<ServerlessReward>,
    /// A command in a sandbox: rule- and code-based rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReward>,
}

fn default_timeout() -> TimeSpan {
    TimeSpan::secs(120)
}

/// An endpoint that somebody else runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerlessReward {
    /// Where calls are posted.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (
        "self.matches('^https?://[^/ ]+')",
        "url begins with http:// or https:// and a host, for example \"https://judge.example.com/score\""
    ))]
    pub url: String,
    /// Secret of this namespace whose value is sent as a bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_secret: Option<SecretKey>,
    /// Running time of one try.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
    /// Most calls at one moment.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 100_000))]
    pub concurrency: u32,
    /// Further tries after an infrastructure fault.
    #[serde(default = "default_retries")]
    #[schemars(range(max = 20))]
    pub retries: u32,
}

fn default_concurrency() -> u32 {
    64
}

fn default_retries() -> u32 {
    3
}

/// One key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: Name,
    /// Key in its data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A command in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!has(self.copy) || self.copy.size() == 0 || self.pristine",
    "copy has a meaning only with pristine: true; else the trajectory's own sandbox is scored"
))]
pub struct SandboxReward {
    /// ActionQueue that runs it.
    pub queue: Name,
    /// Sandbox template of that queue.
    pub template: Name,
    /// Action profile of that queue.
    #[serde(default = "default_profile")]
    pub profile: Name,
    /// What scores: the last line of its standard output is the reward.
    pub command: CommandLine,
    /// Score in a new sandbox rather than in the one that the policy could edit.
    #[serde(default = "yes")]
    pub pristine: bool,
    /// Absolute paths copied from the trajectory's sandbox into the new one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = (
            "self.all(path, path.startsWith('/'))",
            "each of copy is an absolute path, for example \"/workspace/answer.py\""
        )
    )]
    pub copy: Vec<String>,
}

fn yes() -> bool {
    true
}

fn default_profile() -> Name {
    Name::default_profile()
}

/// What a reward service does at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewardServiceStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one of each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// `gpu`, `serverless` or `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Calls that run.
    #[serde(default)]
    pub running: u32,
    /// Calls that wait.
    #[serde(default)]
    pub waiting: u32,
    /// GPU chunks that hold the service.
    #[serde(default)]
    pub resident: u32,
    /// Engines launched and woken since its queue began.
    #[serde(default)]
    pub restores: u64,
}
