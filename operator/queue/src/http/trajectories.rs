//! `/v1/trajectories`.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use rollwright_core::ids::TrajectoryId;
use rollwright_proto::v1 as pb;
use serde_json::{Value, json};

use super::error::ApiError;
use super::{dto, parse};
use crate::convert;
use crate::scheduler::{Handle, Input, Standing};
use rollwright_auth::Caller;

/// `POST /v1/trajectories`: answers when the sandbox is ready.
pub(super) async fn open(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let request: pb::OpenTrajectoryRequest = parse::<dto::OpenTrajectory>(body).await?.into();
    let id = request.trajectory_id.clone();
    let opened = handle.call(|reply| Input::Open { caller, request, reply }).await?;
    Ok(Json(dto::opened(&id, &opened)))
}

fn trajectory_id(id: &str) -> Result<TrajectoryId, ApiError> {
    Ok(TrajectoryId::new(id).map_err(convert::bad_id)?)
}

/// `GET /v1/trajectories/{id}`.
pub(super) async fn look(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let trajectory = trajectory_id(&id)?;
    let standing = handle.call(|reply| Input::Look { caller, trajectory, reply }).await?;
    let without_more = |state: &str| json!({ "trajectory_id": id, "state": state });
    Ok(Json(match standing {
        Standing::Ready(ready) => dto::opened(&id, &ready),
        Standing::Opening => without_more("opening"),
        Standing::Closing => without_more("closing"),
    }))
}

/// `DELETE /v1/trajectories/{id}`: answers when its sandbox is gone.
pub(super) async fn close(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let trajectory = trajectory_id(&id)?;
    let job = String::new();
    handle.call(|reply| Input::Close { caller, job, trajectory, reply }).await?;
    Ok(Json(json!({})))
}
