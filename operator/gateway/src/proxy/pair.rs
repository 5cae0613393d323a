//! A request at the engines of its placement: at one, or its prefill at one and its decoding
//! at another.

mod at_once;
mod in_turn;

use std::future::poll_fn;
use std::sync::Arc;

use http::StatusCode;
use rollwright_core::fault::Fault;
use rollwright_crds::engine::EngineType;

use super::Shard;
use super::exchange::{Attempt, Outgoing, Payload, exchange};
use super::generate::unavailable;
use super::upload::{self, Kept};
use crate::dispatch::Slot;
use crate::engine::dialect::Api;
use crate::engine::endpoint::Endpoint;
use crate::fault::infrastructure;

/// Sends a request where its slot says, and waits for the head of the reply.
pub(super) async fn exchange_placed(
    shard: &Arc<Shard>,
    slot: &Slot,
    api: Api,
    outgoing: &Outgoing,
    payload: &mut Payload,
) -> Attempt {
    let placement = slot.placement();
    match &placement.prefill {
        None => exchange(shard, &placement.endpoint, Some(slot), outgoing, payload).await,
        // Boxed, so that requests of one engine do not carry its size.
        Some(prefill) => Box::pin(pair(shard, slot, prefill, api, outgoing, payload)).await,
    }
}

async fn pair(
    shard: &Arc<Shard>,
    slot: &Slot,
    prefill: &Arc<Endpoint>,
    api: Api,
    outgoing: &Outgoing,
    payload: &mut Payload,
) -> Attempt {
    let kept = tokio::select! {
        biased;
        kept = payload.keep(shard.limits(), &shard.shared.budget) => match kept {
            Ok(kept) => kept,
            Err(fault) => return Attempt::Client(fault),
        },
        // A slow client holds back no update.
        stop = poll_fn(|context| slot.poll_stop(context)) => return Attempt::Stopped(stop),
    };
    let pair = Pair { shard, slot, prefill, outgoing };
    let split = match (prefill.kind, &prefill.bootstrap) {
        (EngineType::Vllm, _) => pair.in_turn(api, &kept).await,
        (EngineType::SGLang, Some(bootstrap)) => pair.at_once(bootstrap, &kept).await,
        (EngineType::SGLang | EngineType::OpenAI, _) => None,
    };
    if let Some(attempt) = split {
        return attempt;
    }
    // Only the decode engine can say what it makes of it.
    slot.prefilled();
    pair.decode(&mut Payload::Kept(kept)).await
}

/// Two engines for one request.
struct Pair<'a> {
    shard: &'a Arc<Shard>,
    slot: &'a Slot,
    prefill: &'a Arc<Endpoint>,
    outgoing: &'a Outgoing,
}

impl Pair<'_> {
    async fn decode(&self, payload: &mut Payload) -> Attempt {
        let decode = &self.slot.placement().endpoint;
        exchange(self.shard, decode, Some(self.slot), self.outgoing, payload).await
    }

    /// A body of our making, in the memory that bodies may take.
    fn made(&self, body: String) -> Result<Kept, Fault> {
        upload::made(body.into(), self.shard.limits(), &self.shard.shared.budget)
    }
}

/// Why a prefill engine's reply with this status is its failure, if it is.
fn broke(status: StatusCode, prefill: &Endpoint) -> Option<Fault> {
    unavailable(status, prefill.worker.as_str()).or_else(|| {
        let message = || format!("prefill worker `{}` answered {status}", prefill.worker);
        status.is_server_error().then(|| infrastructure("EngineError", message()))
    })
}
