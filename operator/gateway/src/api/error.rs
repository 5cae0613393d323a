//! Refusals over HTTP.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rollwright_core::fault::{Fault, FaultKind};
use utoipa::openapi::{ContentBuilder, Header, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema as _};

use super::types::{FaultBody, Refusal};

/// A client that went away before its answer: nginx's status, as there is no other.
const CLIENT_CLOSED: u16 = 499;

/// A fault as the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError(pub Fault);

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

/// The HTTP status that a refusal with this fault has.
pub fn status(fault: &Fault) -> StatusCode {
    StatusCode::from_u16(code(fault)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn code(fault: &Fault) -> u16 {
    use FaultKind::{Action, Cancelled, Infrastructure, Stale, Timeout, User};
    let reason = fault.reason.as_ref();
    match reason {
        "Unauthenticated" | "InvalidApiKey" => return 401,
        "Forbidden" => return 403,
        "MethodNotAllowed" => return 405,
        "BodyTimeout" => return 408,
        "RangeNotSatisfiable" => return 416,
        "ChecksumMismatch" => return 422,
        "Overloaded" | "BufferFull" => return 429,
        "Aborted" | "UpdateExpired" | "UpdateAborted" | "GroupEnded" | "Completed" | "TurnOpen"
        | "DuplicateRequest" | "VersionNotGreater" | "UploadsUnderWay" | "NoBuckets"
        | "TooManyBuckets" | "NothingGenerated" | "WorkersFixed" => return 409,
        "NoSuchRoute" => return 404,
        "PayloadTooLarge" | "MetadataTooLarge" | "VersionTooLarge" => return 413,
        _ => {}
    }
    let starts = |with: &[&str]| with.iter().any(|with| reason.starts_with(with));
    let ends = |with: &[&str]| with.iter().any(|with| reason.ends_with(with));
    match fault.kind {
        User if starts(&["Unknown"]) || ends(&["NotFound"]) => 404,
        User if ends(&["Exists", "Conflict", "Retokenised"]) => 409,
        User if ends(&["TooLarge"]) => 413,
        User => 400,
        Action => 422,
        Timeout => 504,
        Cancelled => CLIENT_CLOSED,
        Stale => 409,
        Infrastructure if starts(&["TooMany"]) => 429,
        Infrastructure if starts(&["Engine"]) => 502,
        Infrastructure => 503,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = status(&self.0);
        let body = Refusal { error: FaultBody::from(&self.0) };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        // Back-pressure always says when to come back.
        let back = (status == StatusCode::TOO_MANY_REQUESTS).then_some(std::time::Duration::ZERO);
        if let Some(after) = self.0.retry_after.or(back) {
            // Whole seconds, and never "at once".
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What each status of a refusal means, for the document.
const REFUSALS: [(u16, &str); 15] = [
    (400, "The request is wrong: the sentence says which field, and what would be right."),
    (401, "The API key is missing or wrong."),
    (403, "The API key is another job's, or the call is for the operator alone."),
    (404, "There is no such thing, or it ended more than an hour ago."),
    (405, "The path has no such method."),
    (409, "It does not fit what happened before: aborted, expired, another version, in use."),
    (413, "The body is too large."),
    (416, "The range lies outside the bucket."),
    (422, "What was sent is not what it says, or the program that was to run failed."),
    (429, "No room now: come back after `Retry-After` seconds."),
    (499, "It was cancelled before it was done."),
    (500, "A fault of the gateway's own."),
    (502, "An engine failed or answered what it must not."),
    (
        503,
        "A worker, the disk or the network failed: try again after `Retry-After` seconds, where that is given.",
    ),
    (504, "A time limit passed."),
];

/// The refusals that every route may answer with.
pub(super) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let response = |(code, description): (u16, &str)| {
            let schema = Ref::from_schema_name(Refusal::name());
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let mut response = ResponseBuilder::new()
                .description(description)
                .content("application/json", content);
            if matches!(code, 429 | 503) {
                let mut after = Header::default();
                after.description = Some("Seconds.".to_owned());
                response = response.header("Retry-After", after);
            }
            (code.to_string(), RefOr::T(response.build()))
        };
        REFUSALS.into_iter().map(response).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_documented_status() {
        use FaultKind::{Action, Cancelled, Infrastructure, Stale, Timeout, User};
        for (kind, reason, wanted) in [
            (User, "InvalidBody", 400),
            (User, "Unauthenticated", 401),
            (User, "Forbidden", 403),
            (User, "GroupNotFound", 404),
            (User, "UnknownTrajectory", 404),
            (User, "NoSuchRoute", 404),
            (User, "MethodNotAllowed", 405),
            (Cancelled, "Aborted", 409),
            (Timeout, "UpdateExpired", 409),
            (Stale, "VersionGone", 409),
            (User, "BucketConflict", 409),
            (User, "BodyTooLarge", 413),
            (User, "RangeNotSatisfiable", 416),
            (Action, "ArtefactMalformed", 422),
            (Infrastructure, "BufferFull", 429),
            (Infrastructure, "TooManySubscribers", 429),
            (Cancelled, "TrajectoryGone", 499),
            (Infrastructure, "EngineBroke", 502),
            (Infrastructure, "StoreFull", 503),
            (Timeout, "QueueTimeout", 504),
        ] {
            let fault = Fault::new(kind, reason, "x");
            assert_eq!(status(&fault).as_u16(), wanted, "{fault}");
            assert!(REFUSALS.iter().any(|(code, _)| *code == wanted), "{wanted}");
            let response = ApiError(fault).into_response();
            let back = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(back, wanted == 429, "{reason}");
        }
    }
}
