//! `/v1/permits`.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use rollwright_proto::v1 as pb;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::{dto, parse};
use crate::scheduler::{Handle, Input};
use rollwright_auth::Caller;

/// `POST /v1/permits`: answers when the permit is held.
pub(super) async fn acquire(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let request: pb::AcquireRequest = parse::<dto::Acquire>(body).await?.into();
    let acquired = handle.acquire(caller, request).await?;
    Ok(Json(json!({ "queue_s": acquired.queue_s })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// Seconds for which the API asked everybody to stay away.
    retry_after_s: Option<f64>,
}

/// `DELETE /v1/permits/{id}`.
pub(super) async fn release(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path(permit_id): Path<String>,
    query: Result<Query<Release>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let (mut retry_after, mut wrong) = (None, false);
    if let Some(seconds) = super::query(query)?.retry_after_s {
        let duration = std::time::Duration::try_from_secs_f64(seconds).ok();
        retry_after = duration.and_then(|duration| duration.try_into().ok());
        wrong = retry_after.is_none();
    }
    let request = pb::ReleaseRequest { permit_id, retry_after, job: String::new() };
    // A number that is no time does not keep the permit.
    handle.call(|reply| Input::Release { caller, request, reply }).await?;
    if wrong {
        let message =
            "the permit is returned, but retry_after_s must be a number of seconds, 0 or more";
        return Err(crate::fault::user("InvalidQuery", message).into());
    }
    Ok(Json(json!({})))
}
