//! Nodes: what they have, how they come and go, and what their agents report.

use std::collections::{BTreeMap, BTreeSet};

use super::action::{Place, Report, Waiter};
use super::command::NodeOrder;
use super::crowd::Crowd;
use super::event::{NodeReport, NodeUp};
use super::held::Held;
use super::line::Line;
use super::policy::Policy;
use super::{Queue, Seq, Timer};
use crate::cpu::{CoreSet, NodeCpu};
use crate::elastic::Elastic;
use crate::fault::{Fault, FaultKind};
use crate::ids::{NodeId, TrajectoryId};
use crate::time::Time;

/// A node, connected or expected back.
#[derive(Debug)]
pub(super) struct Node {
    /// The latest link's.
    pub(super) epoch: u64,
    pub(super) connected: bool,
    /// When it is given up, while it is away.
    pub(super) given_up: Option<Time>,
    pub(super) cpu: NodeCpu,
    /// Bytes that sandboxes may hold.
    pub(super) memory: u64,
    memory_held: u64,
    /// Waiting actions.
    pub(super) line: Line<Place, Waiter>,
    /// Granted actions.
    pub(super) running: BTreeMap<Seq, Held>,
    /// Who gets what under the elastic policy.
    pub(super) elastic: Elastic,
    pub(super) crowd: Crowd,
    /// When its line is looked at again although nothing has happened.
    pub(super) wakes: Option<Time>,
    /// Where the agent was told that shares run; `None`: not since its link came up.
    pub(super) told_shared: Option<CoreSet>,
    /// Trajectories that hold memory here.
    pub(super) trajectories: BTreeSet<TrajectoryId>,
}

impl Node {
    /// A node that is expected but was never seen.
    pub(super) fn absent(policy: Policy) -> Self {
        Self {
            epoch: 0,
            connected: false,
            given_up: None,
            cpu: NodeCpu::default(),
            memory: 0,
            memory_held: 0,
            line: Line::default(),
            running: BTreeMap::new(),
            elastic: policy.elastic(),
            crowd: Crowd::default(),
            wakes: None,
            told_shared: None,
            trajectories: BTreeSet::new(),
        }
    }

    pub(super) fn memory_held(&self) -> u64 {
        self.memory_held
    }

    pub(super) fn memory_free(&self) -> u64 {
        self.memory.saturating_sub(self.memory_held)
    }

    pub(super) fn hold(&mut self, trajectory: &TrajectoryId, memory: u64, now: Time) {
        if self.trajectories.insert(trajectory.clone()) {
            self.memory_held += memory;
            self.crowd.came(now);
        }
    }

    /// `acted`: an action of it was in the line.
    pub(super) fn let_go(&mut self, trajectory: &TrajectoryId, memory: u64, acted: bool) {
        if self.trajectories.remove(trajectory) {
            self.memory_held -= memory;
            if !acted {
                self.crowd.is_known();
            }
        }
    }
}

impl Queue {
    pub(super) fn node_up(&mut self, up: NodeUp) {
        let policy = self.config.policy;
        let node = self.nodes.entry(up.node.clone()).or_insert_with(|| Node::absent(policy));
        if up.epoch <= node.epoch {
            return;
        }
        if self.settled.is_none() {
            let at = self.now + self.config.nodes_settle;
            self.settled = Some(at);
            self.timers.insert((at, Timer::NodesSettled));
        }
        node.epoch = up.epoch;
        node.connected = true;
        node.given_up = None;
        node.memory = up.memory;
        node.cpu = NodeCpu::new(up.numa);
        node.told_shared = None;
        self.dirty.opening = true;
        self.dirty.nodes.insert(up.node.clone());

        self.believe_cores(&up.node, &up.actions);
        self.hold_cores_again(&up.node, &up.actions);
        self.reconcile_sandboxes(&up.node, &up.sandboxes);
        self.reconcile_actions(&up.node, up.actions);
        // What runs comes first: cores are kept for shares as they are free.
        if let Some(node) = self.nodes.get_mut(&up.node) {
            node.cpu.keep_shared(usize::from(self.config.shared_cores));
        }
    }

    pub(super) fn node_down(&mut self, id: &NodeId, epoch: u64) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.connected && node.epoch == epoch {
            node.connected = false;
            self.expect_back(id);
        }
    }

    /// Gives an absent node its time to come back.
    pub(super) fn expect_back(&mut self, id: &NodeId) {
        let at = self.now + self.config.node_grace;
        if let Some(node) = self.nodes.get_mut(id) {
            node.given_up = Some(at);
            self.timers.insert((at, Timer::NodeGrace(id.clone())));
        }
    }

    pub(super) fn grace_passed(&mut self, id: &NodeId) {
        let late = |node: &&Node| node.given_up.is_some_and(|at| at <= self.now);
        let Some(node) = self.nodes.get(id).filter(late) else { return };
        let grace = self.config.node_grace.as_secs_f64();
        let message =
            format!("node `{id}` has been away for {grace:.0} s: its sandboxes are given up");
        let fault = Fault::new(FaultKind::Infrastructure, "NodeLost", message);
        let trajectories: Vec<TrajectoryId> = node.trajectories.iter().cloned().collect();
        for trajectory in trajectories {
            self.sandbox_gone(&trajectory, &fault);
        }
        self.nodes.remove(id);
        self.dirty.nodes.remove(id);
    }

    pub(super) fn report(&mut self, id: &NodeId, epoch: u64, report: NodeReport) {
        let current = self.nodes.get(id).is_some_and(|node| node.connected && node.epoch == epoch);
        if !current {
            return;
        }
        match report {
            NodeReport::SandboxReady(trajectory) if self.is_on(&trajectory, id) => {
                self.sandbox_ready(&trajectory);
            }
            NodeReport::SandboxFailed(trajectory, fault) if self.is_on(&trajectory, id) => {
                self.sandbox_gone(&trajectory, &fault);
            }
            NodeReport::SandboxClosed(trajectory) if self.is_on(&trajectory, id) => {
                let message = "the sandbox was removed on its node".to_owned();
                let fault = Fault::new(FaultKind::Infrastructure, "SandboxLost", message);
                self.sandbox_gone(&trajectory, &fault);
            }
            NodeReport::SandboxReady(trajectory) => {
                self.order(id, NodeOrder::CloseSandbox(trajectory));
            }
            NodeReport::SandboxFailed(..) | NodeReport::SandboxClosed(_) => {}
            NodeReport::ActionStarted { action, attempt } => {
                self.action_started(id, &action, attempt);
            }
            NodeReport::ActionEnded { action, attempt, end, not_started, usage } => {
                self.action_ended(id, &action, attempt, Report { end, not_started, usage });
            }
        }
    }

    fn is_on(&self, trajectory: &TrajectoryId, node: &NodeId) -> bool {
        self.trajectories.get(trajectory).and_then(|t| t.node()) == Some(node)
    }
}
