//! `/rollout/v1/workers`.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use rollwright_auth::Caller;

use super::error::Refusals;
use super::types::{WorkerSet, WorkerStates};
use super::{ApiError, Shared, body};
use crate::fault::user;

/// The caller may change what serves the job; its API key does not make one so.
pub(super) struct Operator;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        if parts.extensions.get::<Caller>().is_some_and(Caller::may_operate) {
            return Ok(Self);
        }
        let message = "the workers are the operator's: ask with its token, or on the Unix socket; a job's API key does not do";
        Err(user("Forbidden", message).into())
    }
}

/// Say which workers there are.
///
/// The whole set: what is new joins, what has changed is changed, what is left out is drained
/// and then dropped, and no turn is lost by that. Again is fine, and a gateway that is started
/// anew knows its workers. For the operator alone.
#[utoipa::path(
    put, path = "/workers", tag = "workers", request_body = WorkerSet,
    responses((status = 200, description = "The workers as they are.", body = WorkerStates), Refusals),
)]
pub(super) async fn set(
    State(rollouts): Shared,
    _: Operator,
    body: Body,
) -> Result<Json<WorkerStates>, ApiError> {
    let wished: WorkerSet = body::json(body, body::WORKERS).await?;
    Ok(Json(rollouts.set_workers(wished).await?))
}

/// Look at the workers.
///
/// For the operator alone.
#[utoipa::path(
    get, path = "/workers", tag = "workers",
    responses((status = 200, description = "The workers as they are.", body = WorkerStates), Refusals),
)]
pub(super) async fn look(
    State(rollouts): Shared,
    _: Operator,
) -> Result<Json<WorkerStates>, ApiError> {
    Ok(Json(rollouts.workers().await?))
}
