//! `/rollout/v1/weights`.

pub(super) mod buckets;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use rollwright_core::version::Version;

use super::error::Refusals;
use super::types::{
    AbortWeights, BeginWeights, Begun, CommitWeights, Committed, UpdateAborted, WeightsReport,
};
use super::{ApiError, Shared, body};

/// Begin an update.
///
/// With transfer `external`, the workers are suspended now, and the trainer moves the weights
/// before it commits; else generation goes on until then.
#[utoipa::path(
    post, path = "/weights/begin", tag = "weights", request_body = BeginWeights,
    responses((status = 200, description = "It is begun.", body = Begun), Refusals),
)]
pub(in crate::api) async fn begin(
    State(rollouts): Shared,
    body: Body,
) -> Result<Json<Begun>, ApiError> {
    let begin: BeginWeights = body::json(body, body::SMALL).await?;
    Ok(Json(rollouts.weights_begin(begin).await?))
}

/// Commit an update.
///
/// Answers when every worker in service holds the new version. Again is fine. Past the
/// deadline, the update was aborted by itself: 409 `UpdateExpired`.
#[utoipa::path(
    post, path = "/weights/commit", tag = "weights", request_body = CommitWeights,
    responses((status = 200, description = "The version is current.", body = Committed), Refusals),
)]
pub(in crate::api) async fn commit(
    State(rollouts): Shared,
    body: Body,
) -> Result<Json<Committed>, ApiError> {
    let commit: CommitWeights = body::json(body, body::SMALL).await?;
    Ok(Json(rollouts.weights_commit(commit).await?))
}

/// Abort an update.
///
/// The old version goes on.
#[utoipa::path(
    post, path = "/weights/abort", tag = "weights", request_body = AbortWeights,
    responses((status = 200, description = "It is given up.", body = UpdateAborted), Refusals),
)]
pub(in crate::api) async fn abort(
    State(rollouts): Shared,
    body: Body,
) -> Result<Json<UpdateAborted>, ApiError> {
    let AbortWeights { version } = body::json(body, body::SMALL).await?;
    rollouts.weights_abort(Version(version)).await?;
    Ok(Json(UpdateAborted { version }))
}

/// Look at the weights.
#[utoipa::path(
    get, path = "/weights", tag = "weights",
    responses(
        (status = 200, description = "The versions of job and workers.", body = WeightsReport),
        Refusals,
    ),
)]
pub(in crate::api) async fn look(State(rollouts): Shared) -> Result<Json<WeightsReport>, ApiError> {
    Ok(Json(rollouts.weights().await?))
}
