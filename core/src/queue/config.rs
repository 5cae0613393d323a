//! What the queue is made of.

use std::collections::BTreeMap;
use std::time::Duration;

use super::policy::Policy;
use crate::ids::{JobId, QuotaName};
use crate::quota::QuotaLimit;

/// Settings of one [`super::Queue`].
#[derive(Debug, Clone)]
pub struct Config {
    /// How units are chosen and cores are held.
    pub policy: Policy,
    /// Quotas by name.
    pub quotas: BTreeMap<QuotaName, QuotaLimit>,
    /// Fair-share weight of each job; others have weight 1.
    pub weights: BTreeMap<JobId, u32>,
    /// Actions and permits that may wait at once; more are refused.
    pub max_waiting: usize,
    /// Trajectories that may be open or wait to be; more are refused.
    pub max_trajectories: usize,
    /// Cores of each node that are kept for shares; more are taken as needed.
    pub shared_cores: u16,
    /// How long a node may be away before its trajectories are given up.
    pub node_grace: Duration,
    /// How long after the first node the others may take to come: until then nothing
    /// is refused for being larger than every node.
    pub nodes_settle: Duration,
    /// How often an action is tried that was surely not started.
    pub max_attempts: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            quotas: BTreeMap::new(),
            weights: BTreeMap::new(),
            max_waiting: 100_000,
            max_trajectories: 20_000,
            shared_cores: 0,
            node_grace: Duration::from_mins(1),
            nodes_settle: Duration::from_secs(5),
            max_attempts: 3,
        }
    }
}
