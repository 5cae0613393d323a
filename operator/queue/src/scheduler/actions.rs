//! Actions: submission, repeated ids, and the events on their way to the callers.

use std::sync::Arc;

use pb::action_event::Event as Happened;
use prometheus::Histogram;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, JobId, NodeId, TrajectoryId};
use rollwright_core::queue::{Event, Foresight, SubmitAction};
use rollwright_core::resources::Cost;
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;
use tokio::sync::oneshot;

use super::input::{Lookup, Reply};
use super::output::Output;
use super::trajectories::may_end;
use super::{Peek, Scheduler, State, Subscriber};
use crate::config::{DEFAULT_PROFILE, Profile};
use crate::convert;
use crate::fault::{self, full, user};
use crate::mailbox::Weigh;
use crate::metrics::Metrics;
use crate::store::Ended;
use rollwright_auth::Caller;

/// A profile and its metrics.
pub(super) struct ProfileEntry {
    pub(super) profile: Profile,
    pub(super) act: Histogram,
    pub(super) queue: Histogram,
    pub(super) exec: Histogram,
    pub(super) overhead: Histogram,
}

impl ProfileEntry {
    pub(super) fn new(name: &str, profile: Profile, metrics: &Metrics) -> Self {
        Self {
            profile,
            act: metrics.act_seconds.with_label_values(&[name]),
            queue: metrics.queue_seconds.with_label_values(&[name]),
            exec: metrics.exec_seconds.with_label_values(&[name]),
            overhead: metrics.overhead_seconds.with_label_values(&[name]),
        }
    }
}

/// An action that is live, or whose result is not durable yet.
pub(super) struct Action {
    pub(super) job: JobId,
    pub(super) trajectory: TrajectoryId,
    pub(super) profile: Option<Arc<ProfileEntry>>,
    /// What is sent to the agent; dropped at its end.
    pub(super) request: Option<Arc<pb::ExecuteRequest>>,
    pub(super) submitted: Time,
    /// Charged to the budget.
    pub(super) bytes: usize,
    /// Bytes of output taken at most.
    pub(super) output_cap: u64,
    pub(super) subscribers: Vec<Subscriber>,
    /// Calls that cancelled it before it started.
    pub(super) cancellers: Vec<Reply<bool>>,
    /// Its acceptance is durable. Until then its callers are told nothing but its end.
    pub(super) durable: bool,
    pub(super) started: Option<pb::Started>,
    pub(super) output: Output,
    /// The agent's latest report of its end, with the attempt.
    pub(super) report: Option<(u32, pb::action_ended::End)>,
    /// Set when it has ended.
    pub(super) ended: Option<Arc<Ended>>,
    /// Callers know of its end.
    pub(super) told: bool,
    /// Whose agent waits for the end to be durable.
    pub(super) node: Option<NodeId>,
}

impl Action {
    pub(super) fn new(job: JobId, trajectory: TrajectoryId, submitted: Time) -> Self {
        Self {
            job,
            trajectory,
            profile: None,
            request: None,
            submitted,
            bytes: 512,
            output_cap: 0,
            subscribers: Vec::new(),
            cancellers: Vec::new(),
            durable: false,
            started: None,
            output: Output::default(),
            report: None,
            ended: None,
            told: false,
            node: None,
        }
    }

    /// What has happened so far, without ids: only what callers may know already.
    fn history(&self) -> Vec<pb::ActionEvent> {
        match &self.ended {
            Some(ended) if self.told => ended.events.clone(),
            _ if self.durable => self.course(),
            _ => Vec::new(),
        }
    }

    /// Everything from its acceptance on, but for its end, without ids.
    pub(super) fn course(&self) -> Vec<pb::ActionEvent> {
        let queued = std::iter::once(convert::event("", Happened::Queued(pb::Queued {})));
        if let Some(ended) = &self.ended {
            let before = ended.events.split_last().map_or_else(Default::default, |(_, all)| all);
            return queued.chain(before.iter().cloned()).collect();
        }
        let started = self.started.clone().map(Happened::Started);
        // Its start comes first, even where the core has yet to hear of it.
        let output = self.output.pieces().iter().filter(|_| self.started.is_some());
        let output = output.cloned().map(Happened::Output);
        let events = started.into_iter().chain(output);
        queued.chain(events.map(|event| convert::event("", event))).collect()
    }

    fn follow(&mut self, to: &Subscriber) {
        if !self.told {
            self.subscribers.retain(|other| !other.mailbox.is_closed());
            self.subscribers.push(to.clone());
        }
    }
}

impl Scheduler {
    pub(super) fn execute(
        &mut self,
        caller: &Caller,
        request: pb::ExecuteRequest,
        to: Subscriber,
        looked_up: bool,
    ) {
        let id = match ActionId::new(&request.action_id) {
            Ok(id) => id,
            Err(error) => {
                let fault = convert::bad_id(error);
                return self.refuse(&request.action_id, &to, &fault);
            }
        };
        if let Some(action) = self.actions.get(&id) {
            if !caller.may_use(&action.job) || action.trajectory.as_str() != request.trajectory_id {
                let fault = id_reused(&id);
                return self.refuse(id.as_str(), &to, &fault);
            }
            let history = action.history();
            if let Err(fault) = self.check_budget(weight(&history)) {
                return self.refuse(id.as_str(), &to, &fault);
            }
            if let Some(action) = self.actions.get_mut(&id) {
                action.follow(&to);
            }
            return self.replay(&id, &to, history);
        }
        if !looked_up && self.retained.may_hold(id.as_str()) {
            let (caller, request) = (caller.clone(), Box::new(request));
            if let Err(error) = self.lookups.try_send(Lookup { caller, request, to }) {
                let (std::sync::mpsc::TrySendError::Full(lookup)
                | std::sync::mpsc::TrySendError::Disconnected(lookup)) = error;
                let fault = full("too many repeated ids at once: try again later");
                self.refuse(id.as_str(), &lookup.to, &fault);
            }
            return;
        }
        if let Err(fault) = self.submit(caller, &id, request, &to) {
            self.refuse(id.as_str(), &to, &fault);
        }
    }

    fn submit(
        &mut self,
        caller: &Caller,
        id: &ActionId,
        mut request: pb::ExecuteRequest,
        to: &Subscriber,
    ) -> Result<(), Fault> {
        let trajectory = TrajectoryId::new(&request.trajectory_id).map_err(convert::bad_id)?;
        let job = self.trajectory_job(caller, &trajectory)?;
        if request.profile.is_empty() {
            DEFAULT_PROFILE.clone_into(&mut request.profile);
        }
        let Some(entry) = self.profiles.get(&request.profile).cloned() else {
            let known: Vec<&str> = self.config.profiles.keys().map(String::as_str).collect();
            let (name, known) = (&request.profile, known.join(", "));
            let message = format!("profile `{name}` does not exist; known: [{known}]");
            return Err(user("UnknownProfile", message));
        };
        let cost = convert::resolve(&mut request, &entry.profile)?;
        let bytes = convert::request_bytes(&request);
        self.check_budget(bytes)?;
        let now = self.now();
        let action = Action {
            profile: Some(entry),
            request: Some(Arc::new(request)),
            bytes,
            subscribers: vec![to.clone()],
            ..Action::new(job, trajectory, now)
        };
        self.admit(id, action, cost, None)
    }

    /// Refuses what would take memory that is not there.
    pub(super) fn check_budget(&self, bytes: usize) -> Result<(), Fault> {
        let most = self.config.max_buffered_bytes;
        if self.budget.used().saturating_add(bytes) > most {
            let message = format!("{most} bytes of requests and output are held: try again later");
            return Err(full(message));
        }
        Ok(())
    }

    /// Gives an action to the core. `submitted` is set for one from the store.
    pub(super) fn admit(
        &mut self,
        id: &ActionId,
        mut action: Action,
        cost: Cost,
        submitted: Option<Time>,
    ) -> Result<(), Fault> {
        let mut start_by = None;
        let mut foresight = Foresight::default();
        if let Some(request) = &action.request {
            let profile = action.profile.as_ref().map(|entry| &entry.profile);
            foresight = convert::foresight(request, profile);
            let deadline = convert::duration("queue_deadline", request.queue_deadline.as_ref())?;
            start_by = deadline.map(|after| action.submitted + after);
            action.output_cap = request.output_limit.saturating_mul(2).saturating_add(64 << 10);
        }
        self.events.push(Event::Submit(SubmitAction {
            action: id.clone(),
            trajectory: action.trajectory.clone(),
            cost,
            start_by,
            submitted,
            foresight,
        }));
        self.budget.add(action.bytes);
        self.actions.insert(id.clone(), action);
        self.metrics.waiting.inc();
        Ok(())
    }

    /// A repeated id was looked up in the store.
    pub(super) fn found(
        &mut self,
        caller: &Caller,
        request: pb::ExecuteRequest,
        to: Subscriber,
        result: Result<Option<Ended>, Fault>,
    ) {
        match result {
            Ok(None) => self.execute(caller, request, to, true),
            Ok(Some(ended)) => {
                let mine = JobId::new(&ended.job).is_ok_and(|job| caller.may_use(&job));
                match ActionId::new(&request.action_id) {
                    Ok(id)
                        if mine
                            && ended.call.is_none()
                            && ended.trajectory == request.trajectory_id =>
                    {
                        match self.check_budget(weight(&ended.events)) {
                            Ok(()) => self.replay(&id, &to, ended.events),
                            Err(fault) => self.refuse(id.as_str(), &to, &fault),
                        }
                    }
                    Ok(id) => self.refuse(id.as_str(), &to, &id_reused(&id)),
                    Err(error) => {
                        self.refuse(&request.action_id, &to, &convert::bad_id(error));
                    }
                }
            }
            Err(fault) => self.refuse(&request.action_id, &to, &fault),
        }
    }

    /// Tells a caller what has happened so far.
    pub(super) fn replay(&mut self, id: &ActionId, to: &Subscriber, events: Vec<pb::ActionEvent>) {
        let ends = events.last().is_some_and(is_final);
        let events = events.into_iter().map(|mut event| {
            id.as_str().clone_into(&mut event.action_id);
            event
        });
        let written = to.mailbox.write_all(events, ends);
        self.note(to, written);
    }

    /// Turns a submission away; nothing is kept of it.
    pub(super) fn refuse(&mut self, id: &str, to: &Subscriber, fault: &Fault) {
        self.metrics.refused.with_label_values(&[fault.kind.as_str()]).inc();
        if to.single {
            to.mailbox.close(Some(fault.clone()));
        } else {
            let event = convert::event(id, Happened::Failed(fault::to_proto(fault)));
            self.tell(to, event, true);
        }
    }

    pub(super) fn attach_only(
        &mut self,
        caller: &Caller,
        id: &ActionId,
        to: &Subscriber,
        reply: oneshot::Sender<bool>,
    ) {
        let mut history = None;
        if let Some(action) = self.actions.get_mut(id).filter(|action| caller.may_use(&action.job))
        {
            history = Some(action.history());
            action.follow(to);
        }
        // A caller that has gone has closed its mailbox too.
        let _gone = reply.send(history.is_some());
        if let Some(history) = history {
            self.replay(id, to, history);
        }
    }

    pub(super) fn peek(&self, caller: &Caller, id: &ActionId, reply: oneshot::Sender<Peek>) {
        let action = self.actions.get(id).filter(|action| caller.may_use(&action.job));
        let peek = action.map_or(Peek::Unknown, |action| {
            let state = match action {
                Action { told: true, .. } => State::Ended,
                Action { started: Some(_), durable: true, .. } => State::Running,
                _ => State::Queued,
            };
            Peek::Live { state, events: action.history() }
        });
        // A caller that has gone does not want the answer.
        let _gone = reply.send(peek);
    }

    pub(super) fn cancel(&mut self, caller: &Caller, job: &str, id: &ActionId, reply: Reply<bool>) {
        let action = self.actions.get_mut(id).filter(|action| may_end(caller, job, &action.job));
        let Some(action) = action.filter(|action| !action.told) else {
            // A caller that has gone does not want the answer.
            return drop(reply.send(Ok(false)));
        };
        if action.ended.is_none() {
            self.events.push(Event::Cancel(id.clone()));
        }
        if action.started.is_some() {
            // A caller that has gone does not want the answer.
            return drop(reply.send(Ok(true)));
        }
        // Answered when the end is durable: nobody but this queue knows of it.
        action.cancellers.retain(|other| !other.is_closed());
        action.cancellers.push(reply);
    }
}

/// Bytes that events take in a mailbox.
pub(crate) fn weight(events: &[pb::ActionEvent]) -> usize {
    events.iter().map(Weigh::weight).sum()
}

fn id_reused(id: &ActionId) -> Fault {
    let message = format!("action id `{id}` names another action already: choose a new id");
    user("ActionIdReused", message)
}

/// True for the event that ends an action's stream.
pub(crate) fn is_final(event: &pb::ActionEvent) -> bool {
    matches!(
        event.event,
        Some(Happened::Finished(_) | Happened::Failed(_) | Happened::Cancelled(_))
    )
}
