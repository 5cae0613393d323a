//! What the gateway itself answers: faults in the shape of OpenAI's errors, and small JSON.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use rollwright_core::fault::Fault;
use serde::Serialize;

use super::body::Body;
use crate::api::status;

/// `{"error": {...}}` as the `openai` package reads it.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
    r#type: &'static str,
    code: &'a str,
    param: Option<&'static str>,
}

/// The JSON body of a fault.
pub fn error_json(fault: &Fault) -> Vec<u8> {
    let error = Error {
        message: &fault.message,
        r#type: fault.kind.as_str(),
        code: &fault.reason,
        param: None,
    };
    // Strings always serialise.
    serde_json::to_vec(&Envelope { error }).unwrap_or_default()
}

/// The whole answer to a request that ended in a fault.
pub(crate) fn refusal(fault: &Fault) -> Response<Body> {
    let mut response = json(status(fault), error_json(fault));
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(wait) = fault.retry_after {
        let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
