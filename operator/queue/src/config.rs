//! Settings of a queue, independent of where they were written down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use rollwright_core::ids::QuotaName;
use rollwright_core::profile::Prior;
use rollwright_core::queue::Config as CoreConfig;
use rollwright_core::resources::{UnitChoice, Units};
use rollwright_proto::v1 as pb;

use crate::gpu::GpuPool;

/// Name of the profile of requests that name none.
pub const DEFAULT_PROFILE: &str = "default";
/// Job of requests that name none.
pub const DEFAULT_JOB: &str = "default";

/// Everything that one queue needs to know.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// The `ActionQueue`'s name.
    pub name: String,
    /// Settings of the scheduler.
    pub core: CoreConfig,
    /// Sandbox templates by name.
    pub templates: BTreeMap<String, Template>,
    /// Action profiles by name; requests that name none have [`DEFAULT_PROFILE`].
    pub profiles: BTreeMap<String, Profile>,
    /// Pools that nodes may belong to; empty: any.
    pub pools: BTreeSet<String>,
    /// Pools of GPUs with their reward services.
    pub gpu_pools: Vec<GpuPool>,
    /// Reward services are called `<namespace>.<name>`, as jobs are.
    pub namespaced: bool,
    /// How long an ended action's id returns its first result.
    pub keep_for: Duration,
    /// Results kept at most; beyond it the oldest go before their time.
    pub max_results: usize,
    /// Bytes of results kept on disk at most; beyond it the oldest go as well.
    pub max_result_bytes: u64,
    /// Bytes of requests and outputs held in memory for all callers together; the
    /// output of running actions may take a quarter more.
    pub max_buffered_bytes: usize,
    /// How often agents send a heartbeat; three missing ones end the link.
    pub heartbeat: Duration,
    /// Directory of the store.
    pub store_dir: PathBuf,
}

impl QueueConfig {
    /// A queue without templates and quotas, and with the default profile alone.
    pub fn new(name: impl Into<String>, store_dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            core: CoreConfig::default(),
            templates: BTreeMap::new(),
            profiles: BTreeMap::from([(DEFAULT_PROFILE.to_owned(), Profile::default())]),
            pools: BTreeSet::new(),
            gpu_pools: Vec::new(),
            namespaced: false,
            keep_for: Duration::from_hours(1),
            max_results: 2_000_000,
            max_result_bytes: 64 << 30,
            max_buffered_bytes: 256 << 20,
            heartbeat: Duration::from_secs(2),
            store_dir: store_dir.into(),
        }
    }
}

/// What a trajectory's sandbox looks like.
#[derive(Debug, Clone, Default)]
pub struct Template {
    /// As the agent is told it.
    pub spec: pb::SandboxSpec,
    /// Sandboxes kept started and unused on each node.
    pub warm: u32,
}

/// What actions of one sort need, where a request does not say.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Allowed CPU units.
    pub units: UnitChoice,
    /// Quota taken while it runs.
    pub quota: BTreeMap<QuotaName, u32>,
    /// Running time after which it is killed.
    pub timeout: Duration,
    /// Time from submission after which it fails if it has not started.
    pub queue_deadline: Option<Duration>,
    /// Bytes of output kept of each of head and tail.
    pub output_limit: u64,
    /// What is known of durations before any was measured.
    pub prior: Prior,
    /// Cores may change while it runs.
    pub malleable: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            units: UnitChoice::fixed(Units::cores(1)),
            quota: BTreeMap::new(),
            timeout: Duration::from_mins(10),
            queue_deadline: None,
            output_limit: 1 << 20,
            prior: Prior::default(),
            malleable: false,
        }
    }
}
