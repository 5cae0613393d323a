//! Where a puller gets buckets from.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderValue, Method, StatusCode};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use tokio::sync::watch;

use super::bucket::{Bucket, Listing, gone, infrastructure, user};
use super::store::BucketStore;
use crate::outbound::{self, Call, CallError, Proxy};

/// Between two looks at a gateway's list.
const POLL: Duration = Duration::from_millis(200);
/// For a list, and for the head of a bucket.
const LIMIT: Duration = Duration::from_secs(15);
/// A transfer without a byte for so long has broken.
const STALL: Duration = Duration::from_secs(30);
/// Bytes of a list at most.
const LIST: usize = 4 << 20;

/// Where a puller gets buckets from. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A gateway elsewhere.
    Gateway(Remote),
    /// The store of this process.
    Store(BucketStore),
}

/// A gateway over HTTP.
#[derive(Debug, Clone)]
pub struct Remote {
    client: reqwest::Client,
    base: String,
    authorization: Option<HeaderValue>,
}

/// The content of a bucket as it comes.
pub(super) struct Content {
    /// Where it begins: the offset asked for, or 0 where the origin does not resume.
    pub(super) from: u64,
    pub(super) pieces: BoxStream<'static, Result<Bytes, Fault>>,
}

impl Origin {
    /// The gateway at `url`, with the job's API key.
    pub fn gateway(url: &str, key: Option<&str>) -> Result<Self, Fault> {
        let authorization = key.map(|key| {
            outbound::bearer(key).ok_or_else(|| {
                let message = "the API key has characters that no HTTP header may have";
                user("InvalidApiKey", message.to_owned())
            })
        });
        let authorization = authorization.transpose()?;
        let base = url.trim_end_matches('/').to_owned();
        let client = outbound::client(Proxy::Never)?;
        Ok(Self::Gateway(Remote { client, base, authorization }))
    }

    /// What tells of changes, if the origin does.
    pub(super) fn changes(&self) -> Option<watch::Receiver<u64>> {
        match self {
            Self::Gateway(_) => None,
            Self::Store(store) => Some(store.changes()),
        }
    }

    /// Waits until the list may have changed.
    pub(super) async fn changed(changes: &mut Option<watch::Receiver<u64>>) {
        match changes {
            // A store that is gone does not change; then the list says so.
            Some(changes) => drop(changes.changed().await),
            None => tokio::time::sleep(POLL).await,
        }
    }

    pub(super) async fn list(&self, version: Version) -> Result<Listing, Fault> {
        match self {
            Self::Gateway(remote) => remote.list(version).await,
            Self::Store(store) => store.list(version).map_err(|_| gone(version)),
        }
    }

    pub(super) async fn read(
        &self,
        version: Version,
        bucket: &Bucket,
        offset: u64,
    ) -> Result<Content, Fault> {
        match self {
            Self::Gateway(remote) => remote.read(version, bucket, offset).await,
            Self::Store(store) => {
                let pieces = store.stream(version, &bucket.name, offset..bucket.bytes).await;
                let pieces = pieces.map_err(|fault| match fault.kind {
                    FaultKind::User => gone(version),
                    _ => fault,
                })?;
                Ok(Content { from: offset, pieces })
            }
        }
    }
}

impl Remote {
    fn call<'a>(&'a self, url: &'a str) -> Call<'a> {
        let authorization = self.authorization.as_ref();
        Call { method: Method::GET, url, authorization, body: None, limit: LIMIT, most: LIST }
    }

    async fn list(&self, version: Version) -> Result<Listing, Fault> {
        let url = format!("{}/rollout/v1/weights/{version}/buckets", self.base);
        let reply = outbound::send(&self.client, self.call(&url)).await.map_err(unanswered)?;
        check(reply.status, version, || reply.excerpt(self.authorization.as_ref()))?;
        serde_json::from_slice(&reply.body)
            .map_err(|error| infrastructure("WeightsOrigin", format!("its list is wrong: {error}")))
    }

    async fn read(&self, version: Version, bucket: &Bucket, offset: u64) -> Result<Content, Fault> {
        let url = format!("{}/rollout/v1/weights/{version}/buckets/{}", self.base, bucket.name);
        let from = (offset > 0).then_some(offset);
        let opened = outbound::open(&self.client, self.call(&url), from).await;
        let response = opened.map_err(unanswered)?;
        check(response.status(), version, String::new)?;
        let from = if response.status() == StatusCode::PARTIAL_CONTENT { offset } else { 0 };
        let pieces = stream::try_unfold(response, |mut response| async move {
            let piece = tokio::time::timeout(STALL, response.chunk()).await;
            let piece = piece.map_err(|_| unanswered(CallError::Timeout(STALL)))?;
            let piece = piece.map_err(|error| unanswered(outbound::broken(&error)))?;
            Ok(piece.map(|piece| (piece, response)))
        });
        Ok(Content { from, pieces: pieces.boxed() })
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn unanswered(error: CallError) -> Fault {
    infrastructure("WeightsOrigin", format!("the gateway gives no buckets: {error}"))
}

fn check(status: StatusCode, version: Version, said: impl FnOnce() -> String) -> Result<(), Fault> {
    if status.is_success() {
        return Ok(());
    }
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
        return Err(gone(version));
    }
    let message = format!("the gateway answered {status} for buckets of {version}: {}", said());
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(user("Unauthenticated", message));
    }
    Err(infrastructure("WeightsOrigin", message))
}
