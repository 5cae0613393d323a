//! `/rollout/v1/batches`.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use rollwright_core::fault::Fault;
use rollwright_core::version::BatchId;
use serde_json::json;

use super::error::Refusals;
use super::parameter::One;
use super::rollouts::{Batch, ByteStream};
use super::types::{Acknowledged, BatchBody, TakeBatch};
use super::{ApiError, Shared, body};
use crate::fault::infrastructure;

/// Take a batch.
///
/// Groups that are whole, scored and fresh enough. Until it is acknowledged, the same batch
/// is given again, whoever asks. A body that ends before its time is no batch: take it again.
#[utoipa::path(
    post, path = "/batches/take", tag = "batches", request_body = TakeBatch,
    responses(
        (status = 200, description = "The batch.", body = BatchBody),
        (status = 204, description = "None was ready in time."),
        Refusals,
    ),
)]
pub(super) async fn take(State(rollouts): Shared, body: Body) -> Result<Response, ApiError> {
    let take: TakeBatch = body::json(body, body::SMALL).await?;
    let Some(batch) = rollouts.take_batch(take).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::from_stream(text(batch))).into_response())
}

/// Acknowledge a batch.
///
/// The trainer has it, and it is deleted. Again is fine.
#[utoipa::path(
    post, path = "/batches/{id}/ack", tag = "batches",
    params(("id" = u64, Path, description = "The batch.")),
    responses((status = 200, description = "It is over.", body = Acknowledged), Refusals),
)]
pub(super) async fn acknowledge(
    State(rollouts): Shared,
    One(batch): One<BatchId>,
) -> Result<Json<Acknowledged>, ApiError> {
    rollouts.ack_batch(batch).await?;
    Ok(Json(Acknowledged { id: batch.0 }))
}

/// A piece of a batch's text.
enum Piece {
    Text(Bytes),
    /// The next record, as it is stored.
    Record,
}

/// The batch's JSON, one record at a time.
fn text(batch: Batch) -> impl Stream<Item = Result<Bytes, Fault>> + Send {
    let id = batch.id;
    let pieces = layout(&batch).into_iter();
    let state = Some((pieces, batch.records));
    stream::unfold(state, move |state| async move {
        let (mut pieces, mut records) = state?;
        match next(pieces.next()?, &mut records).await {
            Ok(text) => Some((Ok(text), Some((pieces, records)))),
            Err(fault) => {
                // The caller sees a body that breaks off; why stands here.
                tracing::warn!(batch = %id, %fault, "a batch could not be sent to its end");
                Some((Err(fault), None))
            }
        }
    })
}

async fn next(piece: Piece, records: &mut ByteStream) -> Result<Bytes, Fault> {
    match piece {
        Piece::Text(text) => Ok(text),
        Piece::Record => records.next().await.unwrap_or_else(|| {
            Err(infrastructure("BatchIncomplete", "the batch has fewer records than it says"))
        }),
    }
}

/// What stands around and between the records.
fn layout(batch: &Batch) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = format!(r#"{{"id":{},"version":{},"groups":["#, batch.id, batch.version);
    for (index, group) in batch.groups.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        // Ids and tasks are of characters that JSON does not escape.
        let head = format!(r#"{{"id":"{}","task":"{}","payload":"#, group.id, group.task);
        text.push_str(&head);
        match &group.payload {
            Some(payload) => {
                pieces.push(Piece::Text(std::mem::take(&mut text).into()));
                pieces.push(Piece::Text(payload.clone()));
            }
            None => text.push_str("null"),
        }
        text.push_str(r#","trajectories":["#);
        for record in 0..group.trajectories {
            if record > 0 {
                text.push(',');
            }
            pieces.push(Piece::Text(std::mem::take(&mut text).into()));
            pieces.push(Piece::Record);
        }
        text.push_str("]}");
    }
    let waited = json!(batch.waited.as_secs_f64());
    let tail = format!(r#"],"waited_seconds":{waited}}}"#);
    text.push_str(&tail);
    pieces.push(Piece::Text(text.into()));
    pieces
}
