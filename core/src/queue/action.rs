//! The life of an action: `Submitted, Queued, Started, Finished | Failed | Cancelled`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{Command, NodeOrder, Outcome, Run};
use super::event::{End, Foresight, SubmitAction, Usage};
use super::policy::Policy;
use super::trajectory::State;
use super::{Queue, Seq, Timer};
use crate::cpu::CpuGrant;
use crate::elastic::Work;
use crate::fault::{Fault, FaultKind};
use crate::ids::{ActionId, JobId, NodeId, QuotaName, TrajectoryId};
use crate::profile::{ProfileKey, Sample};
use crate::resources::{Cost, Units};
use crate::time::Time;

/// A live action.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) id: ActionId,
    pub(super) trajectory: TrajectoryId,
    pub(super) job: JobId,
    pub(super) cost: Cost,
    pub(super) foresight: Foresight,
    /// How long it is expected to last.
    pub(super) work: Arc<Work>,
    /// Its place in the line of its node, among its job's: the same from its first entry
    /// on, whatever is learned meanwhile.
    pub(super) place: Option<Place>,
    /// Its number among the submissions that its node's line remembers.
    pub(super) arrival: Option<u64>,
    pub(super) submitted: Time,
    pub(super) start_by: Option<Time>,
    pub(super) stage: Stage,
    /// Tries that were ordered so far.
    pub(super) attempts: u32,
    /// Quota that it holds already.
    pub(super) holds: BTreeMap<QuotaName, u32>,
    /// Its caller wants no result any more; it is being killed.
    pub(super) cancelled: bool,
}

/// Where an action stands.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its sandbox is not ready.
    Parked,
    /// In the line for its node's cores.
    Lined,
    /// In the line for this quota.
    Claiming(QuotaName),
    /// Granted.
    Running(Running),
}

/// A place in a node's line: the lower is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Of the elastic policy; the others serve in the order of submission.
    pub(super) rank: Time,
    pub(super) seq: Seq,
}

/// What a node's line knows of one that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) work: Arc<Work>,
    pub(super) malleable: bool,
}

/// What an agent says of an action's end.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) end: End,
    pub(super) not_started: bool,
    pub(super) usage: Option<Usage>,
}

/// A granted action.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) run: Run,
    /// `None` where it runs on cores that its trajectory holds.
    pub(super) grant: Option<CpuGrant>,
    /// What it holds now: other than at its start where it was resized.
    pub(super) units: Units,
    /// Cores that the agent was told last.
    pub(super) told: crate::cpu::CoreSet,
    /// The agent has said that the program runs.
    pub(super) started: bool,
    /// It had the same units all the time, so that its duration says something of them.
    pub(super) steady: bool,
}

impl Action {
    /// Its id and its grant, if it has one.
    pub(super) fn running_of(&mut self) -> Option<(&ActionId, &mut Running)> {
        match &mut self.stage {
            Stage::Running(running) => Some((&self.id, running)),
            _ => None,
        }
    }

    /// Whose durations it is like.
    pub(super) fn profile(&self) -> ProfileKey {
        ProfileKey { job: self.job.clone(), profile: Arc::clone(&self.foresight.profile) }
    }
}

impl Queue {
    pub(super) fn submit(&mut self, submit: SubmitAction) {
        if self.action_ids.contains_key(&submit.action) {
            return;
        }
        let work = match self.check_submission(&submit) {
            Ok(work) => work,
            Err(fault) => {
                self.emit(Command::ActionRefused { action: submit.action, fault });
                return;
            }
        };
        let seq = self.take_seq();
        let now = self.now;
        let Some(trajectory) = self.trajectories.get_mut(&submit.trajectory) else { return };
        trajectory.actions.insert(seq);
        let job = trajectory.job.clone();
        let ready = matches!(trajectory.state, State::Ready { .. });
        self.cpu_share.join(&job, now);
        self.action_ids.insert(submit.action.clone(), seq);
        self.actions.insert(
            seq,
            Action {
                id: submit.action.clone(),
                trajectory: submit.trajectory,
                job,
                cost: submit.cost,
                foresight: submit.foresight,
                work: Arc::new(work),
                place: None,
                arrival: None,
                submitted: submit.submitted.unwrap_or(now),
                start_by: submit.start_by,
                stage: Stage::Parked,
                attempts: 0,
                holds: BTreeMap::new(),
                cancelled: false,
            },
        );
        self.waiting += 1;
        if let Some(at) = submit.start_by {
            self.timers.insert((at, Timer::StartBy(seq)));
        }
        self.emit(Command::ActionQueued(submit.action));
        if ready {
            self.enter_line(seq);
        }
    }

    fn check_submission(&mut self, submit: &SubmitAction) -> Result<Work, Fault> {
        let open = self.trajectories.get(&submit.trajectory);
        let open = open.filter(|open| !matches!(open.state, State::Closing { .. }));
        let Some(job) = open.map(|open| open.job.clone()) else {
            let message = format!("trajectory `{}` is not open: open it first", submit.trajectory);
            return Err(Fault::new(FaultKind::User, "TrajectoryNotOpen", message));
        };
        for (name, amount) in &submit.cost.quota {
            self.check_quota(name, *amount)?;
        }
        // What was accepted before a restart stays accepted.
        if submit.submitted.is_none() {
            self.check_room()?;
        }
        let Foresight { profile, prior, said, remaining, .. } = &submit.foresight;
        let key = ProfileKey { job, profile: Arc::clone(profile) };
        let work = self.profiles.work(&key, &submit.cost.cpu, *prior, *said);
        let work = work
            .map_err(|error| Fault::new(FaultKind::User, "InvalidDuration", error.to_string()))?;
        if self.config.policy == Policy::ElasticTrajectory {
            return Ok(self.remaining.order(work, *remaining));
        }
        Ok(work)
    }

    /// Puts a waiting action in the line of its node's cores.
    pub(super) fn enter_line(&mut self, seq: Seq) {
        let Some(action) = self.actions.get_mut(&seq) else { return };
        let Some(open) = self.trajectories.get_mut(&action.trajectory) else { return };
        let Some(node) = open.node().cloned() else { return };
        action.stage = Stage::Lined;
        let Some(state) = self.nodes.get_mut(&node) else { return };
        let elastic = self.config.policy.is_elastic();
        let place = *action.place.get_or_insert_with(|| {
            if !elastic {
                return Place { rank: Time::ZERO, seq };
            }
            let opens = !std::mem::replace(&mut open.acted, true);
            if let Some(newcomers) = state.crowd.newcomers() {
                state.elastic.newcomers(newcomers);
            }
            if opens {
                state.crowd.is_known();
            }
            let work = Work::clone(&action.work);
            action.arrival = Some(state.elastic.submitted(self.now, opens, work));
            Place { rank: action.work.rank(action.submitted), seq }
        });
        let waiter =
            Waiter { work: Arc::clone(&action.work), malleable: action.foresight.malleable };
        state.line.insert(&action.job, place, waiter);
        self.dirty.nodes.insert(node);
    }

    /// Takes a waiting action out of whatever line it is in.
    fn leave_lines(&mut self, seq: Seq) {
        let Some(action) = self.actions.get(&seq) else { return };
        match &action.stage {
            Stage::Lined => {
                let node = self.trajectories.get(&action.trajectory).and_then(|t| t.node());
                if let Some((id, state)) = node.and_then(|id| Some((id, self.nodes.get_mut(id)?)))
                    && let Some(place) = &action.place
                {
                    state.line.remove(&action.job, place);
                    // It may have stood before others that fit.
                    self.dirty.nodes.insert(id.clone());
                }
            }
            Stage::Claiming(quota) => {
                if let Some(line) = self.quotas.get_mut(quota) {
                    line.claims.remove(&seq);
                    self.dirty.quotas.insert(quota.clone());
                }
            }
            Stage::Parked | Stage::Running(_) => {}
        }
    }

    pub(super) fn cancel(&mut self, id: &ActionId) {
        let Some(seq) = self.action_ids.get(id).copied() else { return };
        self.cancel_seq(seq);
    }

    pub(super) fn cancel_seq(&mut self, seq: Seq) {
        let Some(action) = self.actions.get_mut(&seq) else { return };
        let running = matches!(action.stage, Stage::Running(_));
        if running && !self.dirty.starts.remove(&seq) {
            action.cancelled = true;
            let (id, node) = (action.id.clone(), self.node_of(seq));
            if let Some(node) = node {
                self.order(&node, NodeOrder::Kill(id));
            }
        } else {
            self.end_action(seq, Outcome::Cancelled);
        }
    }

    pub(super) fn start_deadline_passed(&mut self, seq: Seq) {
        let waiting = self.actions.get(&seq).filter(|a| !matches!(a.stage, Stage::Running(_)));
        if let Some(action) = waiting {
            let waited = self.now.since(action.submitted).as_secs_f64();
            let message = format!("not started within its queue deadline ({waited:.1} s)");
            let fault = Fault::new(FaultKind::Timeout, "QueueDeadline", message);
            self.end_action(seq, Outcome::Failed(fault));
        }
    }

    pub(super) fn action_started(&mut self, node: &NodeId, id: &ActionId, attempt: u32) {
        let Some(seq) = self.action_ids.get(id).copied() else { return };
        if self.node_of(seq).as_ref() != Some(node) {
            return;
        }
        let Some(action) = self.actions.get_mut(&seq) else { return };
        if let Stage::Running(running) = &mut action.stage
            && running.run.attempt == attempt
            && !running.started
        {
            running.started = true;
            let run = running.run.clone();
            self.emit(Command::ActionStarted { action: id.clone(), node: node.clone(), run });
        }
    }

    pub(super) fn action_ended(
        &mut self,
        node: &NodeId,
        id: &ActionId,
        attempt: u32,
        report: Report,
    ) {
        let Report { end, not_started, usage } = report;
        let seq = self.action_ids.get(id).copied();
        let Some(seq) = seq.filter(|seq| self.node_of(*seq).as_ref() == Some(node)) else {
            self.order(node, NodeOrder::Forget(id.clone()));
            return;
        };
        if !not_started {
            self.action_started(node, id, attempt);
        }
        let Some(action) = self.actions.get(&seq) else { return };
        let Stage::Running(running) = &action.stage else { return };
        if running.run.attempt != attempt {
            return;
        }
        let outcome = match end {
            _ if action.cancelled => Outcome::Cancelled,
            End::Finished => Outcome::Finished,
            End::Failed(fault) if not_started && self.may_retry(action, &fault) => {
                self.release(seq);
                self.waiting += 1;
                self.enter_line(seq);
                return;
            }
            End::Failed(fault) => Outcome::Failed(fault),
        };
        if outcome == Outcome::Finished {
            self.learn(seq, usage);
        }
        self.end_action(seq, outcome);
    }

    /// One came to an end of its own.
    fn learn(&mut self, seq: Seq, usage: Option<Usage>) {
        let Some((usage, action)) = usage.zip(self.actions.get(&seq)) else { return };
        let Stage::Running(running) = &action.stage else { return };
        if !running.steady {
            return;
        }
        let Usage { seconds, cpu_seconds } = usage;
        let node = self.trajectories.get(&action.trajectory).and_then(|t| t.node());
        if let Some((node, arrival)) =
            node.and_then(|id| self.nodes.get_mut(id)).zip(action.arrival)
        {
            node.elastic.lasted(arrival, running.units, seconds);
        }
        let key = action.profile();
        if self.profiles.learn(&key, Sample { units: running.units, seconds, cpu_seconds })
            && self.config.policy.is_elastic()
        {
            self.relearn(&key);
        }
    }

    fn may_retry(&self, action: &Action, fault: &Fault) -> bool {
        let ready = self.trajectories.get(&action.trajectory);
        fault.kind == FaultKind::Infrastructure
            && action.attempts < self.config.max_attempts
            && ready.is_some_and(|t| matches!(t.state, State::Ready { .. }))
    }

    /// Ends an action, once: gives back what it holds and says so.
    pub(super) fn end_action(&mut self, seq: Seq, outcome: Outcome) {
        self.leave_lines(seq);
        let run = self.release(seq);
        let Some(action) = self.actions.remove(&seq) else { return };
        self.action_ids.remove(&action.id);
        if let Some(at) = action.start_by {
            self.timers.remove(&(at, Timer::StartBy(seq)));
        }
        if let Some(trajectory) = self.trajectories.get_mut(&action.trajectory) {
            trajectory.actions.remove(&seq);
        }
        if run.is_none() {
            self.waiting -= 1;
        }
        self.cpu_share.leave(&action.job);
        let submitted = action.submitted;
        self.emit(Command::ActionEnded { action: action.id, outcome, submitted, run });
    }

    /// Gives back cores and quota; the action is as good as never granted.
    pub(super) fn release(&mut self, seq: Seq) -> Option<Run> {
        let node = self.node_of(seq);
        let action = self.actions.get_mut(&seq)?;
        for (quota, amount) in std::mem::take(&mut action.holds) {
            if let Some(line) = self.quotas.get_mut(&quota) {
                line.quota.release(amount);
            }
            self.dirty.quotas.insert(quota);
        }
        if !matches!(action.stage, Stage::Running(_)) {
            return None;
        }
        let Stage::Running(running) = std::mem::replace(&mut action.stage, Stage::Parked) else {
            return None;
        };
        self.cpu_share.give_back(&action.job, u64::from(running.units.micros()), self.now);
        if let Some((id, state)) = node.and_then(|id| Some((id.clone(), self.nodes.get_mut(&id)?)))
        {
            state.running.remove(&seq);
            if let Some(grant) = &running.grant {
                state.cpu.release(grant);
                // Under the static policy a trajectory may wait for these cores.
                self.dirty.opening |= matches!(self.config.policy, Policy::Static { .. });
            }
            self.dirty.nodes.insert(id);
        }
        Some(running.run)
    }

    pub(super) fn node_of(&self, seq: Seq) -> Option<NodeId> {
        let action = self.actions.get(&seq)?;
        self.trajectories.get(&action.trajectory)?.node().cloned()
    }
}
