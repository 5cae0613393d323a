//! Calls that were started. The start is on disk before the agent is told of it, so that no
//! call is started twice: a queue that comes back knows which node has it. There it ends, or
//! with a fault when the node has been away for too long.

use pb::queue_message::Message as ToAgent;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::gpu::{EngineId, Event, ServiceIndex};
use rollwright_core::ids::{ActionId, JobId, NodeId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::calls::{Call, Run, Stage};
use crate::fault::{self, infrastructure};
use crate::store::{CallAnswer, Ended, Op, StartedCall, StoreError};

impl Gpu {
    /// Takes up the calls that an earlier queue started.
    pub(super) fn recover(&mut self, calls: Vec<(String, StartedCall)>) -> Result<(), StoreError> {
        for (key, record) in calls {
            let invalid = |error: &dyn std::fmt::Display| StoreError::Invalid {
                what: "call",
                key: key.clone(),
                message: error.to_string(),
            };
            let action = ActionId::new(&key).map_err(|error| invalid(&error))?;
            let job = JobId::new(&record.job).map_err(|error| invalid(&error))?;
            let node = NodeId::new(&record.node).map_err(|error| invalid(&error))?;
            match self.services.get(&record.service).copied() {
                Some((pool, service)) => {
                    self.take_up(action, job, node, (pool, service), record);
                }
                None => self.service_gone(action, record),
            }
        }
        Ok(())
    }

    fn take_up(
        &mut self,
        action: ActionId,
        job: JobId,
        node: NodeId,
        (pool, service): (usize, ServiceIndex),
        record: StartedCall,
    ) {
        self.expect(node.clone());
        let run = Run {
            engine: EngineId(record.engine),
            node,
            degree: record.degree,
            began: Time::from_nanos(record.began),
            restored_for: std::time::Duration::from_nanos(record.restored_for),
        };
        self.pools[pool].tallies[service.0].running += 1;
        let submitted = Time::from_nanos(record.submitted);
        let call = Call {
            stage: Stage::Live,
            run: Some(run),
            ..Call::new(job, pool, service, submitted, record.digest)
        };
        self.insert(action, call);
    }

    fn service_gone(&mut self, action: ActionId, record: StartedCall) {
        let message = format!(
            "reward service `{}` was taken from this queue while the call ran",
            record.service
        );
        let fault = fault::to_proto(&infrastructure("RewardServiceGone", message));
        let (service, digest) = (record.service, record.digest);
        let call = CallAnswer { service, digest, response: None, fault: Some(fault) };
        let at = self.now().as_nanos();
        let record = Ended { job: record.job, at, call: Some(call.into()), ..Ended::default() };
        self.ops.push(Op::Answer { action, record: record.into() });
    }

    /// Keeps back an order to start a call until it is on disk.
    pub(super) fn hold(&mut self, action: &ActionId, start: pb::StartCall) {
        let Some(call) = self.calls.get_mut(action) else { return };
        let Some(run) = &call.run else { return };
        let record = StartedCall {
            job: call.job.as_str().to_owned(),
            service: self.pools[call.pool].label(call.service).to_owned(),
            digest: call.digest.clone(),
            node: run.node.as_str().to_owned(),
            engine: run.engine.0,
            degree: run.degree,
            submitted: call.submitted.as_nanos(),
            began: run.began.as_nanos(),
            restored_for: u64::try_from(run.restored_for.as_nanos()).unwrap_or(u64::MAX),
        };
        call.held = Some(start);
        let record = Box::new(record);
        self.ops.push(Op::Start { action: action.clone(), record });
    }

    /// The start of a call is on disk: its agent is told, unless it has ended meanwhile.
    pub(super) fn on_record(&mut self, action: &ActionId) {
        let Some(call) = self.calls.get_mut(action) else { return };
        let (Some(start), Some(run)) = (call.held.take(), &call.run) else { return };
        if call.stage == Stage::Live {
            let node = run.node.clone();
            self.send(&node, ToAgent::StartCall(start));
        }
    }

    /// Ends a call on its engine, of which its agent may not have been told yet.
    pub(super) fn cancel_run(
        &mut self,
        at: usize,
        action: ActionId,
        engine: EngineId,
        node: &NodeId,
    ) {
        let held = self.calls.get_mut(&action).and_then(|call| call.held.take());
        if held.is_some_and(|start| start.engine == engine.0) {
            let fault = Fault::new(FaultKind::Cancelled, "Cancelled", "it was never started");
            self.events.push_back((at, Event::Finished { action, engine, result: Err(fault) }));
        } else {
            let action_id = action.as_str().to_owned();
            let cancel = pb::CancelCall { action_id, engine: engine.0 };
            self.send(node, ToAgent::CancelCall(cancel));
        }
    }

    /// A node whose link is gone, or that an earlier queue had: it has its time to come back.
    pub(super) fn expect(&mut self, node: NodeId) {
        let at = self.now() + self.parts.node_grace;
        self.away.insert(node, at);
    }

    /// Ends the calls of nodes that have been away for too long.
    pub(super) fn give_up_away(&mut self, now: Time) {
        let over: Vec<NodeId> =
            self.away.extract_if(.., |_, at| *at <= now).map(|of| of.0).collect();
        for node in over {
            let away = self.parts.node_grace.as_secs_f64();
            let message = format!(
                "node `{node}` has been away for {away:.0} s: what became of the call is not known"
            );
            let fault = infrastructure("NodeLost", message);
            for action in self.calls_on(&node) {
                // The core frees its place when the node is back.
                self.ended(&action, Err(fault.clone()));
            }
        }
    }

    /// Calls that were started on a node and are not answered.
    pub(super) fn calls_on(&self, node: &NodeId) -> Vec<ActionId> {
        let on = |call: &Call| call.run.as_ref().is_some_and(|run| run.node == *node);
        self.calls.iter().filter(|(_, call)| on(call)).map(|(action, _)| action.clone()).collect()
    }
}
