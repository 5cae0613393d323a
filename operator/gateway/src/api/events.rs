//! `/rollout/v1/events`.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use rollwright_core::fault::Fault;
use rollwright_core::ids::GroupId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::Query;
use super::error::Refusals;
use super::parameter::Parameter as _;
use super::{ApiError, Shared};
use crate::events::Filter;
use crate::fault::user;

/// After so long without an event, a comment says that the connection is alive.
const ALIVE: Duration = Duration::from_secs(15);

/// Which events are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// Only those of this group, and new versions; all where not given.
    group: Option<String>,
}

/// Follow what happens.
///
/// Server-sent events: `abort` `{"trajectory", "group", "reason"}`, `start`
/// `{"trajectory", "group"}`, `settled` `{"group", "kept"}` and `version` `{"version"}`, each
/// with an `id`. Whoever comes back with `Last-Event-ID` gets what it missed, or `gap` where
/// that is forgotten: then read the state. Who reads too slowly is cut off after a `gap`. A
/// comment line every 15 seconds.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(
        Wanted,
        ("Last-Event-ID" = Option<u64>, Header, description = "The `id` of the last event seen."),
    ),
    responses(
        (status = 200, description = "Events, until one side closes.", body = String,
            content_type = "text/event-stream",
            example = "id: 12\nevent: start\ndata: {\"trajectory\":\"g1/4\",\"group\":\"g1\"}\n\n"),
        Refusals,
    ),
)]
pub(super) async fn subscribe(
    State(rollouts): Shared,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let group = wanted.group.as_deref().map(GroupId::parse).transpose()?;
    let filter = group.map_or(Filter::Everything, Filter::Group);
    let events = rollouts.subscribe(filter, last_event(&headers)?)?;
    // A first comment, so that the caller knows that it is subscribed.
    let begin = (events, Some(Bytes::from_static(b":\n\n")));
    let texts = stream::unfold(begin, |(mut events, first)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (events, None)));
        }
        match tokio::time::timeout(ALIVE, events.next()).await {
            Ok(Some(text)) => Some((Ok(text), (events, None))),
            Ok(None) => None,
            Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), (events, None))),
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(texts)).into_response())
}

fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let wrong = || user("InvalidHeader", "`Last-Event-ID` must be the id of an event: a number");
    id.ok_or_else(wrong).map(Some)
}
