//! From the head of a request to the one who answers it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use rollwright_auth::Caller;
use rollwright_core::fault::{Fault, FaultKind};
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use super::body::Body;
use super::exchange::{Attempt, Outgoing, Payload, drop_hop_by_hop, exchange};
use super::relay::Relay;
use super::reply::{json, refusal};
use super::route::Route;
use super::upload::Kept;
use super::{Shard, generate};

/// Answers one request. `local`: it came over a Unix socket.
pub(crate) async fn serve(
    shard: &Arc<Shard>,
    local: bool,
    request: Request<Incoming>,
) -> Response<Body> {
    let begun = Instant::now();
    let found = Route::of(request.uri().path());
    let Some((route, prefix)) = found else {
        let path: String = request.uri().path().chars().take(100).collect();
        let message = format!(
            "there is no `{path}`; there are /v1/chat/completions, /v1/completions, /v1/models, /generate, /rollout/v1/..., /health and /healthz"
        );
        return refusal(&Fault::new(FaultKind::User, "NoSuchRoute", message));
    };
    let prefix = prefix.map(str::to_owned);
    let response = answer(shard, local, route, prefix, request).await;
    let response = response.unwrap_or_else(|fault| refusal(&fault));
    shard.parts().metrics.replied(route, response.status(), begun.elapsed());
    response
}

async fn answer(
    shard: &Arc<Shard>,
    local: bool,
    route: Route,
    prefix: Option<String>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Fault> {
    match route {
        Route::Live => return Ok(json(StatusCode::OK, r#"{"status":"ok"}"#)),
        Route::Health => {
            return Ok(if shard.parts().dispatch.any_endpoint().is_some() {
                json(StatusCode::OK, r#"{"status":"ok"}"#)
            } else {
                json(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"no worker in service"}"#)
            });
        }
        _ => {}
    }
    let caller = caller(shard, local, &request)?;
    if route == Route::Rollout {
        // Boxed, as all that is not the common path: a connection keeps room for the largest.
        return Box::pin(api(shard, caller, request)).await;
    }
    let wanted = if route == Route::Models { Method::GET } else { Method::POST };
    if *request.method() != wanted {
        let message = format!("{} takes {wanted}", route.path());
        return Err(Fault::new(FaultKind::User, "MethodNotAllowed", message));
    }
    match route.api() {
        Some(api) => generate::generate(shard, api, prefix.as_deref(), request).await,
        None => Box::pin(models(shard)).await,
    }
}

fn caller(shard: &Shard, local: bool, request: &Request<Incoming>) -> Result<Caller, Fault> {
    if local {
        return Ok(Caller::local());
    }
    let parts = shard.parts();
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let auth = parts
        .auth
        .as_ref()
        .ok_or_else(|| Fault::new(FaultKind::User, "Unauthenticated", "the caller is not known"))?;
    let caller = auth.authenticate(header, SystemTime::now())?;
    if !caller.may_use(&parts.job) {
        let message = format!("this API key or token is not for job `{}`", parts.job);
        return Err(Fault::new(FaultKind::User, "Forbidden", message));
    }
    Ok(caller)
}

/// Runs a call of `/rollout/v1` beside the data path; it ends when its client is gone.
async fn api(
    shard: &Shard,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<Body>, Fault> {
    let parts = shard.parts();
    let mut request = request.map(axum::body::Body::new);
    request.extensions_mut().insert(caller);
    let call = parts.api.clone().oneshot(request);
    let reply = AbortOnDropHandle::new(parts.api_runtime.spawn(call)).await;
    let Ok(Ok(response)) = reply else {
        let message = "the gateway is shutting down: try again";
        return Err(Fault::new(FaultKind::Infrastructure, "ShuttingDown", message));
    };
    Ok(response.map(Body::api))
}

async fn models(shard: &Arc<Shard>) -> Result<Response<Body>, Fault> {
    let parts = shard.parts();
    if !parts.models.is_empty() {
        let model = |id| serde_json::json!({"id": id, "object": "model", "owned_by": "rollwright"});
        let data: Vec<_> = parts.models.iter().map(model).collect();
        let list = serde_json::json!({"object": "list", "data": data});
        return Ok(json(StatusCode::OK, list.to_string()));
    }
    let endpoint = parts.dispatch.any_endpoint().ok_or_else(|| {
        let message = "no worker is in service: try again when one is";
        Fault::new(FaultKind::Infrastructure, "NoWorker", message)
    })?;
    let outgoing = Outgoing {
        method: Method::GET,
        target: Route::Models.path().to_owned(),
        headers: http::HeaderMap::new(),
    };
    let mut payload = Payload::Kept(Kept::from(Bytes::new()));
    match exchange(shard, &endpoint, None, &outgoing, &mut payload).await {
        Attempt::Reply(response, lease) => {
            let (mut head, body) = response.into_parts();
            drop_hop_by_hop(&mut head.headers);
            let relay = Relay::new(body, lease, None, false, shard.limits().idle_timeout);
            Ok(Response::from_parts(head, Body::relay(relay)))
        }
        Attempt::Failed(fault) | Attempt::PrefillFailed(fault) | Attempt::Client(fault) => {
            Err(fault)
        }
        // Nobody can stop what has no slot.
        Attempt::Stopped(_) => Err(Fault::new(FaultKind::Cancelled, "Stopped", "it was stopped")),
    }
}
