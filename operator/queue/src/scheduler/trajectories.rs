//! Trajectories: opening, and everything that waits for it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use prost::Message as _;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{JobId, NodeId, TrajectoryId};
use rollwright_core::queue::{Event, OpenTrajectory, Placed};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::input::{Reply, Standing};
use super::{Scheduler, seconds};
use crate::convert;
use crate::fault::{infrastructure, user};
use crate::store::{self, Op};
use rollwright_auth::Caller;

/// Ends that are remembered, so that a late request is told why.
const REMEMBERED: usize = 10_000;

/// A trajectory that is open, or on its way in or out.
pub(super) struct Trajectory {
    pub(super) job: JobId,
    pub(super) spec: pb::SandboxSpec,
    pub(super) open_by: Option<Time>,
    pub(super) node: Option<NodeId>,
    /// Set while its sandbox is ready.
    pub(super) ready: Option<pb::OpenTrajectoryResponse>,
    pub(super) closing: bool,
    /// Charged to the budget.
    bytes: usize,
    /// Its sandbox was ready once.
    pub(super) was_ready: bool,
    /// What the agent said of its reset.
    pub(super) reset: Option<(pb::ResetTimes, bool)>,
    /// Messages to its node that wait until its placement is durable.
    pub(super) held: Option<Vec<pb::QueueMessage>>,
    /// Records handed to the store and not durable yet.
    unwritten: u32,
    openers: Vec<Reply<pb::OpenTrajectoryResponse>>,
    closers: Vec<Reply<()>>,
}

impl Trajectory {
    pub(super) fn new(job: JobId, spec: pb::SandboxSpec) -> Self {
        let bytes = 1024 + spec.encoded_len();
        Self {
            job,
            spec,
            bytes,
            open_by: None,
            node: None,
            ready: None,
            closing: false,
            was_ready: false,
            reset: None,
            held: None,
            unwritten: 0,
            openers: Vec::new(),
            closers: Vec::new(),
        }
    }

    /// What is to be written now.
    fn write(&mut self, id: &TrajectoryId) -> Op {
        self.unwritten += 1;
        let record = store::Trajectory {
            job: self.job.as_str().to_owned(),
            spec: Some(self.spec.clone()),
            node: self.node.as_ref().map(ToString::to_string).unwrap_or_default(),
            closing: self.closing,
            open_by: self.open_by.map_or(0, Time::as_nanos),
            was_ready: self.was_ready,
        };
        Op::Trajectory { trajectory: id.clone(), record: Box::new(record) }
    }
}

/// Why the latest trajectories ended, oldest first.
#[derive(Default)]
pub(super) struct Gone {
    faults: HashMap<TrajectoryId, (JobId, Fault)>,
    order: VecDeque<TrajectoryId>,
}

impl Gone {
    fn remember(&mut self, trajectory: &TrajectoryId, job: JobId, fault: Fault) {
        if self.faults.insert(trajectory.clone(), (job, fault)).is_none() {
            self.order.push_back(trajectory.clone());
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.faults.remove(&oldest);
        }
    }
}

/// Callers that are told of a trajectory's end when that is durable, by removal.
#[derive(Default)]
pub(super) struct Leaving(HashMap<TrajectoryId, VecDeque<Farewell>>);

struct Farewell {
    fault: Option<Fault>,
    openers: Vec<Reply<pb::OpenTrajectoryResponse>>,
    closers: Vec<Reply<()>>,
}

/// True when the caller, who speaks for `named` if that is a job, may end what is of `job`.
pub(super) fn may_end(caller: &Caller, named: &str, job: &JobId) -> bool {
    (named.is_empty() || named == job.as_str()) && caller.may_use(job)
}

impl Scheduler {
    /// The job of a trajectory that the caller may use.
    pub(super) fn trajectory_job(
        &self,
        caller: &Caller,
        id: &TrajectoryId,
    ) -> Result<JobId, Fault> {
        if let Some(open) = self.trajectories.get(id).filter(|open| caller.may_use(&open.job)) {
            return Ok(open.job.clone());
        }
        if let Some((_, fault)) = self.gone.faults.get(id).filter(|(job, _)| caller.may_use(job)) {
            return Err(fault.clone());
        }
        let message = format!("trajectory `{id}` is not open: open it first");
        Err(user("TrajectoryNotOpen", message))
    }

    pub(super) fn open(
        &mut self,
        caller: &Caller,
        request: pb::OpenTrajectoryRequest,
        reply: Reply<pb::OpenTrajectoryResponse>,
    ) {
        if let Err((fault, reply)) = self.try_open(caller, request, reply) {
            self.metrics.refused.with_label_values(&[fault.kind.as_str()]).inc();
            // A caller that has gone does not want the answer.
            let _gone = reply.send(Err(fault));
        }
    }

    fn try_open(
        &mut self,
        caller: &Caller,
        request: pb::OpenTrajectoryRequest,
        reply: Reply<pb::OpenTrajectoryResponse>,
    ) -> Result<(), (Fault, Reply<pb::OpenTrajectoryResponse>)> {
        let parsed = caller.job(&request.job).and_then(|job| {
            let id = TrajectoryId::new(&request.trajectory_id).map_err(convert::bad_id)?;
            let deadline = convert::duration("deadline", request.deadline.as_ref())?;
            convert::check_env(&request.env)?;
            Ok((job, id, deadline))
        });
        let (job, id, deadline) = match parsed {
            Ok(parsed) => parsed,
            Err(fault) => return Err((fault, reply)),
        };
        if let Some(open) = self.trajectories.get_mut(&id) {
            if open.job != job || open.spec.template != request.template || open.closing {
                let message = format!("trajectory id `{id}` is in use: choose a new id");
                return Err((user("TrajectoryIdReused", message), reply));
            }
            if let Some(ready) = &open.ready {
                // A caller that has gone does not want the answer.
                let _gone = reply.send(Ok(ready.clone()));
            } else {
                open.openers.retain(|other| !other.is_closed());
                open.openers.push(reply);
            }
            return Ok(());
        }
        let Some(template) = self.config.templates.get(&request.template) else {
            let known: Vec<&str> = self.config.templates.keys().map(String::as_str).collect();
            let (name, known) = (&request.template, known.join(", "));
            let message = format!("template `{name}` does not exist; known: [{known}]");
            return Err((user("UnknownTemplate", message), reply));
        };
        let mut spec = template.spec.clone();
        spec.template.clone_from(&request.template);
        spec.env.extend(request.env);
        let mut trajectory = Trajectory::new(job, spec);
        trajectory.open_by = deadline.map(|after| self.now() + after);
        if let Err(fault) = self.check_budget(trajectory.bytes) {
            return Err((fault, reply));
        }
        trajectory.openers.push(reply);
        self.ops.push(trajectory.write(&id));
        self.feed_open(&id, &trajectory);
        self.trajectories.insert(id, trajectory);
        Ok(())
    }

    /// Tells the core of a trajectory.
    pub(super) fn feed_open(&mut self, id: &TrajectoryId, trajectory: &Trajectory) {
        self.budget.add(trajectory.bytes);
        self.events.push(Event::Open(OpenTrajectory {
            trajectory: id.clone(),
            job: trajectory.job.clone(),
            memory: trajectory.spec.memory_bytes,
            min_cores: 1,
            // One that was ready before a restart is there, or lost: its node says.
            deadline: trajectory.open_by.filter(|_| !trajectory.was_ready),
            placed: trajectory
                .node
                .clone()
                .map(|node| Placed { node, ready: trajectory.was_ready }),
        }));
    }

    pub(super) fn close(&mut self, caller: &Caller, job: &str, id: TrajectoryId, reply: Reply<()>) {
        match self.trajectories.get_mut(&id).filter(|open| may_end(caller, job, &open.job)) {
            Some(open) => {
                open.closers.retain(|other| !other.is_closed());
                open.closers.push(reply);
                if !std::mem::replace(&mut open.closing, true) {
                    open.ready = None;
                    self.ops.push(open.write(&id));
                    self.events.push(Event::Close(id));
                }
            }
            // A caller that has gone does not want the answer.
            None => drop(reply.send(Ok(()))),
        }
    }

    pub(super) fn look(&self, caller: &Caller, id: &TrajectoryId, reply: Reply<Standing>) {
        let looked = self.trajectory_job(caller, id).map(|_| match self.trajectories.get(id) {
            Some(Trajectory { closing: true, .. }) => Standing::Closing,
            Some(Trajectory { ready: Some(ready), .. }) => Standing::Ready(ready.clone()),
            _ => Standing::Opening,
        });
        // A caller that has gone does not want the answer.
        let _gone = reply.send(looked);
    }

    /// It has a node: its sandbox is ordered when that is durable.
    pub(super) fn placed(&mut self, id: &TrajectoryId, node: &NodeId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        if trajectory.node.as_ref() == Some(node) {
            return;
        }
        trajectory.node = Some(node.clone());
        trajectory.held = Some(Vec::new());
        self.ops.push(trajectory.write(id));
    }

    pub(super) fn trajectory_durable(&mut self, id: &TrajectoryId) {
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        // The record of its opening comes before that of its placement.
        trajectory.unwritten = trajectory.unwritten.saturating_sub(1);
        if trajectory.unwritten > 0 {
            return;
        }
        let Some(node) = trajectory.node.clone() else { return };
        let Some(held) = trajectory.held.take() else { return };
        for message in held {
            self.send(&node, message);
        }
    }

    pub(super) fn ready(&mut self, id: &TrajectoryId, node: &NodeId, waited: Duration) {
        let Some(trajectory) = self.trajectories.get_mut(id) else { return };
        let (times, warm) = trajectory.reset.take().unwrap_or_default();
        let response = pb::OpenTrajectoryResponse {
            node: node.to_string(),
            times: Some(pb::ResetTimes { queue_s: seconds(waited), ..times }),
            warm,
        };
        trajectory.node = Some(node.clone());
        if !trajectory.closing {
            trajectory.ready = Some(response.clone());
        }
        if !std::mem::replace(&mut trajectory.was_ready, true) {
            self.ops.push(trajectory.write(id));
        }
        for opener in trajectory.openers.drain(..) {
            // A caller that has gone does not want the answer.
            let _gone = opener.send(Ok(response.clone()));
        }
    }

    /// The core does not take it.
    pub(super) fn trajectory_refused(&mut self, id: &TrajectoryId, fault: &Fault) {
        let Some(open) = self.trajectories.get_mut(id) else { return };
        // It was never open: that is nothing to remember or to wait for.
        let openers = std::mem::take(&mut open.openers);
        self.trajectory_ended(id, None);
        for opener in openers {
            // A caller that has gone does not want the answer.
            let _gone = opener.send(Err(fault.clone()));
        }
    }

    /// Its end is durable.
    pub(super) fn trajectory_removed(&mut self, id: &TrajectoryId) {
        let Some(leaving) = self.leaving.0.get_mut(id) else { return };
        let farewell = leaving.pop_front();
        if leaving.is_empty() {
            self.leaving.0.remove(id);
        }
        let Some(Farewell { fault, openers, closers }) = farewell else { return };
        let closed = || user("TrajectoryClosed", format!("trajectory `{id}` was closed"));
        for opener in openers {
            // A caller that has gone does not want the answer.
            let _gone = opener.send(Err(fault.clone().unwrap_or_else(closed)));
        }
        for closer in closers {
            // A caller that has gone does not want the answer.
            let _gone = closer.send(Ok(()));
        }
    }

    pub(super) fn trajectory_ended(&mut self, id: &TrajectoryId, fault: Option<Fault>) {
        let Some(trajectory) = self.trajectories.remove(id) else { return };
        self.budget.sub(trajectory.bytes);
        self.ops.push(Op::RemoveTrajectory(id.clone()));
        if let Some(fault) = &fault {
            self.gone.remember(id, trajectory.job, fault.clone());
        }
        let Trajectory { openers, closers, .. } = trajectory;
        let farewell = Farewell { fault, openers, closers };
        self.leaving.0.entry(id.clone()).or_default().push_back(farewell);
        let lost = infrastructure("SandboxLost", format!("the sandbox of `{id}` is gone"));
        self.transfers.end_trajectory(id, &lost);
    }
}
