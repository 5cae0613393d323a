//! What running queues and kubelets said last, kept in memory between reconciliations.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rollwright_crds::pool::Resident;

use crate::pool::Kubelet;

/// What a queue holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Actions accepted and not started.
    pub waiting: u32,
    /// Actions that run.
    pub running: u32,
    /// Trajectories open.
    pub trajectories: u32,
    /// Its nodes.
    pub nodes: Vec<NodeSnapshot>,
    /// Limits: name, taken, waiting.
    pub quotas: Vec<(String, u32, u32)>,
    /// Its pools of GPUs.
    pub gpu_pools: Vec<GpuPoolSnapshot>,
}

/// What a queue holds of a pool of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPoolSnapshot {
    /// The pool.
    pub pool: String,
    /// Nodes whose agents offer their GPUs.
    pub nodes: u32,
    /// Their GPUs.
    pub gpus: u32,
    /// Those of them that fell off.
    pub lost: u32,
    /// Free chunks of 1, 2, 4 and 8 GPUs.
    pub free_chunks: [u32; 4],
    /// Share of free GPUs outside the largest free chunk of their node, in thousandths.
    pub fragmentation: u32,
    /// Engines that are on GPUs.
    pub residents: Vec<Resident>,
    /// Its reward services, by `namespace.name`.
    pub services: BTreeMap<String, ServiceSnapshot>,
}

/// What a queue holds of a reward service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSnapshot {
    /// Calls that wait.
    pub waiting: u32,
    /// Calls that run.
    pub running: u32,
    /// Engines on GPUs.
    pub residents: u32,
    /// Engines launched and woken.
    pub restores: u64,
    /// Its last failure; empty: none, or it works again.
    pub trouble: String,
}

/// What a queue holds of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// The node.
    pub node: String,
    /// Whether its agent's link is up.
    pub connected: bool,
    /// Whether it offers cores.
    pub has_cores: bool,
    /// Cores granted, exclusively or to shares.
    pub cores: u32,
    /// Memory reserved for open trajectories, in bytes.
    pub memory: u64,
}

impl QueueSnapshot {
    /// One of its pools of GPUs.
    pub fn gpu_pool(&self, name: &str) -> Option<&GpuPoolSnapshot> {
        self.gpu_pools.iter().find(|pool| pool.pool == name)
    }

    /// Agents with a live link.
    pub fn agents(&self) -> u32 {
        let connected = self.nodes.iter().filter(|node| node.connected).count();
        u32::try_from(connected).unwrap_or(u32::MAX)
    }

    /// Those of them that offer cores. Nodes of GPUs have conditions of their services.
    pub fn agents_with_cores(&self) -> u32 {
        let connected = self.nodes.iter().filter(|node| node.connected && node.has_cores).count();
        u32::try_from(connected).unwrap_or(u32::MAX)
    }

    /// Nobody has dialled yet, or nobody who offers the GPUs of a pool.
    pub fn waits_for_agents(&self) -> bool {
        self.agents() == 0 || self.gpu_pools.iter().any(|pool| pool.nodes == 0)
    }
}

/// The last word of each of something; as many as there are of them.
#[derive(Debug)]
pub struct Latest<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq, V> Latest<K, V> {
    /// What it said last.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// It says this.
    pub fn put(&self, key: K, value: V) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(value));
    }

    /// It is gone, or says nothing.
    pub fn remove(&self, key: &K) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What is known beside the API server.
#[derive(Debug, Default)]
pub struct Observed {
    /// Of queues, by namespace and name.
    pub queues: Latest<(String, String), QueueSnapshot>,
    /// When each queue is to be asked again.
    pub asked: Latest<(String, String), Instant>,
    /// Nodes that are not told of a queue (`namespace.queue`), as their Secret is full.
    pub left_out: Latest<(), BTreeMap<String, u32>>,
    /// Of kubelets, by node. Empty unless kubelets may be asked.
    pub kubelets: Latest<String, Kubelet>,
}
