//! The HTTP/JSON mirror of `ActionService`.

mod actions;
mod calls;
mod dto;
mod error;
mod files;
mod permits;
mod rewards;
mod trajectories;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{any, get, post};
use axum::{Extension, Json};
use futures::StreamExt as _;
use serde_json::Value;

pub(crate) use self::error::ApiError;
use crate::fault::user;
use crate::scheduler::Handle;
use rollwright_auth::Caller;

/// Largest JSON body: room for a standard input of 1 MiB in base64.
const MAX_BODY: usize = 4 << 20;

/// Every route that needs a caller.
pub(crate) fn routes(handle: Handle) -> Router {
    Router::new()
        .route("/v1/actions", post(actions::execute))
        .route("/v1/actions/{id}", get(actions::look))
        .route("/v1/actions/{id}/cancel", post(actions::cancel))
        .route("/v1/trajectories", post(trajectories::open))
        .route("/v1/trajectories/{id}", get(trajectories::look).delete(trajectories::close))
        .route("/v1/trajectories/{id}/files", get(files::get).put(files::put))
        .route("/v1/permits", post(permits::acquire))
        .route("/v1/permits/{id}", axum::routing::delete(permits::release))
        .route("/v1/rewards/{service}/{*path}", any(rewards::call))
        .route("/v1/stats", get(stats))
        .with_state(handle)
}

/// Routes for probes, open to everybody.
pub(crate) fn probes(handle: Handle) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(handle)
}

async fn ready(State(handle): State<Handle>) -> (StatusCode, &'static str) {
    let answer = tokio::time::timeout(std::time::Duration::from_secs(1), handle.stats(None)).await;
    match answer {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the scheduler does not answer\n"),
    }
}

async fn stats(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(dto::stats(&handle.stats(Some(caller)).await?)))
}

/// Reads a JSON body strictly: what is wrong is named by its path.
async fn parse<T: serde::de::DeserializeOwned>(body: axum::body::Body) -> Result<T, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            user("InvalidBody", format!("the body ended before its time: {error}"))
        })?;
        if bytes.len() + piece.len() > MAX_BODY {
            return Err(user("BodyTooLarge", "the body must be at most 4 MiB").into());
        }
        bytes.extend_from_slice(&piece);
    }
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." { "the body".to_owned() } else { format!("`{path}`") };
        ApiError(user("InvalidBody", format!("{at}: {}", error.inner())))
    })?;
    reader.end().map_err(|error| {
        ApiError(user("InvalidBody", format!("one JSON object is expected: {error}")))
    })?;
    Ok(parsed)
}

/// The query, strictly.
fn query<T>(
    query: Result<Query<T>, axum::extract::rejection::QueryRejection>,
) -> Result<T, ApiError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(error) => Err(ApiError(user("InvalidQuery", error.body_text()))),
    }
}
