//! What becomes of an action after its submission, on its way to callers and store.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use pb::action_event::Event as Happened;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_core::queue::{Outcome, Run};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::actions::Action;
use super::input::Reply;
use super::{Scheduler, Subscriber, seconds};
use crate::convert;
use crate::fault::{self, infrastructure};
use crate::store::{Ended, Op};

/// Who is told of an action's end.
struct Audience {
    subscribers: Vec<Subscriber>,
    cancellers: Vec<Reply<bool>>,
    /// What was to be told with its acceptance, where that was not durable before its end, or
    /// with its start, where that was never told.
    unsaid: Vec<pb::ActionEvent>,
}

impl Audience {
    fn of(action: &mut Action) -> Self {
        Self {
            subscribers: std::mem::take(&mut action.subscribers),
            cancellers: std::mem::take(&mut action.cancellers),
            unsaid: match (action.durable, &action.started) {
                (true, Some(_)) => Vec::new(),
                (true, None) => action.course().split_off(1),
                (false, _) => action.course(),
            },
        }
    }
}

impl Scheduler {
    /// The core has accepted it.
    pub(super) fn queued(&mut self, id: &ActionId) {
        let Some(action) = self.actions.get(id) else { return };
        if action.durable {
            return;
        }
        self.accepted += 1;
        self.metrics.accepted.inc();
        let Some(request) = &action.request else {
            // One that was found on a node was accepted by a queue that lost its record.
            return self.accept_durable(id);
        };
        self.ops.push(Op::Accept {
            action: id.clone(),
            job: action.job.clone(),
            submitted: action.submitted,
            request: Arc::clone(request),
        });
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
        if action.told {
            return;
        }
        let (course, subscribers) = (action.course(), action.subscribers.clone());
        for to in &subscribers {
            self.replay(id, to, course.clone());
        }
    }

    /// Tells everybody who follows an action that goes on. Of one whose acceptance is not
    /// durable they hear with that.
    fn tell_all(&mut self, id: &ActionId, event: &Happened) {
        let Some(action) = self.actions.get(id).filter(|action| action.durable) else { return };
        let subscribers = action.subscribers.clone();
        for to in &subscribers {
            self.tell(to, convert::event(id.as_str(), event.clone()), false);
        }
    }

    /// Tells everybody how it ended, and those who cancelled it whether they did it.
    fn tell_end(&mut self, id: &ActionId, last: Happened, audience: Audience) {
        let cancelled = matches!(last, Happened::Cancelled(_));
        let mut events = audience.unsaid;
        events.push(convert::event("", last));
        for to in &audience.subscribers {
            self.replay(id, to, events.clone());
        }
        for reply in audience.cancellers {
            // A caller that has gone does not want the answer.
            let _gone = reply.send(Ok(cancelled));
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
        let mut early = Vec::new();
        if action.started.replace(started.clone()).is_none() {
            self.metrics.waiting.dec();
            self.metrics.running.inc();
            early = action.output.pieces().to_vec();
        }
        action.node = Some(node.clone());
        self.tell_all(id, &Happened::Started(started));
        for output in early {
            self.tell_all(id, &Happened::Output(output));
        }
    }

    /// A piece of output from an agent.
    pub(super) fn output(&mut self, node: &NodeId, message: pb::ActionOutput) {
        let Some(output) = message.output else { return };
        let Some((id, _)) = self.actions.get_key_value(message.action_id.as_str()) else {
            return;
        };
        let id = id.clone();
        if !self.is_on(&id, node) {
            return;
        }
        let Some(action) = self.actions.get_mut(&id).filter(|action| action.ended.is_none()) else {
            return;
        };
        let Some(output) = action.output.news(message.offset, output) else { return };
        if action.output.next() > action.output_cap {
            return tracing::warn!(action = %id, "the agent sends more output than was asked for");
        }
        // Requests cannot take all the room: a quarter more is there for output.
        let most = self.config.max_buffered_bytes;
        if self.budget.used() + output.data.len() > most.saturating_add(most / 4) {
            self.metrics.output_lost.inc_by(output.data.len() as u64);
            return action.output.lose(&output);
        }
        let (output, bytes) = action.output.keep(output);
        action.bytes += bytes;
        self.budget.add(bytes);
        // What comes with its start, in one batch of the agent's, is told after that.
        if action.started.is_some() {
            self.tell_all(&id, &Happened::Output(output));
        }
    }

    /// It has ended, once and for all. Callers are told at once of an end that the
    /// agent reported and holds until it is durable here, of any other when it is
    /// durable: nobody else knows of it.
    pub(super) fn action_ended(
        &mut self,
        id: &ActionId,
        outcome: Outcome,
        submitted: Time,
        run: Option<&Run>,
    ) {
        let now = self.now();
        let Some(action) = self.actions.get_mut(id) else { return };
        let reported = action.report.as_ref().zip(run);
        let reported = reported.is_some_and(|((attempt, _), run)| *attempt == run.attempt);
        let told = reported && outcome != Outcome::Cancelled;
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
        let cut = action.output.close();
        let output = action.output.take().into_iter().map(Happened::Output);
        let events = started.into_iter().chain(output).chain([last.clone()]);
        let record = Arc::new(Ended {
            job: action.job.as_str().to_owned(),
            trajectory: action.trajectory.as_str().to_owned(),
            at: now.as_nanos(),
            events: events.map(|event| convert::event("", event)).collect(),
            call: None,
        });
        action.ended = Some(Arc::clone(&record));
        action.request = None;
        action.report = None;
        action.told = told;
        self.ops.push(Op::End { action: id.clone(), record });
        for output in cut {
            self.tell_all(id, &Happened::Output(output));
        }
        if let Some(action) = self.actions.get_mut(id).filter(|_| told) {
            let audience = Audience::of(action);
            self.tell_end(id, last, audience);
        }
    }

    pub(super) fn end_durable(&mut self, id: &ActionId, bucket: u64) {
        self.retained.insert(bucket, id.as_str());
        let Some(mut action) = self.actions.remove(id) else { return };
        self.budget.sub(action.bytes);
        let record = action.ended.as_ref().filter(|_| !action.told);
        let last = record.and_then(|ended| ended.events.last()?.event.clone());
        if let Some(last) = last {
            self.tell_end(id, last, Audience::of(&mut action));
        }
        if let Some(node) = &action.node {
            self.acknowledge(node, id);
        }
    }
}

/// The final event of a program that ended by itself, with the whole account.
fn finished(action: &mut Action, submitted: Time, run: Option<&Run>, now: Time) -> Happened {
    let attempt = run.map_or(0, |run| run.attempt);
    let reported = action.report.take().filter(|(reported, _)| *reported == attempt);
    let Some((_, pb::action_ended::End::Finished(mut finished))) = reported else {
        let message = "the agent's report of its end is missing: its exit code is unknown";
        return Happened::Failed(fault::to_proto(&infrastructure("ReportLost", message)));
    };
    let total = seconds(now.since(submitted));
    let mut usage = finished.usage.unwrap_or_default();
    usage.queue_s = run.map_or(0.0, |run| seconds(run.granted.since(submitted)));
    usage.overhead_s = (total - usage.queue_s - usage.exec_s).max(0.0);
    finished.cpu_units = run.map_or(0.0, |run| run.units.as_f64());
    usage.output_dropped_bytes += action.output.dropped();
    finished.usage = Some(usage);
    if let Some(entry) = &action.profile {
        entry.act.observe(total);
        entry.queue.observe(usage.queue_s);
        entry.exec.observe(usage.exec_s);
        entry.overhead.observe(usage.overhead_s);
    }
    Happened::Finished(finished)
}

#[cfg(test)]
mod tests;
