//! Where a call stands, for those who ask without calling.

use rollwright_core::fault::Fault;
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;
use tokio::sync::oneshot;

use super::actor::Gpu;
use super::calls::WAITERS;
use crate::fault::full;
use crate::store::CallAnswer;
use rollwright_auth::Caller;

/// What is known of a call.
#[derive(Debug)]
pub(crate) struct CallState {
    /// The reward service's id at the queue.
    pub(crate) service: String,
    pub(crate) stage: CallStage,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum CallStage {
    Waiting,
    Running {
        node: String,
        /// GPUs of its engine.
        degree: u32,
        /// Seconds from submission to start.
        queue_s: f64,
        /// The part of them in which its engine was being made resident.
        restore_s: f64,
    },
    Ended(Result<pb::CallResponse, pb::Fault>),
}

/// What the pools know of a call.
pub(crate) enum Looked {
    /// Nothing: perhaps its answer is stored.
    Unknown,
    Live(CallState),
    /// It has not ended; when it has, this is told, and then its answer is stored.
    Ends(oneshot::Receiver<Result<pb::CallResponse, Fault>>),
}

impl From<CallAnswer> for CallState {
    fn from(answer: CallAnswer) -> Self {
        let CallAnswer { service, response, fault, .. } = answer;
        let ended = response.ok_or_else(|| fault.unwrap_or_default());
        Self { service, stage: CallStage::Ended(ended) }
    }
}

impl Gpu {
    /// Where a call stands, or with `wait` its end.
    pub(super) fn look(
        &mut self,
        caller: &Caller,
        action: &ActionId,
        wait: bool,
    ) -> Result<Looked, Fault> {
        let mine = |call: &&mut super::calls::Call| caller.may_use(&call.job);
        let Some(call) = self.calls.get_mut(action).filter(mine) else {
            return Ok(Looked::Unknown);
        };
        if wait {
            let (reply, answer) = oneshot::channel();
            return if call.wait(reply).is_ok() {
                Ok(Looked::Ends(answer))
            } else {
                Err(full(format!("{WAITERS} callers wait for this call already")))
            };
        }
        let service = self.pools[call.pool].label(call.service).to_owned();
        let stage = call.run.as_ref().map_or(CallStage::Waiting, |run| CallStage::Running {
            node: run.node.to_string(),
            degree: run.degree,
            queue_s: run.began.since(call.submitted).as_secs_f64(),
            restore_s: run.restored_for.as_secs_f64(),
        });
        Ok(Looked::Live(CallState { service, stage }))
    }
}
