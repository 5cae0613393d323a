//! `/rollout/v1/weights/{version}/buckets`: weights as bytes.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use rollwright_core::fault::Fault;
use rollwright_core::version::Version;

use crate::api::error::Refusals;
use crate::api::parameter::{BucketPath, One};
use crate::api::rollouts::{ByteRange, PutBucket};
use crate::api::types::Bucket;
use crate::api::{ApiError, Shared};
use crate::fault::user;

/// What a bucket's bytes hash to.
const SHA256: HeaderName = HeaderName::from_static("x-rollwright-sha256");

/// Store a bucket of weights.
///
/// Part of the version that was begun with transfer `store`; about 1 GiB is a good size.
#[utoipa::path(
    put, path = "/weights/{version}/buckets/{name}", tag = "weights",
    params(
        ("version" = u64, Path, description = "The version that was begun."),
        ("name" = String, Path, description = "The bucket's name."),
        ("X-Rollwright-Sha256" = Option<String>, Header,
            description = "SHA-256 of the bytes, in hexadecimal: others are refused."),
    ),
    request_body(content_type = "application/octet-stream", description = "The bytes."),
    responses((status = 201, description = "It is stored.", body = Bucket), Refusals),
)]
pub(in crate::api) async fn put(
    State(rollouts): Shared,
    path: BucketPath,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Bucket>), ApiError> {
    let sha256 = sha256(&headers)?;
    let length = http_body::Body::size_hint(&body).exact();
    let broken = |error| user("InvalidUpload", format!("the body ended before its time: {error}"));
    let body = body.into_data_stream().map(move |piece| piece.map_err(broken)).boxed();
    let BucketPath { version, name } = path;
    let put = PutBucket { version, name, sha256, length, body };
    Ok((StatusCode::CREATED, Json(rollouts.put_bucket(put).await?)))
}

/// List a version's buckets.
#[utoipa::path(
    get, path = "/weights/{version}/buckets", tag = "weights",
    params(("version" = u64, Path, description = "The version.")),
    responses((status = 200, description = "Its buckets, by name.", body = Vec<Bucket>), Refusals),
)]
pub(in crate::api) async fn list(
    State(rollouts): Shared,
    One(version): One<Version>,
) -> Result<Json<Vec<Bucket>>, ApiError> {
    Ok(Json(rollouts.list_buckets(version).await?))
}

/// Read a bucket.
#[utoipa::path(
    get, path = "/weights/{version}/buckets/{name}", tag = "weights",
    params(
        ("version" = u64, Path, description = "The version."),
        ("name" = String, Path, description = "The bucket's name."),
        ("Range" = Option<String>, Header, description = "One range of bytes.", example = "bytes=0-1023"),
    ),
    responses(
        (status = 200, description = "Its bytes.", content_type = "application/octet-stream"),
        (status = 206, description = "The bytes of the range.", content_type = "application/octet-stream"),
        Refusals,
    ),
)]
pub(in crate::api) async fn get(
    State(rollouts): Shared,
    path: BucketPath,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let range = range(&headers)?;
    let bucket = rollouts.get_bucket(path.version, &path.name, range).await?;
    let length = bucket.range.end - bucket.range.start;
    let sent = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
    ];
    let body = Body::from_stream(bucket.body);
    if range == ByteRange::Whole {
        return Ok((sent, body).into_response());
    }
    let last = bucket.range.end.saturating_sub(1);
    let part = format!("bytes {}-{last}/{}", bucket.range.start, bucket.total);
    let status = StatusCode::PARTIAL_CONTENT;
    Ok((status, sent, [(header::CONTENT_RANGE, part)], body).into_response())
}

fn sha256(headers: &HeaderMap) -> Result<Option<[u8; 32]>, Fault> {
    let Some(value) = headers.get(SHA256) else { return Ok(None) };
    let parse = || {
        let hex = value.to_str().ok().filter(|hex| hex.len() == 64)?;
        let mut digest = [0; 32];
        for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
        }
        Some(digest)
    };
    let wrong = || user("InvalidHeader", "`X-Rollwright-Sha256` must be 64 hexadecimal digits");
    parse().ok_or_else(wrong).map(Some)
}

/// One range of bytes. Other units and lists of ranges are ignored, as HTTP allows.
fn range(headers: &HeaderMap) -> Result<ByteRange, Fault> {
    let value = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let Some(range) = value.and_then(|value| value.strip_prefix("bytes=")) else {
        return Ok(ByteRange::Whole);
    };
    if range.contains(',') {
        return Ok(ByteRange::Whole);
    }
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let parsed = range.split_once('-').and_then(|(first, last)| {
        match (first.trim().is_empty(), last.trim().is_empty()) {
            (true, _) => number(last).map(ByteRange::Last),
            (false, true) => number(first).map(|first| ByteRange::From(first, None)),
            (false, false) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(ByteRange::From(first, Some(last)))
            }
        }
    });
    let wrong = || {
        user("InvalidHeader", "`Range` must be like `bytes=0-1023`, `bytes=1024-` or `bytes=-512`")
    };
    parsed.ok_or_else(wrong)
}
