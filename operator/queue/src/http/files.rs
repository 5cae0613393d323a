//! `/v1/trajectories/{id}/files`: a file or a tar as the body.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use rollwright_core::fault::Fault;
use rollwright_proto::v1 as pb;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use crate::fault::user;
use crate::scheduler::Handle;
use rollwright_auth::Caller;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    path: String,
    #[serde(default)]
    tar: bool,
    /// Permission bits in octal, such as 755.
    mode: Option<String>,
}

impl Target {
    fn resolve(self, trajectory_id: String) -> Result<pb::FileTarget, Fault> {
        let mode = self.mode.as_deref().unwrap_or("0");
        let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777);
        let mode = mode.ok_or_else(|| user("InvalidQuery", "mode must be octal, such as 755"))?;
        Ok(pb::FileTarget { trajectory_id, path: self.path, tar: self.tar, mode })
    }
}

/// `PUT .../files?path=...`.
pub(super) async fn put(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<Target>, QueryRejection>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let target = super::query(query)?.resolve(id)?;
    let mut transfer = handle.transfer(caller, target, true).await?;
    let mut data = body.into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = data.next().await {
        let piece = piece.map_err(|error| {
            user("InvalidUpload", format!("the body ended before its time: {error}"))
        })?;
        bytes += piece.len() as u64;
        transfer.put(piece).await?;
    }
    transfer.finish().await?;
    Ok(Json(json!({ "bytes": bytes })))
}

/// `GET .../files?path=...`.
pub(super) async fn get(
    State(handle): State<Handle>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<Target>, QueryRejection>,
) -> Result<Response, ApiError> {
    let target = super::query(query)?.resolve(id)?;
    let kind = if target.tar { "application/x-tar" } else { "application/octet-stream" };
    let mut transfer = handle.transfer(caller, target, false).await?;
    // The first piece decides whether the request itself is refused.
    let first = transfer.get().await?;
    let pieces = stream::iter(first.map(Ok::<Bytes, Fault>)).chain(transfer.pieces());
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response())
}
