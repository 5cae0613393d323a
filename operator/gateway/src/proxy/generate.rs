//! Generation requests that nobody has to read: passed through byte for byte.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use memchr::memmem;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::rollout::Ask;
use rollwright_core::router::Usage;

use super::body::Body;
use super::exchange::{Attempt, Lease, Outgoing, Payload, drop_hop_by_hop, is_event_stream, short};
use super::incoming::EngineBody;
use super::pair::exchange_placed;
use super::relay::{Relay, broke_off};
use super::{Shard, identity, recorded, upload};
use crate::dispatch::Slot;
use crate::engine::dialect::Api;
use crate::engine::turn::TurnAsk;
use crate::engine::usage;

/// Replies up to so many bytes are sent in one piece, with their head.
const SHORT: u64 = 64 * 1024;

/// Answers a generation request.
pub(crate) async fn generate(
    shard: &Arc<Shard>,
    api: Api,
    prefix: Option<&str>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Fault> {
    let (head, body) = request.into_parts();
    let limits = shard.limits();
    upload::check_length(&body, limits)?;
    let mut trajectory = identity::trajectory(prefix, &head.headers)?;
    let task = identity::task(&head.headers)?.unwrap_or_else(|| shard.parts().task.clone());

    let dispatch = &shard.parts().dispatch;
    let mut recorded = trajectory.as_ref().is_some_and(|id| dispatch.records(id));

    let long = {
        use http_body::Body as _;
        body.size_hint().upper().is_none_or(|length| length > limits.max_kept as u64)
    };
    let payload = if trajectory.is_some() && !recorded && long {
        Payload::streamed(body, limits)
    } else {
        let kept = upload::read(body, limits, &shard.shared.budget).await?;
        if trajectory.is_none() {
            trajectory = identity::trajectory_in(&kept.joined());
            recorded = trajectory.as_ref().is_some_and(|id| dispatch.records(id));
        }
        Payload::Kept(kept)
    };

    let mut headers = head.headers;
    drop_hop_by_hop(&mut headers);
    let ask = Ask { trajectory, task };
    if let (true, Payload::Kept(kept)) = (recorded, &payload) {
        let turn = TurnAsk::read(api, kept.joined())?;
        // Boxed, so that the requests that pass through do not carry its size.
        return Box::pin(recorded::recorded(shard, ask, turn, headers)).await;
    }
    let target = match head.uri.query() {
        Some(query) => format!("{}?{query}", api.path()),
        None => api.path().to_owned(),
    };
    pass(shard, ask, api, Outgoing { method: head.method, target, headers }, payload).await
}

/// Passes a request to workers until one replies.
async fn pass(
    shard: &Arc<Shard>,
    ask: Ask,
    api: Api,
    outgoing: Outgoing,
    mut payload: Payload,
) -> Result<Response<Body>, Fault> {
    let mut slot = shard.parts().dispatch.place(ask).await?;
    loop {
        let attempt = exchange_placed(shard, &slot, api, &outgoing, &mut payload).await;
        let (fault, prefill) = match attempt {
            Attempt::Reply(response, lease) => match reply(shard, slot, response, lease).await {
                Ok(response) => return Ok(response),
                Err((unused, fault)) => {
                    slot = unused;
                    (fault, false)
                }
            },
            Attempt::Stopped(_) if payload.whole() => {
                slot = slot.back().await?;
                continue;
            }
            Attempt::Stopped(_) => {
                let message = "the worker is being updated and the body had been passed on: send the request again";
                let fault = Fault::new(FaultKind::Infrastructure, "TakenBack", message);
                return Err(fault);
            }
            // The slot is given up by its drop: the worker did nothing wrong.
            Attempt::Client(fault) => return Err(fault),
            Attempt::Failed(fault) => (fault, false),
            Attempt::PrefillFailed(fault) => (fault, true),
        };
        shard.parts().metrics.failed(slot.placement().blamed(prefill).index);
        if !payload.whole() {
            slot.failed(fault.clone());
            return Err(fault);
        }
        slot = slot.retry(fault, prefill).await?;
    }
}

/// The reply to the client, or the slot back with why another worker should be asked.
async fn reply(
    shard: &Shard,
    slot: Slot,
    response: Response<EngineBody>,
    lease: Lease,
) -> Result<Response<Body>, (Slot, Fault)> {
    let is_short = short(&response, SHORT);
    let (mut head, body) = response.into_parts();
    if let Some(fault) = unavailable(head.status, slot.placement().endpoint.worker.as_str()) {
        return Err((slot, fault));
    }
    if head.status.is_server_error() && slot.placement().prefill.is_some() {
        // Perhaps it could not have the KV: nothing was made, so another pair may do.
        let message = format!("the engine answered {}", head.status);
        return Err((slot, Fault::new(FaultKind::Infrastructure, "EngineError", message)));
    }
    drop_hop_by_hop(&mut head.headers);
    if !is_short {
        let events = is_event_stream(&head.headers);
        let relay = Relay::new(body, lease, Some(slot), events, shard.limits().idle_timeout);
        return Ok(Response::from_parts(head, Body::relay(relay)));
    }
    let body = match tokio::time::timeout(shard.limits().idle_timeout, body.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return Err((slot, broke_off(&error))),
        Err(_) => return Err((slot, super::relay::silent(shard.limits().idle_timeout))),
    };
    lease.give_back();
    if head.status.is_success() {
        if let Some(fault) = error_inside(&body) {
            return Err((slot, fault));
        }
        slot.done(usage::find(&body), None);
    } else if head.status.is_server_error() {
        let message = format!("the engine answered {}", head.status);
        slot.failed(Fault::new(FaultKind::Infrastructure, "EngineError", message));
    } else {
        slot.done(Usage::default(), None);
    }
    Ok(Response::from_parts(head, Body::whole(body)))
}

/// Statuses with which an engine, or what stands before it, says that another may do.
pub(crate) fn unavailable(status: StatusCode, worker: &str) -> Option<Fault> {
    let busy = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let message = || format!("worker `{worker}` answered {status}");
    busy.then(|| Fault::new(FaultKind::Infrastructure, "EngineUnavailable", message()))
}

/// Some engines report an error with status 200.
pub(crate) fn error_inside(body: &Bytes) -> Option<Fault> {
    let start = &body[..body.len().min(64)];
    let error = memmem::find(start, b"{\"error\"") == Some(0)
        || memmem::find(start, b"{\"object\":\"error\"") == Some(0);
    let message = || {
        let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        format!("the engine answered 200 with an error: {shown}")
    };
    error.then(|| Fault::new(FaultKind::Infrastructure, "EngineError", message()))
}

/// The same of a piece of a reply: whole, or as an event.
pub(crate) fn error_within(piece: &Bytes) -> Option<Fault> {
    let start = if piece.starts_with(b"data: ") { 6 } else { 0 };
    error_inside(&piece.slice(start..))
}
