//! How the queue and an agent agree again after either was away.

use std::collections::{BTreeMap, BTreeSet};

use super::action::{Action, Running, Stage};
use super::command::{Command, NodeOrder, Outcome, Run};
use super::event::LiveAction;
use super::held::Held;
use super::trajectory::State;
use super::{Queue, Seq};
use crate::cpu::{CoreSet, CpuGrant};
use crate::fault::{Fault, FaultKind};
use crate::ids::{ActionId, NodeId, TrajectoryId};

impl Queue {
    /// Orders on the old link may have been lost: cores are where the agent says.
    pub(super) fn believe_cores(&mut self, id: &NodeId, listed: &[LiveAction]) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        for live in listed {
            let seq = self.action_ids.get(&live.action).copied();
            let Some(action) = seq.and_then(|seq| self.actions.get_mut(&seq)) else { continue };
            let Action { stage: Stage::Running(running), job, .. } = action else { continue };
            if running.run.attempt != live.attempt {
                continue;
            }
            running.told = live.cores.clone();
            let before = std::mem::replace(&mut running.units, live.units);
            self.cpu_share.give_back(job, u64::from(before.micros()), self.now);
            self.cpu_share.take(job, u64::from(live.units.micros()), self.now);
            if let Some(held) = seq.and_then(|seq| node.running.get_mut(&seq)) {
                held.resize(live.units, self.now);
            }
        }
    }

    /// What was granted before stays granted.
    pub(super) fn hold_cores_again(&mut self, id: &NodeId, listed: &[LiveAction]) {
        let units = self.static_units();
        let live: BTreeMap<&TrajectoryId, &CoreSet> =
            listed.iter().map(|live| (&live.trajectory, &live.cores)).collect();
        let Some(node) = self.nodes.get_mut(id) else { return };
        for id in &node.trajectories {
            let Some(trajectory) = self.trajectories.get_mut(id) else { continue };
            let cores = trajectory.held_cores().or(live.get(id).copied());
            let adopted = units.zip(cores).map(|(units, cores)| node.cpu.adopt(units, cores));
            trajectory.cores = adopted;
        }
        // After a restart of the queue, cores on which nothing runs are not known.
        for id in &node.trajectories {
            let Some(trajectory) = self.trajectories.get_mut(id) else { continue };
            if trajectory.cores.is_none() {
                trajectory.cores = units.and_then(|units| node.cpu.grant(units));
            }
        }
        // Exclusive cores first: shares can move, they cannot. And of those first the ones
        // on which something runs: one that is still to be started may have been granted
        // cores that another was told to leave, but never heard of it.
        let listed: BTreeSet<&ActionId> = listed.iter().map(|live| &live.action).collect();
        let mut without = Vec::new();
        for (shares, runs) in [(false, true), (false, false), (true, true), (true, false)] {
            for seq in node.running.keys() {
                let Some(action) = self.actions.get_mut(seq) else { continue };
                let Stage::Running(running) = &mut action.stage else { continue };
                if running.grant.is_none()
                    || running.units.is_share() != shares
                    || listed.contains(&action.id) != runs
                {
                    continue;
                }
                let grant = node.cpu.adopt(running.units, &running.told);
                let all = match &grant {
                    CpuGrant::Exclusive(cores) => cores.len() >= running.units.ceil() as usize,
                    CpuGrant::Share(_) => true,
                };
                running.grant = Some(grant);
                // What was started or cancelled and is not listed is about to end.
                if !(all || runs || running.started || action.cancelled) {
                    without.push(*seq);
                }
            }
        }
        for seq in without {
            self.release(seq);
            self.waiting += 1;
            self.enter_line(seq);
        }
    }

    pub(super) fn reconcile_sandboxes(&mut self, id: &NodeId, listed: &[TrajectoryId]) {
        let listed: BTreeSet<&TrajectoryId> = listed.iter().collect();
        let known: Vec<TrajectoryId> = self
            .nodes
            .get(id)
            .map(|n| n.trajectories.iter().cloned().collect())
            .unwrap_or_default();
        for trajectory in &known {
            let Some(state) = self.trajectories.get(trajectory).map(|t| &t.state) else { continue };
            match (state, listed.contains(trajectory)) {
                (State::Opening { .. } | State::Recovering { .. }, true) => {
                    self.sandbox_ready(trajectory);
                }
                (State::Opening { .. } | State::Recovering { ready: false, .. }, false) => {
                    self.open_again(id, trajectory);
                    self.order(id, NodeOrder::OpenSandbox(trajectory.clone()));
                }
                (State::Closing { .. }, true) => {
                    self.order(id, NodeOrder::CloseSandbox(trajectory.clone()));
                }
                (State::Ready { .. }, true) | (State::Waiting, _) => {}
                (State::Ready { .. } | State::Recovering { .. } | State::Closing { .. }, false) => {
                    let message =
                        format!("the sandbox is no longer on node `{id}`: open a new one");
                    let fault = Fault::new(FaultKind::Infrastructure, "SandboxLost", message);
                    self.sandbox_gone(trajectory, &fault);
                }
            }
        }
        for trajectory in listed {
            if !known.contains(trajectory) {
                self.order(id, NodeOrder::CloseSandbox(trajectory.clone()));
            }
        }
    }

    /// Its sandbox was not ready before and is not there now.
    fn open_again(&mut self, id: &NodeId, trajectory: &TrajectoryId) {
        if let Some(trajectory) = self.trajectories.get_mut(trajectory) {
            trajectory.state = State::Opening { node: id.clone() };
        }
    }

    pub(super) fn reconcile_actions(&mut self, id: &NodeId, listed: Vec<LiveAction>) {
        let listed: BTreeMap<ActionId, LiveAction> =
            listed.into_iter().map(|live| (live.action.clone(), live)).collect();
        let running: Vec<Seq> =
            self.nodes.get(id).map(|n| n.running.keys().copied().collect()).unwrap_or_default();
        for seq in running {
            self.reconcile_running(id, seq, &listed);
        }
        let (shares, exclusive): (Vec<_>, Vec<_>) =
            listed.into_values().partition(|live| live.units.is_share());
        for live in exclusive.into_iter().chain(shares) {
            let seq = self.action_ids.get(&live.action).copied();
            let here = seq.filter(|seq| {
                self.node_of(*seq).as_ref() == Some(id)
                    && self.actions.get(seq).is_some_and(|a| a.trajectory == live.trajectory)
            });
            match here {
                Some(seq) => self.adopt(id, seq, live),
                // Its end is durable, or it was never accepted.
                None => self.order(id, NodeOrder::Kill(live.action)),
            }
        }
    }

    /// An action that was granted before the link was lost.
    fn reconcile_running(
        &mut self,
        id: &NodeId,
        seq: Seq,
        listed: &BTreeMap<ActionId, LiveAction>,
    ) {
        let Some(action) = self.actions.get(&seq) else { return };
        let Stage::Running(running) = &action.stage else { return };
        let known = listed.get(&action.id).is_some_and(|live| live.attempt == running.run.attempt);
        if known && action.cancelled {
            let order = NodeOrder::Kill(action.id.clone());
            self.order(id, order);
        } else if known {
        } else if action.cancelled {
            self.end_action(seq, Outcome::Cancelled);
        } else if running.started {
            let message = format!("node `{id}` lost the action: it may have run in part");
            let fault = Fault::new(FaultKind::Infrastructure, "ActionLost", message);
            self.end_action(seq, Outcome::Failed(fault));
        } else {
            // Ordered again, after shares have left its cores.
            self.dirty.starts.insert(seq);
        }
    }

    /// An action that runs on a node although it waits here: the queue was
    /// restarted after it was started.
    fn adopt(&mut self, id: &NodeId, seq: Seq, live: LiveAction) {
        let now = self.now;
        let Some(action) = self.actions.get_mut(&seq) else { return };
        match &action.stage {
            Stage::Running(_) => return,
            Stage::Claiming(quota) => {
                let quota = quota.clone();
                if let Some(line) = self.quotas.get_mut(&quota) {
                    line.claims.remove(&seq);
                }
            }
            Stage::Parked | Stage::Lined => {}
        }
        let Some(node) = self.nodes.get_mut(id) else { return };
        if let Some(place) = &action.place {
            node.line.remove(&action.job, place);
        }
        let malleable = action.foresight.malleable;
        let held = Held::new(&action.work, live.units, action.submitted, malleable, now);
        node.running.insert(seq, held);
        for (name, amount) in &action.cost.quota {
            if action.holds.insert(name.clone(), *amount).is_none()
                && let Some(line) = self.quotas.get_mut(name)
            {
                line.quota.take(*amount, now);
            }
        }
        let held_for_life =
            self.trajectories.get(&live.trajectory).is_some_and(|t| t.cores.is_some());
        let grant = (!held_for_life).then(|| node.cpu.adopt(live.units, &live.cores));
        let run = Run {
            attempt: live.attempt,
            units: live.units,
            cores: live.cores.clone(),
            granted: now,
        };
        action.attempts = live.attempt;
        action.stage = Stage::Running(Running {
            run: run.clone(),
            grant,
            units: live.units,
            told: live.cores,
            started: !live.ended,
            // It may have been resized before.
            steady: !malleable,
        });
        self.waiting -= 1;
        self.cpu_share.take(&action.job, u64::from(live.units.micros()), now);
        // Of one that has ended, the report of its end says whether it ever started.
        if !live.ended {
            let action = action.id.clone();
            self.emit(Command::ActionStarted { action, node: id.clone(), run });
        }
    }
}
