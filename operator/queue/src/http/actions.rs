//! `/v1/actions`.

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State as Shared};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream::{self, StreamExt as _};
use rollwright_core::fault::Fault;
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::{calls, dto, parse};
use crate::convert;
use crate::fault::stopping;
use crate::scheduler::{Handle, Known, State};
use rollwright_auth::Caller;

/// `POST /v1/actions`: one JSON event a line, to the end of the action.
pub(super) async fn execute(
    Shared(handle): Shared<Handle>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    let request = parse::<dto::Execute>(body).await?.into_request()?;
    let reader = handle.execute(caller, request).await?;
    // The first event decides whether the request itself is refused.
    let first = reader.read().await.unwrap_or_else(|| Err(stopping()))?;
    let rest = stream::unfold(reader, |reader| async move {
        let read = reader.read().await?;
        Some((read, reader))
    });
    let lines = stream::iter([Ok(first)])
        .chain(rest)
        .map(|batch| Ok::<_, std::convert::Infallible>(lines(batch)));
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

fn lines(batch: Result<Vec<pb::ActionEvent>, Fault>) -> Bytes {
    let mut text = String::new();
    let mut line = |value: &Value| {
        text.push_str(&value.to_string());
        text.push('\n');
    };
    match batch {
        Ok(events) => events.iter().for_each(|event| line(&dto::event(event))),
        Err(fault) => line(&dto::refusal(&fault)),
    }
    text.into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Look {
    /// Answer only when it has ended.
    #[serde(default)]
    wait: bool,
}

fn action_id(id: &str) -> Result<ActionId, ApiError> {
    Ok(ActionId::new(id).map_err(convert::bad_id)?)
}

/// `GET /v1/actions/{id}`: the state of an action or a call, or its result.
pub(super) async fn look(
    Shared(handle): Shared<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<Look>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let (id, query) = (action_id(&id)?, super::query(query)?);
    let known = if query.wait {
        handle.result(&caller, &id).await?
    } else {
        handle.known(&caller, &id).await?
    };
    Ok(Json(match known {
        Known::Action { state, events } => {
            dto::action(id.as_str(), state == State::Running, &events)
        }
        Known::Call(call) => calls::call(id.as_str(), &call),
    }))
}

/// `POST /v1/actions/{id}/cancel`.
pub(super) async fn cancel(
    Shared(handle): Shared<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let action = action_id(&id)?;
    let job = String::new();
    let cancelled = handle.cancel(caller, job, action).await?;
    Ok(Json(json!({ "cancelled": cancelled })))
}
