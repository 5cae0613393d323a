//! Faults on demand: what real engines and networks do to their clients.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::connection::Connection;
use crate::http::App;

/// Faults that can be pending.
const MAX_FAULTS: usize = 1000;
/// The longest answer that is cut in half.
const MAX_BODY: usize = 64 << 20;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The connection is reset: of a stream after `after_tokens` events with tokens, else
    /// without an answer.
    Reset,
    /// 200, and half of the body.
    HalfJson,
    /// No answer, ever.
    Never,
    /// 200 with `{"error": ...}` as the body.
    ErrorBody,
    /// 500.
    ServerError,
    /// 429 with `Retry-After: retry_after`.
    TooManyRequests,
    /// The answer comes a byte at a time, each after `byte_ms`.
    Slow,
    /// Sleep (or release of memory) answers 200 and does nothing.
    SleepLies,
    /// Waking (or resuming memory) never answers and does nothing.
    WakeHangs,
}

/// A fault to come, as `POST /sim/faults` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub fault: FaultKind,
    /// How many requests it hits; 0 = all until `DELETE /sim/faults`.
    #[serde(default = "one")]
    pub times: u64,
    /// Requests that match and are let pass first.
    #[serde(default)]
    pub skip: u64,
    /// A part of the path that must match; without it, the generation routes (for faults of
    /// sleeping and waking, their routes).
    #[serde(default)]
    pub path: Option<String>,
    /// Of `reset`: events with tokens that come through.
    #[serde(default)]
    pub after_tokens: usize,
    /// Of `too_many_requests`, in seconds.
    #[serde(default = "one")]
    pub retry_after: u64,
    /// Of `slow`, in milliseconds.
    #[serde(default = "thousand")]
    pub byte_ms: u64,
}

fn one() -> u64 {
    1
}

fn thousand() -> u64 {
    1000
}

impl Fault {
    /// A fault that hits the next request.
    pub fn new(fault: FaultKind) -> Self {
        let (times, retry_after, byte_ms) = (one(), one(), thousand());
        Self { fault, times, skip: 0, path: None, after_tokens: 0, retry_after, byte_ms }
    }

    fn matches(&self, path: &str) -> bool {
        match (&self.path, self.fault) {
            (Some(part), _) => path.contains(part.as_str()),
            (None, FaultKind::SleepLies) => {
                matches!(path, "/sleep" | "/release_memory_occupation")
            }
            (None, FaultKind::WakeHangs) => {
                matches!(path, "/wake_up" | "/resume_memory_occupation")
            }
            (None, _) => path.ends_with("/completions") || path == "/generate",
        }
    }
}

/// The faults to come, in order.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// Adds one. Errors when there are too many.
    pub(crate) fn add(&self, fault: Fault) -> Result<(), String> {
        let mut faults = self.lock();
        if faults.len() >= MAX_FAULTS {
            return Err(format!("{MAX_FAULTS} faults are pending; DELETE /sim/faults first"));
        }
        faults.push(fault);
        Ok(())
    }

    pub(crate) fn list(&self) -> Vec<Fault> {
        self.lock().clone()
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// The fault that hits a request of this path.
    fn take(&self, path: &str) -> Option<Fault> {
        let mut faults = self.lock();
        let index = faults.iter().position(|fault| fault.matches(path))?;
        let fault = &mut faults[index];
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let hit = fault.clone();
        if fault.times == 1 {
            faults.remove(index);
        } else if fault.times > 1 {
            fault.times -= 1;
        }
        Some(hit)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The layer that makes them happen.
pub(crate) async fn inject(
    State(app): State<Arc<App>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    request: Request,
    next: Next,
) -> Response {
    let Some(fault) = app.faults.take(request.uri().path()) else {
        return next.run(request).await;
    };
    match fault.fault {
        FaultKind::Never | FaultKind::WakeHangs => pending().await,
        FaultKind::SleepLies => StatusCode::OK.into_response(),
        FaultKind::ErrorBody => error(StatusCode::OK),
        FaultKind::ServerError => error(StatusCode::INTERNAL_SERVER_ERROR),
        FaultKind::TooManyRequests => {
            let seconds = fault.retry_after.to_string();
            ([(RETRY_AFTER, seconds)], error(StatusCode::TOO_MANY_REQUESTS)).into_response()
        }
        FaultKind::Reset => {
            let response =
                if fault.after_tokens > 0 { Some(next.run(request).await) } else { None };
            match response {
                Some(response) if is_stream(&response) => {
                    response.map(|body| reset_after(body, fault.after_tokens, connection))
                }
                _ => {
                    connection.reset();
                    pending().await
                }
            }
        }
        FaultKind::HalfJson => half(next.run(request).await).await,
        FaultKind::Slow => {
            let pause = Duration::from_millis(fault.byte_ms);
            next.run(request).await.map(|body| slowly(body, pause))
        }
    }
}

fn error(status: StatusCode) -> Response {
    let message = "engine-sim: a fault that was asked for";
    let body = json!({"error": {
        "message": message, "type": "InternalServerError", "param": null, "code": 500,
    }});
    (status, Json(body)).into_response()
}

fn is_stream(response: &Response) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

async fn half(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let whole = match to_bytes(body, MAX_BODY).await {
        Ok(bytes) => bytes,
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    };
    parts.headers.remove::<HeaderName>(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(whole.slice(..whole.len() / 2)))
}

fn reset_after(body: Body, events: usize, connection: Connection) -> Body {
    let state = (body.into_data_stream(), events, connection);
    Body::from_stream(stream::unfold(state, |(mut stream, left, connection)| async move {
        if left == 0 {
            // Lets the connection write what it has.
            tokio::task::yield_now().await;
            connection.reset();
            return pending().await;
        }
        let event = stream.next().await?;
        let tokens = event.as_ref().is_ok_and(|event| !is_role(event));
        Some((event, (stream, left - usize::from(tokens), connection)))
    }))
}

/// The first event of a chat carries the role and no tokens.
fn is_role(event: &Bytes) -> bool {
    let role = br#""role":"assistant""#;
    event.windows(role.len()).any(|window| window == role)
}

fn slowly(body: Body, pause: Duration) -> Body {
    let state = (body.into_data_stream(), Bytes::new());
    let next = move |(mut stream, mut rest): (BodyDataStream, Bytes)| async move {
        while rest.is_empty() {
            match stream.next().await? {
                Ok(bytes) => rest = bytes,
                Err(error) => return Some((Err(error), (stream, rest))),
            }
        }
        tokio::time::sleep(pause).await;
        let byte = rest.slice(..1);
        rest.advance(1);
        Some((Ok(byte), (stream, rest)))
    };
    Body::from_stream(stream::unfold(state, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_as_often_as_it_says() {
        let faults = Faults::default();
        let fault = Fault { times: 2, skip: 1, ..Fault::new(FaultKind::ServerError) };
        faults.add(fault).unwrap();
        let hits = |path| faults.take(path).is_some();
        assert!(!hits("/health"), "not a generation route");
        assert_eq!([(); 4].map(|()| hits("/v1/completions")), [false, true, true, false]);
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        let error = serde_json::from_str::<Fault>(r#"{"fault":"reset","after":3}"#).unwrap_err();
        assert!(error.to_string().contains("after_tokens"), "{error}");
    }
}
