//! Buckets as HTTP bodies: what the routes below `/rollout/v1/weights/{version}/buckets`
//! do. Authentication and the form of faults are the caller's.

use axum::body::Body;
use axum::response::Response;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, StatusCode};
use rollwright_core::fault::Fault;
use rollwright_core::version::Version;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::bucket::{Bucket, from_hex, infrastructure, user};
use super::range::{Wanted, wanted};
use super::store::BucketStore;

/// Header with the digest that the sender computed.
pub const SHA256_HEADER: &str = "x-rollwright-sha256";
/// Bytes read from the disk at once.
const READ: usize = 256 << 10;

/// `PUT`: takes the body as bucket `name`.
pub async fn upload(
    store: &BucketStore,
    version: Version,
    name: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bucket, Fault> {
    let expected = headers.get(SHA256_HEADER).map(|value| {
        // What is no text is no digest either.
        from_hex(value.to_str().unwrap_or_default())
    });
    let expected = expected.transpose()?;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    store.fits(name, announced)?;
    store.put(version, name, expected, body.into_data_stream()).await
}

/// `GET`: all of a bucket, or the range that `headers` ask for.
pub async fn download(
    store: &BucketStore,
    version: Version,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response, Fault> {
    let (bucket, file) = store.read(version, name).await?;
    let length = bucket.bytes;
    let tag = format!("\"{}\"", bucket.sha256);
    let response = Response::builder()
        .header(ACCEPT_RANGES, "bytes")
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(ETAG, tag)
        .header(SHA256_HEADER, &bucket.sha256);
    let (start, end, response) = match wanted(headers.get(RANGE), length) {
        Wanted::Whole => (0, length, response.status(StatusCode::OK)),
        Wanted::Part { start, end } => {
            let range = format!("bytes {start}-{}/{length}", end - 1);
            (start, end, response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, range))
        }
        Wanted::Unsatisfiable => {
            let message = format!("bucket `{name}` has {length} bytes: ask for a range inside");
            return Err(user("RangeNotSatisfiable", message));
        }
    };
    let part = file.at(start).await?.take(end - start);
    let body = Body::from_stream(ReaderStream::with_capacity(part, READ));
    let response = response.header(CONTENT_LENGTH, end - start).body(body);
    response.map_err(|error| infrastructure("WeightsResponse", error.to_string()))
}
