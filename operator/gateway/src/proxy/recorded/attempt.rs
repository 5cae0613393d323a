//! One engine's part in a turn: its request, and the head of its reply.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use http_body_util::Limited;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_crds::engine::EngineType;

use super::{Break, Ended, Turn};
use crate::engine::dialect::Api;
use crate::proxy::abort::AbortByName;
use crate::proxy::exchange::{Attempt, Lease, Outgoing, Payload};
use crate::proxy::generate::unavailable;
use crate::proxy::incoming::EngineBody;
use crate::proxy::pair::exchange_placed;
use crate::proxy::upload::Kept;

/// The longest error of an engine that is passed on.
const ERROR: usize = 64 * 1024;

/// A reply of status 200 that has begun.
pub(super) struct Begun {
    // Dropped in this order: an engine that is told to abort by name hears that at last.
    pub(super) response: Response<EngineBody>,
    pub(super) lease: Lease,
    pub(super) abort: Option<AbortByName>,
}

impl Turn {
    /// Asks engines until one begins to reply. What an engine held back is given with it.
    pub(super) async fn begin(&mut self) -> Result<(Begun, String), Ended> {
        let mut held = String::new();
        loop {
            let why = match self.attempt().await? {
                Ok(begun) => return Ok((begun, held)),
                Err(why) => why,
            };
            held.push_str(&self.resume(why).await?);
        }
    }

    async fn attempt(&mut self) -> Result<Result<Begun, Break>, Ended> {
        let Some(slot) = &self.slot else {
            let message = "the turn has no worker";
            return Err(Fault::new(FaultKind::Infrastructure, "NoWorker", message).into());
        };
        let endpoint = Arc::clone(&slot.placement().endpoint);
        let priority = slot.priority();
        let rid = format!("rollwright-{}-{}", slot.request(), self.attempts);
        let made = &self.made;
        let (api, body) = if made.ids.is_empty() {
            (self.ask.api(), self.ask.beginning(&endpoint, priority, &rid)?)
        } else {
            let body = self.ask.continuation(&endpoint, priority, &rid, &made.prompt, &made.ids)?;
            (self.ask.api().continued_by(), body)
        };
        let outgoing = Outgoing {
            method: Method::POST,
            target: api.path().to_owned(),
            headers: self.headers.clone(),
        };
        let mut payload = Payload::Kept(Kept::from(Bytes::from(body)));
        let named = api == Api::Generate && endpoint.kind == EngineType::SGLang;
        let abort = named.then(|| AbortByName::new(&self.shard, &endpoint, rid));
        match exchange_placed(&self.shard, slot, api, &outgoing, &mut payload).await {
            Attempt::Stopped(stop) => Ok(Err(Break::Back { restart: stop.restart })),
            Attempt::Failed(fault) => {
                self.shard.parts().metrics.failed(endpoint.index);
                Ok(Err(Break::Failed(fault)))
            }
            Attempt::PrefillFailed(fault) => {
                self.shard.parts().metrics.failed(slot.placement().blamed(true).index);
                Ok(Err(Break::PrefillFailed(fault)))
            }
            Attempt::Client(fault) => Err(fault.into()),
            Attempt::Reply(response, lease) => {
                let status = response.status();
                let elsewhere = unavailable(status, endpoint.worker.as_str()).or_else(|| {
                    let message = || format!("worker `{}` answered {status}", endpoint.worker);
                    let broken = status.is_server_error();
                    broken.then(|| Fault::new(FaultKind::Infrastructure, "EngineError", message()))
                });
                if let Some(fault) = elsewhere {
                    self.shard.parts().metrics.failed(endpoint.index);
                    return Ok(Err(Break::Failed(fault)));
                }
                if status.is_success() {
                    return Ok(Ok(Begun { response, lease, abort }));
                }
                let body = Limited::new(response.into_body(), ERROR).collect().await;
                let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                let ended = Ended::Engine(status, body);
                // It is the request that is wrong, unless it was ours.
                if made.ids.is_empty() { Err(ended) } else { Err(ended.into_fault().into()) }
            }
        }
    }
}
