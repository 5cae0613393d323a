//! vLLM: first the prefill, then the decoding from the KV that it has kept.

use std::future::poll_fn;
use std::task::Poll;

use http::header::ACCEPT_ENCODING;
use http_body_util::{BodyExt as _, Limited};
use rollwright_core::fault::Fault;

use super::{Pair, broke};
use crate::dispatch::Stop;
use crate::engine::dialect::Api;
use crate::engine::handover;
use crate::proxy::exchange::{Attempt, Outgoing, Payload, exchange, is_event_stream};
use crate::proxy::generate::{error_inside, error_within};
use crate::proxy::relay::{Idle, broke_off, silent};
use crate::proxy::upload::Kept;

/// The longest answer to a prefill: one token, and where the KV of the prompt is.
const ANSWER: usize = 16 << 20;

impl Pair<'_> {
    /// `None`: the request cannot be split.
    pub(super) async fn in_turn(&self, api: Api, kept: &Kept) -> Option<Attempt> {
        let body = kept.joined();
        let first = handover::prefill_only(api, &body)?;
        let kv = match self.prefill(first).await {
            Ok(kv) => kv,
            Err(attempt) => return Some(attempt),
        };
        let metrics = &self.shard.parts().metrics;
        let Some(second) = kv.as_deref().and_then(|kv| handover::with_kv(&body, kv)) else {
            self.slot.prefilled();
            if metrics.without_kv.get() == 0 {
                tracing::warn!(worker = %self.prefill.worker, "it has prefilled and kept no KV: start vLLM with a connector (--kv-transfer-config), else every prompt is computed twice");
            }
            metrics.without_kv.inc();
            return Some(self.decode(&mut Payload::Kept(kept.clone())).await);
        };
        metrics.prefilled.inc();
        Some(match self.made(second) {
            Ok(made) => self.pull(made).await,
            Err(fault) => Attempt::Client(fault),
        })
    }

    /// Decodes from the KV that the prefill engine keeps until it was fetched: its slot is
    /// free, and it may be drained or updated, when the decode engine has made something.
    async fn pull(&self, made: Kept) -> Attempt {
        let (mut response, lease) = match self.decode(&mut Payload::Kept(made)).await {
            Attempt::Reply(response, lease) => (response, lease),
            ended => return ended,
        };
        if response.status().is_success() && is_event_stream(response.headers()) {
            let limit = self.shard.limits().first_byte_timeout;
            let mut silence = Idle::new(limit);
            let ended = poll_fn(|context| {
                if let Poll::Ready(first) = response.body_mut().poll_first(context) {
                    return Poll::Ready(match first {
                        Ok(first) => first.and_then(error_within).map(Attempt::Failed),
                        Err(error) => Some(Attempt::Failed(broke_off(&error))),
                    });
                }
                if let Poll::Ready(stop) = self.slot.poll_stop(context) {
                    return Poll::Ready(Some(Attempt::Stopped(stop)));
                }
                silence.poll(context).map(|()| Some(Attempt::Failed(silent(limit))))
            });
            if let Some(ended) = ended.await {
                return ended;
            }
        }
        self.slot.prefilled();
        Attempt::Reply(response, lease)
    }

    /// Where the KV is; else how the attempt has ended.
    async fn prefill(&self, body: String) -> Result<Option<String>, Attempt> {
        let mut headers = self.outgoing.headers.clone();
        headers.remove(ACCEPT_ENCODING);
        let outgoing = Outgoing {
            method: self.outgoing.method.clone(),
            target: self.outgoing.target.clone(),
            headers,
        };
        let mut payload = Payload::Kept(self.made(body).map_err(Attempt::Client)?);
        let sent = exchange(self.shard, self.prefill, Some(self.slot), &outgoing, &mut payload);
        let (response, lease) = match sent.await {
            Attempt::Reply(response, lease) => (response, lease),
            Attempt::Failed(fault) => return Err(Attempt::PrefillFailed(fault)),
            ended => return Err(ended),
        };
        if let Some(fault) = broke(response.status(), self.prefill) {
            return Err(Attempt::PrefillFailed(fault));
        }
        if !response.status().is_success() {
            // The request is wrong: in the engine's own words.
            return Err(Attempt::Reply(response, lease));
        }
        let limit = self.shard.limits().idle_timeout;
        let reply = Limited::new(response.into_body(), ANSWER).collect();
        let stopped = std::future::poll_fn(|context| self.slot.poll_stop(context));
        let failed = |fault: Fault| Attempt::PrefillFailed(fault);
        let reply = tokio::select! {
            biased;
            reply = tokio::time::timeout(limit, reply) => match reply {
                Ok(Ok(reply)) => reply.to_bytes(),
                Ok(Err(error)) => return Err(failed(broke_off(&*error))),
                Err(_) => return Err(failed(silent(limit))),
            },
            stop = stopped => {
                let stop: Stop = stop;
                return Err(Attempt::Stopped(stop));
            }
        };
        lease.give_back();
        match error_inside(&reply) {
            Some(fault) => Err(failed(fault)),
            None => Ok(handover::kept_kv(&reply)),
        }
    }
}
