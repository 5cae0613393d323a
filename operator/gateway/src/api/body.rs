//! Bodies and queries, read strictly: bounded, and what is wrong is named by its path.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::rejection::QueryRejection;
use axum::http::request::Parts;
use futures::StreamExt as _;
use rollwright_core::fault::Fault;
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::fault::user;

/// Largest body of most routes: a payload of 1 MiB with what surrounds it.
pub(super) const SMALL: usize = 2 << 20;
/// Largest body of a set of workers.
pub(super) const WORKERS: usize = 8 << 20;
/// Largest body of a recorded turn: about a million tokens.
pub(super) const TOKENS: usize = 32 << 20;

/// Reads a JSON object of at most `limit` bytes. An empty body is `{}`.
pub(super) async fn json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Fault> {
    let bytes = collect(body, limit).await?;
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    if bytes.trim_ascii_start().starts_with(b"[") {
        // Structs are read from lists too, field by field: nobody means that.
        return Err(user("InvalidBody", "the body: one JSON object is expected, not a list"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        // `.` is the body itself, `?` a place that was not reached.
        let at = if matches!(path.as_str(), "." | "?") {
            "the body".to_owned()
        } else {
            format!("`{path}`")
        };
        user("InvalidBody", format!("{at}: {}", error.inner()))
    })?;
    reader.end().map_err(|error| {
        user("InvalidBody", format!("one JSON object is expected, and nothing after it: {error}"))
    })?;
    Ok(parsed)
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, Fault> {
    let too_large =
        || user("BodyTooLarge", format!("the body has more than the {limit} bytes allowed here"));
    let announced = http_body::Body::size_hint(&body).lower();
    if announced > limit as u64 {
        return Err(too_large());
    }
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            user("InvalidBody", format!("the body ended before its time: {error}"))
        })?;
        if bytes.len() + piece.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A query, of which every part must be known.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let invalid = |error: QueryRejection| user("InvalidQuery", error.body_text());
        Ok(Self(query.map_err(invalid)?.0))
    }
}
