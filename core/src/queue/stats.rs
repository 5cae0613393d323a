//! What the queue holds at a moment, for people and metrics.

use super::Queue;
use crate::ids::{NodeId, QuotaName};

/// A snapshot of a [`Queue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Actions and permits that wait.
    pub waiting: usize,
    /// Actions that were granted and have not ended.
    pub running: usize,
    /// Trajectories that are open, or on their way in or out.
    pub trajectories: usize,
    /// Every node, by name.
    pub nodes: Vec<NodeStats>,
    /// Every quota, by name.
    pub quotas: Vec<QuotaStats>,
}

/// A node's part of [`Stats`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStats {
    /// Which node.
    pub node: NodeId,
    /// Its agent is linked.
    pub connected: bool,
    /// Cores that actions may have.
    pub cores: usize,
    /// Cores held exclusively.
    pub exclusive: usize,
    /// Cores under shares.
    pub shared: usize,
    /// Bytes that sandboxes may hold.
    pub memory: u64,
    /// Bytes held.
    pub memory_held: u64,
    /// Trajectories that hold memory there.
    pub sandboxes: usize,
}

/// A quota's part of [`Stats`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaStats {
    /// Which quota.
    pub quota: QuotaName,
    /// How much is held.
    pub held: u32,
    /// How many wait for it.
    pub waiting: usize,
}

impl Queue {
    /// What the queue holds now. Costs a pass over nodes and quotas.
    pub fn stats(&self) -> Stats {
        let nodes = self.nodes.iter().map(|(id, node)| NodeStats {
            node: id.clone(),
            connected: node.connected,
            cores: node.cpu.capacity(),
            exclusive: node.cpu.exclusive(),
            shared: node.cpu.shared().len(),
            memory: node.memory,
            memory_held: node.memory_held(),
            sandboxes: node.trajectories.len(),
        });
        let quotas = self.quotas.iter().map(|(name, line)| QuotaStats {
            quota: name.clone(),
            held: line.quota.held(),
            waiting: line.claims.len(),
        });
        Stats {
            waiting: self.waiting,
            running: self.nodes.values().map(|node| node.running.len()).sum(),
            trajectories: self.trajectories.len(),
            nodes: nodes.collect(),
            quotas: quotas.collect(),
        }
    }
}
