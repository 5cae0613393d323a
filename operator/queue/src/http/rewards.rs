//! `/v1/rewards/{service}/{path}`: a call of a reward service on GPUs.
//!
//! What the engine answers is passed on as it is, with headers of ours beside it:
//! `X-Rollwright-Degree`, `-Node`, `-Queue-S`, `-Restore-S` and `-Exec-S`. What the engine did
//! not answer is a fault, told apart by the header `X-Rollwright-Fault`.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use rollwright_core::fault::Fault;
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;

use super::error::ApiError;
use crate::fault::{infrastructure, user};
use crate::gpu::{GpuHandle, MAX_BODY, is_passed};
use crate::scheduler::Handle;
use rollwright_auth::Caller;

/// `ANY /v1/rewards/{service}/{path}`.
pub(super) async fn call(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path((service, _)): Path<(String, String)>,
    request: Request,
) -> Response {
    match answer(&handle.gpu, caller, service, request).await {
        Ok(response) => response,
        Err(fault) => {
            let reason = HeaderValue::from_str(&fault.reason);
            let mut response = ApiError(fault).into_response();
            if let Ok(reason) = reason {
                response.headers_mut().insert("x-rollwright-fault", reason);
            }
            response
        }
    }
}

async fn answer(
    gpu: &GpuHandle,
    caller: Caller,
    service: String,
    request: Request,
) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let text = |name: &str| header(&parts.headers, name);
    let given = text("x-rollwright-action")?;
    let action_id = given.clone().unwrap_or_else(random_id);
    let degrees = text("x-rollwright-degrees")?.map(|degrees| {
        let each = degrees.split(',').map(|degree| degree.trim().parse::<u32>());
        each.collect::<Result<Vec<u32>, _>>()
    });
    let degrees = degrees.transpose().map_err(|_| {
        user("InvalidHeader", "X-Rollwright-Degrees lists numbers of GPUs, such as 1,2")
    })?;
    let job = text("x-rollwright-job")?.unwrap_or_default();
    let queue_deadline =
        seconds("X-Rollwright-Queue-Deadline", text("x-rollwright-queue-deadline")?)?;
    let timeout = seconds("X-Rollwright-Timeout", text("x-rollwright-timeout")?)?;
    let body = axum::body::to_bytes(body, MAX_BODY).await;
    let body = body.map_err(|_| {
        let message = "the body must come whole and be at most 4 MiB: ask for less in one call";
        user("BodyTooLarge", message)
    })?;
    let headers = parts.headers.iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?.to_owned();
        Some(pb::CallHeader { name: name.as_str().to_owned(), value })
    });
    let call = pb::CallRequest {
        action_id: action_id.clone(),
        job,
        method: parts.method.as_str().to_owned(),
        path: below(parts.uri.path_and_query().map_or("", |path| path.as_str())),
        headers: headers.collect(),
        service,
        body,
        degrees: degrees.unwrap_or_default(),
        queue_deadline,
        timeout,
    };
    // An id that nobody else knows: when this caller goes away, nobody can ask again.
    let mut guard = GiveUp { gpu, caller: caller.clone(), action: None };
    if given.is_none() {
        guard.action = ActionId::new(&action_id).ok();
    }
    let answered = gpu.call(caller, call).await;
    guard.action = None;
    response(answered?)
}

/// The path at the engine: all that follows the service.
fn below(path: &str) -> String {
    let rest = path.trim_start_matches("/v1/rewards/");
    rest.split_once('/').map_or_else(|| "/".to_owned(), |(_, path)| format!("/{path}"))
}

fn header(headers: &HeaderMap, name: &str) -> Result<Option<String>, Fault> {
    let value = headers.get(name).map(HeaderValue::to_str).transpose();
    let value = value.map_err(|_| user("InvalidHeader", format!("header {name} must be ASCII")))?;
    Ok(value.map(str::to_owned))
}

fn seconds(name: &str, value: Option<String>) -> Result<Option<prost_types::Duration>, Fault> {
    let Some(value) = value else { return Ok(None) };
    let parsed = value.parse().ok().and_then(|s| std::time::Duration::try_from_secs_f64(s).ok());
    let parsed = parsed.and_then(|duration| prost_types::Duration::try_from(duration).ok());
    let wrong = || user("InvalidHeader", format!("{name} must be a number of seconds, such as 30"));
    parsed.ok_or_else(wrong).map(Some)
}

fn random_id() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    // Each is keyed anew by the system's randomness.
    let word = || std::hash::RandomState::new().build_hasher().finish();
    format!("http-{:016x}{:016x}", word(), word())
}

fn response(answered: pb::CallResponse) -> Result<Response, Fault> {
    let broken = |what: &str| {
        infrastructure("BadAnswer", format!("the engine's answer has {what} that is no HTTP"))
    };
    let status = u16::try_from(answered.status).ok();
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut response =
        (status.ok_or_else(|| broken("a status"))?, Body::from(answered.body)).into_response();
    let headers = response.headers_mut();
    headers.clear();
    for of in answered.headers.iter().filter(|of| is_passed(&of.name)) {
        let name = HeaderName::from_bytes(of.name.as_bytes()).map_err(|_| broken("a header"))?;
        headers.append(name, HeaderValue::from_str(&of.value).map_err(|_| broken("a header"))?);
    }
    let ours = [
        ("x-rollwright-degree", answered.degree.to_string()),
        ("x-rollwright-node", answered.node),
        ("x-rollwright-queue-s", format!("{:.6}", answered.queue_s)),
        ("x-rollwright-restore-s", format!("{:.6}", answered.restore_s)),
        ("x-rollwright-exec-s", format!("{:.6}", answered.exec_s)),
    ];
    for (name, value) in ours {
        headers.insert(name, HeaderValue::from_str(&value).map_err(|_| broken("a name"))?);
    }
    Ok(response)
}

/// Cancels a call when its caller has gone.
struct GiveUp<'a> {
    gpu: &'a GpuHandle,
    caller: Caller,
    action: Option<ActionId>,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(action) = self.action.take() {
            self.gpu.give_up(self.caller.clone(), action);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_below_the_service_is_the_engines() {
        assert_eq!(below("/v1/rewards/judge/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(below("/v1/rewards/judge/score?a=b/c"), "/score?a=b/c");
    }

    #[test]
    fn ids_of_our_own_are_ids_and_differ() {
        assert!(ActionId::new(&random_id()).is_ok());
        assert_ne!(random_id(), random_id());
    }
}
