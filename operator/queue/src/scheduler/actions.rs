//! Actions: submission, repeated ids, and the events on their way to the callers.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use pb::action_event::Event as Happened;
use prometheus::Histogram;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, JobId, NodeId, TrajectoryId};
use rollwright_core::queue::{Event, Outcome, Run, SubmitAction};
use rollwright_core::resources::Cost;
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;
use tokio::sync::oneshot;

use super::input::{Lookup, Reply};
use super::{Peek, Scheduler, State, Subscriber, seconds};
use crate::auth::Caller;
use crate::config::{DEFAULT_PROFILE, Profile};
use crate::convert;
use crate::fault::{self, full, infrastructure, user};
use crate::metrics::Metrics;
use crate::store::{Ended, Op, StoreError};

/// A profile and its metrics.
pub(super) struct ProfileEntry {
    pub(super) profile: Profile,
    act: Histogram,
    queue: Histogram,
    exec: Histogram,
    overhead: Histogram,
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
    /// What is sent to the agent; dropped once the program runs.
    pub(super) request: Option<Arc<pb::ExecuteRequest>>,
    pub(super) submitted: Time,
    /// Charged to the budget.
    pub(super) bytes: usize,
    /// Bytes of output taken at most.
    pub(super) output_cap: u64,
    pub(super) subscribers: Vec<Subscriber>,
    /// Its acceptance is durable.
    pub(super) durable: bool,
    pub(super) started: Option<pb::Started>,
    pub(super) output: Vec<pb::Output>,
    /// Offset of the next byte of output.
    pub(super) output_next: u64,
    /// The agent's latest report of its end, with the attempt.
    pub(super) report: Option<(u32, pb::action_ended::End)>,
    /// Set when it has ended.
    pub(super) ended: Option<Arc<Ended>>,
    /// Whose agent waits for the end to be durable.
    pub(super) node: Option<NodeId>,
}

impl Action {
    /// What has happened so far, without ids; `queued` only once that is durable.
    fn history(&self) -> Vec<pb::ActionEvent> {
        if let Some(ended) = &self.ended {
            return ended.events.clone();
        }
        let queued = self.durable.then_some(Happened::Queued(pb::Queued {}));
        let started = self.started.clone().map(Happened::Started);
        let output = self.output.iter().cloned().map(Happened::Output);
        let events = queued.into_iter().chain(started).chain(output);
        events.map(|event| convert::event("", event)).collect()
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
        if let Some(action) = self.actions.get_mut(&id) {
            if !caller.may_use(&action.job) || action.trajectory.as_str() != request.trajectory_id {
                let fault = id_reused(&id);
                return self.refuse(id.as_str(), &to, &fault);
            }
            let history = action.history();
            if action.ended.is_none() {
                action.subscribers.push(to.clone());
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
        let most = self.config.max_buffered_bytes;
        if self.budget.used() + bytes > most {
            let message = format!("{most} bytes of requests and output are held: try again later");
            return Err(full(message));
        }
        let now = self.now();
        let action = Action {
            job,
            trajectory,
            profile: Some(entry),
            request: Some(Arc::new(request)),
            submitted: now,
            bytes,
            output_cap: 0,
            subscribers: vec![to.clone()],
            durable: false,
            started: None,
            output: Vec::new(),
            output_next: 0,
            report: None,
            ended: None,
            node: None,
        };
        self.admit(id, action, cost, None)
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
        if let Some(request) = &action.request {
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
        result: Result<Option<Ended>, StoreError>,
    ) {
        match result {
            Ok(None) => self.execute(caller, request, to, true),
            Ok(Some(ended)) => {
                let mine = JobId::new(&ended.job).is_ok_and(|job| caller.may_use(&job));
                match ActionId::new(&request.action_id) {
                    Ok(id) if mine && ended.trajectory == request.trajectory_id => {
                        self.replay(&id, &to, ended.events);
                    }
                    Ok(id) => self.refuse(id.as_str(), &to, &id_reused(&id)),
                    Err(error) => {
                        self.refuse(&request.action_id, &to, &convert::bad_id(error));
                    }
                }
            }
            Err(error) => {
                let fault = infrastructure("StoreFailed", error.to_string());
                self.refuse(&request.action_id, &to, &fault);
            }
        }
    }

    /// Tells a caller what has happened so far.
    fn replay(&mut self, id: &ActionId, to: &Subscriber, events: Vec<pb::ActionEvent>) {
        let ends = events.last().is_some_and(is_final);
        let events = events.into_iter().map(|mut event| {
            id.as_str().clone_into(&mut event.action_id);
            event
        });
        let written = to.mailbox.write_all(events, ends);
        self.note(to, written);
    }

    /// Turns a submission away; nothing is kept of it.
    fn refuse(&mut self, id: &str, to: &Subscriber, fault: &Fault) {
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
            if action.ended.is_none() {
                action.subscribers.push(to.clone());
            }
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
                Action { ended: Some(_), .. } => State::Ended,
                Action { started: Some(_), .. } => State::Running,
                _ => State::Queued,
            };
            Peek::Live { state, events: action.history() }
        });
        // A caller that has gone does not want the answer.
        let _gone = reply.send(peek);
    }

    pub(super) fn cancel(&mut self, caller: &Caller, id: &ActionId, reply: Reply<bool>) {
        let action = self.actions.get(id).filter(|action| caller.may_use(&action.job));
        let live = action.is_some_and(|action| action.ended.is_none());
        if live {
            self.events.push(Event::Cancel(id.clone()));
        }
        // A caller that has gone does not want the answer.
        let _gone = reply.send(Ok(live));
    }

    /// The core has accepted it.
    pub(super) fn queued(&mut self, id: &ActionId) {
        let Some(action) = self.actions.get(id) else { return };
        if action.durable {
            return;
        }
        self.accepted += 1;
        self.metrics.accepted.inc();
        // One that was found on a node was accepted by a queue that lost its record.
        if let Some(request) = &action.request {
            self.ops.push(Op::Accept {
                action: id.clone(),
                job: action.job.clone(),
                submitted: action.submitted,
                request: Arc::clone(request),
            });
        }
    }

    /// The core does not take it.
    pub(super) fn action_refused(&mut self, id: &ActionId, fault: &Fault) {
        let Entry::Occupied(entry) = self.actions.entry(id.clone()) else { return };
        if entry.get().durable {
            // Accepted before a restart: it ends, as every accepted action does.
            let submitted = entry.get().submitted;
            return self.action_ended(id, Outcome::Failed(fault.clone()), submitted, None);
        }
        let action = entry.remove();
        self.budget.sub(action.bytes);
        self.metrics.waiting.dec();
        for to in &action.subscribers {
            self.refuse(id.as_str(), to, fault);
        }
    }

    pub(super) fn accept_durable(&mut self, id: &ActionId) {
        let Some(action) = self.actions.get_mut(id) else { return };
        action.durable = true;
        if action.ended.is_none() {
            let subscribers = action.subscribers.clone();
            for to in &subscribers {
                self.tell(to, convert::event(id.as_str(), Happened::Queued(pb::Queued {})), false);
            }
        }
    }

    pub(super) fn started(&mut self, id: &ActionId, node: &NodeId, run: &Run) {
        let Some(action) = self.actions.get_mut(id) else { return };
        let started = pb::Started {
            node: node.to_string(),
            cpu_units: run.units.as_f64(),
            cores: run.cores.iter().collect(),
            queue_s: seconds(run.granted.since(action.submitted)),
        };
        if action.started.replace(started.clone()).is_none() {
            self.metrics.waiting.dec();
            self.metrics.running.inc();
        }
        action.node = Some(node.clone());
        action.request = None;
        let subscribers = action.subscribers.clone();
        for to in &subscribers {
            self.tell(to, convert::event(id.as_str(), Happened::Started(started.clone())), false);
        }
    }

    /// A piece of output from an agent.
    pub(super) fn output(&mut self, node: &NodeId, message: pb::ActionOutput) {
        let Some(mut output) = message.output else { return };
        let Some((id, action)) = self.actions.get_key_value(message.action_id.as_str()) else {
            return;
        };
        let id = id.clone();
        let placed = self.trajectories.get(&action.trajectory).and_then(|t| t.node.as_ref());
        if placed != Some(node) || action.ended.is_some() {
            return;
        }
        let Some(action) = self.actions.get_mut(&id) else { return };
        // What came before a reconnection comes again: take only what is new.
        let end = message.offset.saturating_add(output.data.len() as u64);
        if end <= action.output_next {
            return;
        }
        let known = action.output_next.saturating_sub(message.offset) as usize;
        if known > 0 {
            drop(output.data.split_to(known));
            output.dropped_before = 0;
        }
        if action.output_next + output.data.len() as u64 > action.output_cap {
            return tracing::warn!(action = %id, "the agent sends more output than was asked for");
        }
        action.output_next = end;
        action.bytes += output.data.len();
        self.budget.add(output.data.len());
        action.output.push(output.clone());
        let subscribers = action.subscribers.clone();
        for to in &subscribers {
            self.tell(to, convert::event(id.as_str(), Happened::Output(output.clone())), false);
        }
    }

    /// It has ended, once and for all: callers are told at once, the agent when
    /// that is durable.
    pub(super) fn action_ended(
        &mut self,
        id: &ActionId,
        outcome: Outcome,
        submitted: Time,
        run: Option<&Run>,
    ) {
        let now = self.now();
        let Some(action) = self.actions.get_mut(id) else { return };
        let last = match outcome {
            Outcome::Finished => finished(action, submitted, run, now),
            Outcome::Failed(fault) => Happened::Failed(fault::to_proto(&fault)),
            Outcome::Cancelled => Happened::Cancelled(pb::Cancelled {}),
        };
        let kind = match &last {
            Happened::Finished(_) => "finished",
            Happened::Failed(fault) => fault::kind_from_proto(fault.kind).as_str(),
            _ => "cancelled",
        };
        self.metrics.ended.with_label_values(&[kind]).inc();
        let gauge =
            if action.started.is_some() { &self.metrics.running } else { &self.metrics.waiting };
        gauge.dec();
        self.ended += 1;

        let started = action.started.clone().map(Happened::Started);
        let output = std::mem::take(&mut action.output).into_iter().map(Happened::Output);
        let events = started.into_iter().chain(output).chain([last.clone()]);
        let record = Arc::new(Ended {
            job: action.job.as_str().to_owned(),
            trajectory: action.trajectory.as_str().to_owned(),
            at: now.as_nanos(),
            events: events.map(|event| convert::event("", event)).collect(),
        });
        action.ended = Some(Arc::clone(&record));
        action.request = None;
        action.report = None;
        let subscribers = std::mem::take(&mut action.subscribers);
        self.ops.push(Op::End { action: id.clone(), record });
        for to in &subscribers {
            self.tell(to, convert::event(id.as_str(), last.clone()), true);
        }
    }

    pub(super) fn end_durable(&mut self, id: &ActionId, bucket: u64) {
        self.retained.insert(bucket, id.as_str());
        let Some(action) = self.actions.remove(id) else { return };
        self.budget.sub(action.bytes);
        if let Some(node) = &action.node {
            self.acknowledge(node, id);
        }
    }
}

/// The final event of a program that ended by itself, with the whole account.
fn finished(action: &mut Action, submitted: Time, run: Option<&Run>, now: Time) -> Happened {
    let reported = action.report.take();
    let Some((_, pb::action_ended::End::Finished(mut finished))) = reported else {
        let message = "the agent's report of its end is missing: its exit code is unknown";
        return Happened::Failed(fault::to_proto(&infrastructure("ReportLost", message)));
    };
    let total = seconds(now.since(submitted));
    let mut usage = finished.usage.unwrap_or_default();
    usage.queue_s = run.map_or(0.0, |run| seconds(run.granted.since(submitted)));
    usage.overhead_s = (total - usage.queue_s - usage.exec_s).max(0.0);
    finished.cpu_units = run.map_or(0.0, |run| run.units.as_f64());
    finished.usage = Some(usage);
    if let Some(entry) = &action.profile {
        entry.act.observe(total);
        entry.queue.observe(usage.queue_s);
        entry.exec.observe(usage.exec_s);
        entry.overhead.observe(usage.overhead_s);
    }
    Happened::Finished(finished)
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
