//! One scheduling round: quotas, then nodes, then trajectories that wait for one.

use std::collections::BTreeSet;

use super::action::{Action, Place, Running, Stage};
use super::command::{NodeOrder, Run};
use super::held::Held;
use super::permit::Claim;
use super::policy::Decision;
use super::{Queue, Seq};
use crate::cpu::{CoreSet, CpuGrant};
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
        // Cores are taken away first, and only then given.
        let starts = std::mem::take(&mut self.dirty.starts);
        let resized = std::mem::take(&mut self.dirty.resized);
        for node in touched {
            self.tell_cores(&node, &starts, &resized);
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
        if self.config.policy.is_elastic() {
            return self.serve_line(id);
        }
        while let Some(node) = self.nodes.get(id).filter(|node| node.connected) {
            let Some(Place { seq, .. }) = node.line.first(&self.cpu_share, self.now) else {
                return;
            };
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
                    self.exceeds_node(id, seq);
                }
            }
        }
    }

    /// Takes what quota the action still lacks, in the order of names. Where there
    /// is no room it leaves the node's line for the quota's, and comes back to its
    /// old place when it holds that quota: cores never wait for a quota.
    pub(super) fn take_quota(&mut self, seq: Seq) -> bool {
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
            if let Some(state) = node.and_then(|node| self.nodes.get_mut(&node))
                && let Some(place) = &action.place
            {
                state.line.remove(&action.job, place);
            }
            action.stage = Stage::Claiming(name.clone());
            self.dirty.quotas.insert(name.clone());
            return false;
        }
        true
    }

    pub(super) fn grant(&mut self, id: &NodeId, seq: Seq, units: Units) {
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
        if let Some(place) = &action.place {
            node.line.remove(&action.job, place);
        }
        let malleable = action.foresight.malleable;
        let held = Held::new(&action.work, units, action.submitted, malleable, self.now);
        node.running.insert(seq, held);
        action.attempts += 1;
        self.waiting -= 1;
        self.cpu_share.take(&action.job, u64::from(units.micros()), self.now);
        let run = Run { attempt: action.attempts, units, cores: cores.clone(), granted: self.now };
        let (told, started, steady) = (cores, false, true);
        action.stage = Stage::Running(Running { run, grant, units, told, started, steady });
    }

    fn order_start(&mut self, seq: Seq) {
        let Some(node) = self.node_of(seq) else { return };
        let Some((id, running)) = self.actions.get_mut(&seq).and_then(Action::running_of) else {
            return;
        };
        running.run.units = running.units;
        running.run.cores = running.told.clone();
        let order = NodeOrder::Start {
            action: id.clone(),
            attempt: running.run.attempt,
            units: running.units,
            cores: running.told.clone(),
        };
        self.order(&node, order);
    }

    /// Tells the agent which cores the actions of a node have now, where that has changed.
    /// Actions that give up cores come first, then shares, which may move to those, then
    /// actions that get more: after each order no core is held twice.
    fn tell_cores(&mut self, id: &NodeId, starts: &BTreeSet<Seq>, resized: &BTreeSet<Seq>) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let shared = node.cpu.shared().clone();
        let moved = node.told_shared.as_ref() != Some(&shared);
        let changed = |seq: &Seq, held: &Held| {
            if held.units.is_share() { moved } else { resized.contains(seq) }
        };
        if !moved && resized.is_empty() {
            return;
        }
        let changed: Vec<Seq> = node
            .running
            .iter()
            .filter(|(seq, held)| changed(seq, held))
            .map(|(seq, _)| *seq)
            .collect();
        node.told_shared = Some(shared.clone());
        let mut orders = [Vec::new(), Vec::new(), Vec::new()];
        for seq in changed {
            let Some((action, running)) = self.actions.get_mut(&seq).and_then(Action::running_of)
            else {
                continue;
            };
            let (cores, turn) = match &running.grant {
                Some(CpuGrant::Share(_)) => (&shared, 1),
                Some(CpuGrant::Exclusive(cores)) if cores.len() < running.told.len() => (cores, 0),
                Some(CpuGrant::Exclusive(cores)) => (cores, 2),
                None => continue,
            };
            if running.told == *cores {
                continue;
            }
            running.told = cores.clone();
            // One that starts now is told with its start.
            if !starts.contains(&seq) {
                let (action, units, cores) = (action.clone(), running.units, cores.clone());
                orders[turn].push(NodeOrder::Resize { action, units, cores });
            }
        }
        for order in orders.into_iter().flatten() {
            self.order(id, order);
        }
    }
}
