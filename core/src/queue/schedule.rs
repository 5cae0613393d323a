//! One scheduling round: quotas, then nodes, then trajectories that wait for one.

use std::collections::BTreeSet;

use super::action::{Running, Stage};
use super::command::{NodeOrder, Outcome, Run};
use super::permit::Claim;
use super::policy::Decision;
use super::{Queue, Seq};
use crate::cpu::{CoreSet, CpuGrant};
use crate::fault::{Fault, FaultKind};
use crate::ids::NodeId;
use crate::resources::Units;

impl Queue {
    /// Serves every line in which something changed. A quota's line and a node's
    /// line are first come first served each; neither stops the other.
    pub(super) fn schedule(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            if let Some(quota) = self.dirty.quotas.pop_first() {
                self.serve_quota(&quota);
            } else if let Some(node) = self.dirty.nodes.pop_first() {
                self.serve_node(&node);
                touched.insert(node);
            } else if std::mem::take(&mut self.dirty.opening) {
                self.serve_opening();
            } else {
                break;
            }
        }
        // Shares leave a core before anybody is started on it.
        let starts = std::mem::take(&mut self.dirty.starts);
        for node in touched {
            self.resize_shares(&node, &starts);
        }
        for seq in starts {
            self.order_start(seq);
        }
    }

    fn serve_opening(&mut self) {
        while let Some((_, id)) = self.opening.first(&self.memory_share, self.now) {
            let Some(trajectory) = self.trajectories.get(&id) else { return };
            if let Some(node) = self.choose_node(trajectory) {
                self.place(&id, &node);
            } else if let Some(fault) = self.never_fits(trajectory) {
                self.sandbox_gone(&id, &fault);
            } else {
                return;
            }
        }
    }

    fn serve_node(&mut self, id: &NodeId) {
        while let Some(node) = self.nodes.get(id).filter(|node| node.connected) {
            let Some(seq) = node.line.first(&self.cpu_share, self.now) else { return };
            let Some(action) = self.actions.get(&seq) else { return };
            let trajectory = self.trajectories.get(&action.trajectory);
            let held = trajectory.is_some_and(|t| t.cores.is_some());
            match self.config.policy.decide(&action.cost.cpu, &node.cpu, held) {
                Decision::Start(units) => {
                    if self.take_quota(seq) {
                        self.grant(id, seq, units);
                        self.dirty.starts.insert(seq);
                    }
                }
                Decision::Wait => {
                    let least = action.cost.cpu.smallest();
                    let most = node.cpu.exclusive_capacity();
                    if least.is_share() || least.ceil() as usize <= most {
                        return;
                    }
                    let message = format!(
                        "its smallest CPU units are {least}, but node `{id}` gives {most} exclusive cores: allow fewer"
                    );
                    let fault = Fault::new(FaultKind::User, "ExceedsNode", message);
                    self.end_action(seq, Outcome::Failed(fault));
                }
            }
        }
    }

    /// Takes what quota the action still lacks, in the order of names. Where there
    /// is no room it leaves the node's line for the quota's, and comes back to its
    /// old place when it holds that quota: cores never wait for a quota.
    fn take_quota(&mut self, seq: Seq) -> bool {
        let (now, node) = (self.now, self.node_of(seq));
        let Some(action) = self.actions.get_mut(&seq) else { return false };
        for (name, amount) in &action.cost.quota {
            if action.holds.contains_key(name) {
                continue;
            }
            let Some(line) = self.quotas.get_mut(name) else { continue };
            if line.claims.is_empty() && line.quota.try_take(*amount, now) {
                action.holds.insert(name.clone(), *amount);
                continue;
            }
            line.claims.insert(seq, Claim::Action(*amount));
            if let Some(state) = node.and_then(|node| self.nodes.get_mut(&node)) {
                state.line.remove(&action.job, &seq);
            }
            action.stage = Stage::Claiming(name.clone());
            self.dirty.quotas.insert(name.clone());
            return false;
        }
        true
    }

    fn grant(&mut self, id: &NodeId, seq: Seq, units: Units) {
        let Some(action) = self.actions.get_mut(&seq) else { return };
        let Some(node) = self.nodes.get_mut(id) else { return };
        let for_life = self.trajectories.get(&action.trajectory).and_then(|t| t.held_cores());
        let (grant, cores) = if let Some(cores) = for_life {
            (None, cores.clone())
        } else {
            let grant = node.cpu.grant(units);
            let cores = match &grant {
                Some(CpuGrant::Exclusive(cores)) => cores.clone(),
                Some(CpuGrant::Share(_)) => node.cpu.shared().clone(),
                None => CoreSet::new(),
            };
            (grant, cores)
        };
        node.line.remove(&action.job, &seq);
        node.running.insert(seq);
        action.attempts += 1;
        self.waiting -= 1;
        self.cpu_share.take(&action.job, u64::from(units.micros()), self.now);
        let run = Run { attempt: action.attempts, units, cores: cores.clone(), granted: self.now };
        action.stage = Stage::Running(Running { run, grant, told: cores, started: false });
    }

    fn order_start(&mut self, seq: Seq) {
        let Some(node) = self.node_of(seq) else { return };
        let Some(action) = self.actions.get(&seq) else { return };
        let Stage::Running(running) = &action.stage else { return };
        let order = NodeOrder::Start {
            action: action.id.clone(),
            attempt: running.run.attempt,
            units: running.run.units,
            cores: running.told.clone(),
        };
        self.order(&node, order);
    }

    /// Tells the agent where the shares of a node run, when that has changed.
    fn resize_shares(&mut self, id: &NodeId, starts: &BTreeSet<Seq>) {
        let Some(node) = self.nodes.get(id) else { return };
        let shared = node.cpu.shared();
        let mut orders = Vec::new();
        for seq in &node.running {
            let Some(action) = self.actions.get_mut(seq) else { continue };
            let Stage::Running(running) = &mut action.stage else { continue };
            if matches!(running.grant, Some(CpuGrant::Share(_))) && running.told != *shared {
                running.told = shared.clone();
                if starts.contains(seq) {
                    running.run.cores = shared.clone();
                } else {
                    orders.push((action.id.clone(), running.run.units));
                }
            }
        }
        let cores = shared.clone();
        for (action, units) in orders {
            self.order(id, NodeOrder::Resize { action, units, cores: cores.clone() });
        }
    }
}
