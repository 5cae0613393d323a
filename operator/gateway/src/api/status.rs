//! `/rollout/v1/status`.

use axum::Json;
use axum::extract::State;

use super::error::Refusals;
use super::types::StatusReport;
use super::{ApiError, Shared};

/// Look at the job.
#[utoipa::path(
    get, path = "/status", tag = "status",
    responses((status = 200, description = "How the job is.", body = StatusReport), Refusals),
)]
pub(super) async fn look(State(rollouts): Shared) -> Result<Json<StatusReport>, ApiError> {
    Ok(Json(rollouts.status().await?))
}
