//! `/rollout/v1/trajectories`.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use rollwright_core::ids::TrajectoryId;

use super::body;
use super::error::Refusals;
use super::parameter::One;
use super::types::{
    AbortTrajectory, CompleteTrajectory, RecordedTokens, Step, StepTaken, Trajectory,
    TrajectoryState,
};
use super::{ApiError, Shared};

/// Look at a trajectory.
#[utoipa::path(
    get, path = "/trajectories/{id}", tag = "trajectories",
    params(("id" = String, Path, description = "The trajectory; a `/` in it is written %2F.")),
    responses((status = 200, description = "The trajectory.", body = Trajectory), Refusals),
)]
pub(super) async fn look(
    State(rollouts): Shared,
    One(trajectory): One<TrajectoryId>,
) -> Result<Json<Trajectory>, ApiError> {
    Ok(Json(rollouts.trajectory(&trajectory).await?))
}

/// Report a step.
///
/// A tool call of the trajectory ended. Learns whether to go on: 409 `Aborted` when the
/// trajectory was aborted.
#[utoipa::path(
    post, path = "/trajectories/{id}/steps", tag = "trajectories", request_body = Step,
    params(("id" = String, Path, description = "The trajectory; a `/` in it is written %2F.")),
    responses((status = 200, description = "Go on.", body = StepTaken), Refusals),
)]
pub(super) async fn step(
    State(rollouts): Shared,
    One(trajectory): One<TrajectoryId>,
    body: Body,
) -> Result<Json<StepTaken>, ApiError> {
    let step: Step = body::json(body, body::SMALL).await?;
    Ok(Json(rollouts.step(&trajectory, step).await?))
}

/// Complete a trajectory.
///
/// Its agent is done. With `reward`, it is scored by that; without, by the job's reward
/// services, for which this call does not wait.
#[utoipa::path(
    post, path = "/trajectories/{id}/complete", tag = "trajectories",
    request_body = CompleteTrajectory,
    params(("id" = String, Path, description = "The trajectory; a `/` in it is written %2F.")),
    responses((status = 202, description = "Taken.", body = TrajectoryState), Refusals),
)]
pub(super) async fn complete(
    State(rollouts): Shared,
    One(trajectory): One<TrajectoryId>,
    body: Body,
) -> Result<(StatusCode, Json<TrajectoryState>), ApiError> {
    let complete: CompleteTrajectory = body::json(body, body::SMALL).await?;
    let state = rollouts.complete(&trajectory, complete).await?;
    Ok((StatusCode::ACCEPTED, Json(state)))
}

/// Abort a trajectory.
///
/// With `infrastructure`, it was not the policy's fault, and another one takes its place.
#[utoipa::path(
    post, path = "/trajectories/{id}/abort", tag = "trajectories",
    request_body = AbortTrajectory,
    params(("id" = String, Path, description = "The trajectory; a `/` in it is written %2F.")),
    responses((status = 200, description = "It is aborted.", body = TrajectoryState), Refusals),
)]
pub(super) async fn abort(
    State(rollouts): Shared,
    One(trajectory): One<TrajectoryId>,
    body: Body,
) -> Result<Json<TrajectoryState>, ApiError> {
    let abort: AbortTrajectory = body::json(body, body::SMALL).await?;
    Ok(Json(rollouts.abort(&trajectory, abort).await?))
}

/// Add a turn that was generated elsewhere.
///
/// For a trainer that generates by itself: token in, token out.
#[utoipa::path(
    post, path = "/trajectories/{id}/tokens", tag = "trajectories",
    request_body = RecordedTokens,
    params(("id" = String, Path, description = "The trajectory; a `/` in it is written %2F.")),
    responses((status = 200, description = "It is recorded.", body = TrajectoryState), Refusals),
)]
pub(super) async fn tokens(
    State(rollouts): Shared,
    One(trajectory): One<TrajectoryId>,
    body: Body,
) -> Result<Json<TrajectoryState>, ApiError> {
    let tokens: RecordedTokens = body::json(body, body::TOKENS).await?;
    tokens.check()?;
    Ok(Json(rollouts.tokens(&trajectory, tokens).await?))
}
