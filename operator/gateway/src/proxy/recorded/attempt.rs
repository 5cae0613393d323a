//! One engine's part in a turn: its request, and the head of its reply.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use http_body_util::Limited;
use hyper::body::Incoming;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_crds::engine::EngineType;

use super::{Break, Ended, Turn};
use crate::engine::dialect::Api;
use crate::engine::endpoint::Endpoint;
use crate::proxy::Shard;
use crate::proxy::exchange::{Attempt, Lease, Outgoing, Payload, exchange};
use crate::proxy::generate::unavailable;
use crate::proxy::upload::Kept;

/// The longest error of an engine that is passed on.
const ERROR: usize = 64 * 1024;

/// A reply of status 200 that has begun.
pub(super) struct Begun {
    // Dropped in this order: an engine that is told to abort by name hears that at last.
    pub(super) response: Response<Incoming>,
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
        let abort = named.then(|| AbortByName {
            shard: Arc::clone(&self.shard),
            endpoint: Arc::clone(&endpoint),
            rid: Some(rid),
        });
        match exchange(&self.shard, &endpoint, Some(slot), &outgoing, &mut payload).await {
            Attempt::Stopped(stop) => Ok(Err(Break::Back { restart: stop.restart })),
            Attempt::Failed(fault) => {
                self.shard.parts().metrics.failed(endpoint.index);
                Ok(Err(Break::Failed(fault)))
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

/// Tells `SGLang` to abort a request, when dropped before its end: it does not always notice
/// that a connection was closed.
pub(super) struct AbortByName {
    shard: Arc<Shard>,
    endpoint: Arc<Endpoint>,
    rid: Option<String>,
}

impl AbortByName {
    /// The request has ended.
    pub(super) fn defuse(mut self) {
        self.rid = None;
    }
}

impl Drop for AbortByName {
    fn drop(&mut self) {
        let Some(rid) = self.rid.take() else { return };
        let (shard, endpoint) = (Arc::clone(&self.shard), Arc::clone(&self.endpoint));
        // Outside of a runtime the process is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut headers = http::HeaderMap::new();
            headers.insert(
                http::header::CONTENT_TYPE,
                http::HeaderValue::from_static("application/json"),
            );
            let outgoing =
                Outgoing { method: Method::POST, target: "/abort_request".to_owned(), headers };
            let body = Bytes::from(format!("{{\"rid\":\"{rid}\"}}"));
            let mut payload = Payload::Kept(Kept::from(body));
            // A dead engine has aborted it in its own way.
            let _ = exchange(&shard, &endpoint, None, &outgoing, &mut payload).await;
        });
    }
}
