//! The life of a trajectory's sandbox: waits for a node, opens, is ready, closes.

use std::collections::BTreeSet;

use super::action::Stage;
use super::command::{Command, NodeOrder, Outcome};
use super::event::{OpenTrajectory, Placed};
use super::node::Node;
use super::policy::Policy;
use super::{Queue, Seq, Timer};
use crate::cpu::{CoreSet, CpuGrant};
use crate::fault::{Fault, FaultKind};
use crate::ids::{JobId, NodeId, TrajectoryId};
use crate::resources::Units;
use crate::time::Time;

/// A trajectory that is open, or on its way in or out.
#[derive(Debug)]
pub(super) struct Trajectory {
    pub(super) seq: Seq,
    pub(super) job: JobId,
    /// Bytes held on its node until it ends.
    pub(super) memory: u64,
    pub(super) min_cores: u16,
    pub(super) opened: Time,
    pub(super) placed: Time,
    pub(super) deadline: Option<Time>,
    pub(super) state: State,
    /// Its live actions.
    pub(super) actions: BTreeSet<Seq>,
    /// Cores held for its whole life, under the static policy.
    pub(super) cores: Option<CpuGrant>,
    /// An action of it was in its node's line.
    pub(super) acted: bool,
}

/// Where a trajectory stands.
#[derive(Debug)]
pub(super) enum State {
    /// Waits for a node.
    Waiting,
    /// Its sandbox was ordered.
    Opening { node: NodeId },
    /// Placed before the queue was restarted: its node has not come back yet.
    Recovering { node: NodeId, ready: bool },
    /// Its sandbox runs.
    Ready { node: NodeId },
    /// Its sandbox is being removed; the fault is what its caller will be told.
    Closing { node: NodeId, fault: Option<Fault> },
}

impl Trajectory {
    pub(super) fn node(&self) -> Option<&NodeId> {
        match &self.state {
            State::Waiting => None,
            State::Opening { node }
            | State::Recovering { node, .. }
            | State::Ready { node }
            | State::Closing { node, .. } => Some(node),
        }
    }

    /// The cores that it holds for life, under the static policy.
    pub(super) fn held_cores(&self) -> Option<&CoreSet> {
        match &self.cores {
            Some(CpuGrant::Exclusive(cores)) => Some(cores),
            Some(CpuGrant::Share(_)) | None => None,
        }
    }
}

impl Queue {
    pub(super) fn open(&mut self, open: OpenTrajectory) {
        if self.trajectories.contains_key(&open.trajectory) {
            return;
        }
        if open.placed.is_none() && self.trajectories.len() >= self.config.max_trajectories {
            let most = self.config.max_trajectories;
            let message = format!("{most} trajectories are open already: close some, or try later");
            let fault = Fault::new(FaultKind::Infrastructure, "QueueFull", message);
            let fault = Fault { retry_after: Some(super::permit::RETRY_AFTER), ..fault };
            self.emit(Command::TrajectoryRefused { trajectory: open.trajectory, fault });
            return;
        }
        let (id, seq, now) = (open.trajectory, self.take_seq(), self.now);
        let mut trajectory = Trajectory {
            seq,
            job: open.job,
            memory: open.memory,
            min_cores: open.min_cores,
            opened: now,
            placed: now,
            deadline: open.deadline,
            state: State::Waiting,
            actions: BTreeSet::new(),
            cores: None,
            acted: false,
        };
        self.memory_share.join(&trajectory.job, now);
        if let Some(at) = trajectory.deadline {
            self.timers.insert((at, Timer::OpenBy(id.clone())));
        }
        if let Some(Placed { node, ready }) = open.placed {
            self.memory_share.take(&trajectory.job, trajectory.memory, now);
            trajectory.state = State::Recovering { node: node.clone(), ready };
            if !self.nodes.contains_key(&node) {
                self.nodes.insert(node.clone(), Node::absent(self.config.policy));
                self.expect_back(&node);
            }
            if let Some(state) = self.nodes.get_mut(&node) {
                state.hold(&id, trajectory.memory, now);
            }
        } else {
            self.opening.insert(&trajectory.job, (seq, id.clone()), ());
            self.dirty.opening = true;
        }
        self.trajectories.insert(id, trajectory);
    }

    pub(super) fn close(&mut self, id: &TrajectoryId) {
        self.close_because(id, None);
    }

    fn close_because(&mut self, id: &TrajectoryId, fault: Option<Fault>) {
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        let node = match &trajectory.state {
            State::Closing { .. } => return,
            State::Waiting => None,
            State::Opening { node } | State::Recovering { node, .. } | State::Ready { node } => {
                Some(node.clone())
            }
        };
        let actions: Vec<Seq> = trajectory.actions.iter().copied().collect();
        for seq in actions {
            let waits =
                !matches!(self.actions.get(&seq).map(|a| &a.stage), Some(Stage::Running(_)));
            match &fault {
                Some(fault) if waits => self.end_action(seq, Outcome::Failed(fault.clone())),
                _ => self.cancel_seq(seq),
            }
        }
        let Some(node) = node else {
            self.end_trajectory(id, fault);
            return;
        };
        if let Some(trajectory) = self.trajectories.get_mut(id) {
            trajectory.state = State::Closing { node: node.clone(), fault };
        }
        self.order(&node, NodeOrder::CloseSandbox(id.clone()));
    }

    pub(super) fn open_deadline_passed(&mut self, id: &TrajectoryId) {
        let Some(trajectory) = self.trajectories.get(id) else { return };
        let what = match trajectory.state {
            State::Waiting => "no node had room for it",
            State::Opening { .. } | State::Recovering { .. } => "its sandbox was not ready",
            State::Ready { .. } | State::Closing { .. } => return,
        };
        let waited = self.now.since(trajectory.opened).as_secs_f64();
        let message = format!("{what} within its deadline ({waited:.1} s)");
        self.close_because(id, Some(Fault::new(FaultKind::Timeout, "OpenDeadline", message)));
    }

    /// Looks for a node: most free memory among those with room, enough cores and,
    /// under the static policy, enough free cores; ties go to the lowest name.
    pub(super) fn choose_node(&self, trajectory: &Trajectory) -> Option<NodeId> {
        let cores = usize::from(trajectory.min_cores.max(1));
        let fits = |node: &&Node| {
            node.connected
                && node.memory_free() >= trajectory.memory
                && node.cpu.capacity() >= cores
                && self.static_units().is_none_or(|units| node.cpu.fits(units))
        };
        let rooms = self.nodes.iter().filter(|(_, node)| fits(node));
        rooms
            .max_by_key(|(id, node)| (node.memory_free(), std::cmp::Reverse(*id)))
            .map(|(id, _)| id.clone())
    }

    /// Why no node could ever hold it, once all nodes had time to come and none is
    /// away.
    pub(super) fn never_fits(&self, trajectory: &Trajectory) -> Option<Fault> {
        let settled = self.settled.is_some_and(|at| at <= self.now);
        if !settled || self.nodes.values().any(|node| !node.connected) {
            return None;
        }
        let cores = usize::from(trajectory.min_cores.max(1))
            .max(self.static_units().map_or(0, |units| units.ceil() as usize));
        let cores_of = |node: &Node| match self.static_units() {
            Some(_) => node.cpu.exclusive_capacity(),
            None => node.cpu.capacity(),
        };
        let could = |node: &Node| node.memory >= trajectory.memory && cores_of(node) >= cores;
        let most_memory = self.nodes.values().map(|node| node.memory).max()?;
        let most_cores = self.nodes.values().map(cores_of).max()?;
        if self.nodes.values().any(could) {
            return None;
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let message = format!(
            "it needs {cores} cores and {:.2} GiB on one node; the largest node has {most_cores} \
             cores and {:.2} GiB: ask for less, or add a node",
            gib(trajectory.memory),
            gib(most_memory),
        );
        Some(Fault::new(FaultKind::User, "ExceedsNodes", message))
    }

    pub(super) fn static_units(&self) -> Option<Units> {
        match self.config.policy {
            Policy::Static { cores } => Some(Units::cores(cores)),
            Policy::Elastic | Policy::ElasticTrajectory | Policy::FixedDop { .. } => None,
        }
    }

    /// Gives a waiting trajectory its node and orders its sandbox.
    pub(super) fn place(&mut self, id: &TrajectoryId, node: &NodeId) {
        let units = self.static_units();
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        let Some(state) = self.nodes.get_mut(node) else { return };
        self.opening.remove(&trajectory.job, &(trajectory.seq, id.clone()));
        self.memory_share.take(&trajectory.job, trajectory.memory, self.now);
        state.hold(id, trajectory.memory, self.now);
        trajectory.cores = units.and_then(|units| state.cpu.grant(units));
        trajectory.placed = self.now;
        trajectory.state = State::Opening { node: node.clone() };
        self.emit(Command::TrajectoryPlaced { trajectory: id.clone(), node: node.clone() });
        self.order(node, NodeOrder::OpenSandbox(id.clone()));
    }

    pub(super) fn sandbox_ready(&mut self, id: &TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        let (State::Opening { node } | State::Recovering { node, .. }) = &trajectory.state else {
            return;
        };
        let node = node.clone();
        trajectory.state = State::Ready { node: node.clone() };
        if let Some(at) = trajectory.deadline.take() {
            self.timers.remove(&(at, Timer::OpenBy(id.clone())));
        }
        let (opened, placed) = (trajectory.opened, trajectory.placed);
        let actions: Vec<Seq> = trajectory.actions.iter().copied().collect();
        self.emit(Command::TrajectoryReady { trajectory: id.clone(), node, opened, placed });
        for seq in actions {
            self.enter_line(seq);
        }
    }

    /// The sandbox is gone: everything of the trajectory ends with it.
    pub(super) fn sandbox_gone(&mut self, id: &TrajectoryId, because: &Fault) {
        let Some(trajectory) = self.trajectories.get(id) else { return };
        let fault = match &trajectory.state {
            State::Closing { fault, .. } => fault.clone(),
            _ => Some(because.clone()),
        };
        let actions: Vec<Seq> = trajectory.actions.iter().copied().collect();
        for seq in actions {
            let cancelled = fault.is_none() || self.actions.get(&seq).is_some_and(|a| a.cancelled);
            let outcome = match &fault {
                Some(fault) if !cancelled => Outcome::Failed(fault.clone()),
                _ => Outcome::Cancelled,
            };
            self.end_action(seq, outcome);
        }
        self.end_trajectory(id, fault);
    }

    /// Forgets a trajectory that has no action left, and gives back what it held.
    fn end_trajectory(&mut self, id: &TrajectoryId, fault: Option<Fault>) {
        let Some(trajectory) = self.trajectories.remove(id) else { return };
        if let Some(at) = trajectory.deadline {
            self.timers.remove(&(at, Timer::OpenBy(id.clone())));
        }
        if let Some(node) = trajectory.node() {
            self.memory_share.give_back(&trajectory.job, trajectory.memory, self.now);
            if let Some(state) = self.nodes.get_mut(node) {
                state.let_go(id, trajectory.memory, trajectory.acted);
                if let Some(grant) = &trajectory.cores {
                    state.cpu.release(grant);
                }
                self.dirty.nodes.insert(node.clone());
            }
        } else {
            self.opening.remove(&trajectory.job, &(trajectory.seq, id.clone()));
        }
        self.memory_share.leave(&trajectory.job);
        self.dirty.opening = true;
        self.emit(Command::TrajectoryEnded { trajectory: id.clone(), fault });
    }
}
