//! `/rollout/v1/groups`.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use rollwright_core::ids::GroupId;

use super::body::{self, Query};
use super::error::Refusals;
use super::parameter::One;
use super::types::{Group, OpenGroup, Wait};
use super::{ApiError, Shared};
use crate::fault::user;

/// Open a group.
///
/// Answers with the trajectories to run now: `start` of them, of which `needed` settle the
/// group. A group that is open under this id already is given again, with 200. When the
/// buffer is full, it waits for `wait` seconds, then refuses with 429.
#[utoipa::path(
    post, path = "/groups", tag = "groups", params(Wait), request_body = OpenGroup,
    responses(
        (status = 201, description = "It is open.", body = Group),
        (status = 200, description = "It was open already.", body = Group),
        Refusals,
    ),
)]
pub(super) async fn open(
    State(rollouts): Shared,
    Query(wait): Query<Wait>,
    body: Body,
) -> Result<(StatusCode, Json<Group>), ApiError> {
    let open: OpenGroup = body::json(body, body::SMALL).await?;
    if open.version.is_some() && !open.evaluation {
        let message =
            "`version`: only an evaluation may pin one; leave it out, or set `evaluation` to true";
        return Err(user("VersionWithoutEvaluation", message).into());
    }
    let opened = rollouts.open_group(open, wait.duration()).await?;
    let status = if opened.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(opened.group)))
}

/// Look at a group.
///
/// With `wait`, answers when it has settled or was aborted, or as it is then.
#[utoipa::path(
    get, path = "/groups/{id}", tag = "groups",
    params(("id" = String, Path, description = "The group; a `/` in it is written %2F."), Wait),
    responses((status = 200, description = "The group.", body = Group), Refusals),
)]
pub(super) async fn look(
    State(rollouts): Shared,
    One(group): One<GroupId>,
    Query(wait): Query<Wait>,
) -> Result<Json<Group>, ApiError> {
    Ok(Json(rollouts.group(&group, wait.duration()).await?))
}

/// Abort a group.
///
/// Aborts all its trajectories: requests, actions, sandboxes and rewards alike.
#[utoipa::path(
    delete, path = "/groups/{id}", tag = "groups",
    params(("id" = String, Path, description = "The group; a `/` in it is written %2F.")),
    responses((status = 200, description = "The group, as it ended.", body = Group), Refusals),
)]
pub(super) async fn abort(
    State(rollouts): Shared,
    One(group): One<GroupId>,
) -> Result<Json<Group>, ApiError> {
    Ok(Json(rollouts.abort_group(&group).await?))
}

impl Wait {
    fn duration(&self) -> Duration {
        self.wait.unwrap_or_default()
    }
}
