//! The end of a call: ended, durable, answered.

use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::calls::{Call, Stage};
use super::handle::Reply;
use super::wire;
use crate::fault;
use crate::store::{CallAnswer, Ended, Op};

impl Gpu {
    /// The core is done with a call.
    pub(super) fn ended(&mut self, action: &ActionId, result: Result<(), Fault>) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(action) else { return };
        if matches!(call.stage, Stage::Ended(_)) {
            return;
        }
        if let (Stage::Offered, Err(fault)) = (&call.stage, &result) {
            // Refused: it was never accepted, and the same id may come again.
            let fault = fault.clone();
            let Some(call) = self.remove(action) else { return };
            return self.refuse(call.waiters, &fault);
        }
        let pool = &mut self.pools[call.pool];
        if call.run.is_some() {
            let tally = &mut pool.tallies[call.service.0];
            tally.running = tally.running.saturating_sub(1);
        }
        let report = call.report.take();
        let outcome = result.and_then(|()| response(call, report));
        let service = pool.label(call.service).to_owned();
        let metrics = &self.parts.metrics.gpu;
        let kind = outcome.as_ref().map_or_else(|fault| fault.kind.as_str(), |_| "answered");
        metrics.ended.with_label_values(&[&service, kind]).inc();
        let took = now.since(call.submitted).as_secs_f64();
        metrics.act_seconds.with_label_values(&[&service]).observe(took);
        let restored_for = call.run.as_ref().map_or(0.0, |run| run.restored_for.as_secs_f64());
        metrics.restore_wait_seconds.with_label_values(&[&service]).inc_by(restored_for);
        let (response, fault) = match outcome {
            Ok(response) => (Some(response), None),
            Err(fault) => (None, Some(fault::to_proto(&fault))),
        };
        let answered = CallAnswer { service, response, fault, digest: call.digest.clone() };
        let record = Arc::new(Ended {
            job: call.job.as_str().to_owned(),
            at: now.as_nanos(),
            call: Some(answered.into()),
            ..Ended::default()
        });
        call.stage = Stage::Ended(Arc::clone(&record));
        self.ops.push(Op::Answer { action: action.clone(), record });
    }

    /// The answer is on disk: now it may be known.
    pub(super) fn durable(&mut self, action: &ActionId) {
        let Some(call) = self.remove(action) else { return };
        if let Stage::Ended(record) = &call.stage {
            answer(call.waiters, record);
        }
        if let Some(keeper) = &call.keeper {
            self.acknowledge(keeper, action);
        }
        if let Some(run) = &call.run {
            self.release_if_done(call.pool, &run.node);
        }
    }

    pub(super) fn refuse(&self, waiters: Vec<Reply>, fault: &Fault) {
        self.parts.metrics.refused.with_label_values(&[fault.kind.as_str()]).inc();
        for waiter in waiters {
            // Who has gone does not want the answer.
            let _gone = waiter.send(Err(fault.clone()));
        }
    }
}

/// Tells those who wait.
pub(super) fn answer(waiters: Vec<Reply>, ended: &Ended) {
    let call = ended.call.as_deref().cloned().unwrap_or_default();
    let answer = match (call.response, call.fault) {
        (Some(response), _) => Ok(response),
        (None, Some(fault)) => Err(fault::from_proto(fault)),
        (None, None) => Err(wire::lost()),
    };
    for waiter in waiters {
        // Who has gone may ask again.
        let _gone = waiter.send(answer.clone());
    }
}

/// What an engine answered, with our account of the time.
fn response(call: &Call, report: Option<pb::CallEnded>) -> Result<pb::CallResponse, Fault> {
    let report = report.ok_or_else(wire::lost)?;
    let exec_s = report.exec_s;
    let reply = match report.end {
        Some(pb::call_ended::End::Reply(reply)) => reply,
        Some(pb::call_ended::End::Fault(fault)) => return Err(fault::from_proto(fault)),
        None => return Err(wire::lost()),
    };
    let run = call.run.as_ref();
    Ok(pb::CallResponse {
        status: reply.status,
        headers: reply.headers,
        body: reply.body,
        degree: run.map_or(0, |run| run.degree),
        node: run.map_or_else(String::new, |run| run.node.to_string()),
        queue_s: run.map_or(0.0, |run| run.began.since(call.submitted).as_secs_f64()),
        restore_s: run.map_or(0.0, |run| run.restored_for.as_secs_f64()),
        exec_s,
    })
}
