//! One upload into the bucket store: written beside its name, counted as it comes, and
//! renamed when it is whole.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::{Stream, StreamExt as _};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use sha2::{Digest as _, Sha256};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt as _;

use super::bucket::{Bucket, Sha, disk, infrastructure, to_hex, user};
use super::store::{BucketStore, Held, State, meta_dir, too_large};

/// Bytes that go to the disk in one write.
const WRITE: usize = 1 << 20;

/// An upload under way. Dropped before it is published, it leaves nothing.
pub(super) struct Upload {
    store: BucketStore,
    version: Version,
    /// Of the begin that it belongs to.
    number: u64,
    name: String,
    pub(super) partial: PathBuf,
    bytes: u64,
    published: bool,
}

impl Upload {
    pub(super) fn begin(store: &BucketStore, version: Version, name: &str) -> Result<Self, Fault> {
        let config = &store.0.config;
        let mut versions = store.versions();
        let held = versions.get_mut(&version).filter(|held| held.state == State::Open);
        let held = held.ok_or_else(|| not_begun(version))?;
        let more = !held.buckets.contains_key(name);
        if more && held.buckets.len() + held.uploads >= config.max_buckets {
            let message = format!(
                "version {version} has {} buckets already: make them larger",
                config.max_buckets
            );
            return Err(user("TooManyBuckets", message));
        }
        let now = Instant::now();
        held.uploads += 1;
        held.pushing = Some(held.pushing.map_or((now, now), |(first, _)| (first, now)));
        let number = held.number;
        drop(versions);
        let partial = store.path(version).join(format!(".partial-{}", store.number()));
        let (store, name) = (store.clone(), name.to_owned());
        Ok(Self { store, version, number, name, partial, bytes: 0, published: false })
    }

    /// What it is a part of; `None` when that was aborted.
    fn held<'a>(&self, versions: &'a mut BTreeMap<Version, Held>) -> Option<&'a mut Held> {
        versions.get_mut(&self.version).filter(|held| held.number == self.number)
    }

    pub(super) async fn receive<E: Display>(
        &mut self,
        file: File,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Sha, Fault> {
        let mut file = tokio::io::BufWriter::with_capacity(WRITE, file);
        let mut body = std::pin::pin!(body);
        let mut hasher = Sha256::new();
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| {
                let message =
                    format!("the upload of `{}` broke: {error}: push it again", self.name);
                user("InvalidUpload", message)
            })?;
            self.charge(piece.len() as u64)?;
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(|error| disk(&self.partial, &error))?;
        }
        file.flush().await.map_err(|error| disk(&self.partial, &error))?;
        file.get_ref().sync_all().await.map_err(|error| disk(&self.partial, &error))?;
        Ok(hasher.finalize().into())
    }

    /// Counts bytes before they are written.
    fn charge(&mut self, bytes: u64) -> Result<(), Fault> {
        let config = &self.store.0.config;
        let mut versions = self.store.versions();
        let held = self.held(&mut versions).ok_or_else(|| not_begun(self.version))?;
        if self.bytes + bytes > config.max_bucket {
            return Err(too_large(&self.name, config.max_bucket));
        }
        if held.bytes + bytes > config.max_version {
            let message = format!(
                "version {} is longer than the store's {} bytes: give it more disk",
                self.version, config.max_version
            );
            return Err(user("VersionTooLarge", message));
        }
        held.bytes += bytes;
        self.bytes += bytes;
        Ok(())
    }

    pub(super) async fn publish(mut self, sha: &Sha) -> Result<Bucket, Fault> {
        let bucket = Bucket { name: self.name.clone(), bytes: self.bytes, sha256: to_hex(sha) };
        let dir = self.store.path(self.version);
        let meta = meta_dir(&dir).join(&bucket.name);
        let record = serde_json::to_vec(&bucket)
            .map_err(|error| infrastructure("WeightsDisk", error.to_string()))?;
        let store = self.store.clone();
        let _one = store.0.publishing.lock().await;
        if let Some(there) = self.there()? {
            return same(there, &bucket);
        }
        // The record first: it says nothing without the bucket, and the bucket is whole
        // at once with it.
        fs::write(&meta, record).await.map_err(|error| disk(&meta, &error))?;
        let path = dir.join(&bucket.name);
        fs::rename(&self.partial, &path).await.map_err(|error| disk(&path, &error))?;
        let mut versions = store.versions();
        let held = self.held(&mut versions).ok_or_else(|| not_begun(self.version))?;
        held.buckets.insert(bucket.name.clone(), bucket.clone());
        self.published = true;
        drop(versions);
        store.notify();
        Ok(bucket)
    }

    /// The bucket of this name, if another upload was faster.
    fn there(&self) -> Result<Option<Bucket>, Fault> {
        let mut versions = self.store.versions();
        let held = self.held(&mut versions).ok_or_else(|| not_begun(self.version))?;
        Ok(held.buckets.get(&self.name).cloned())
    }
}

fn same(there: Bucket, came: &Bucket) -> Result<Bucket, Fault> {
    if there == *came {
        return Ok(there);
    }
    let message = format!(
        "bucket `{}` is there with SHA-256 {}: a pushed bucket does not change, choose another name",
        there.name, there.sha256
    );
    Err(user("BucketConflict", message))
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut versions = self.store.versions();
        if let Some(held) = self.held(&mut versions) {
            held.uploads = held.uploads.saturating_sub(1);
            let now = Instant::now();
            held.pushing = held.pushing.map(|(first, last)| (first, last.max(now)));
            if !self.published {
                held.bytes = held.bytes.saturating_sub(self.bytes);
            }
        }
        drop(versions);
        if !self.published
            && let Err(error) = std::fs::remove_file(&self.partial)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.partial.display(), "a broken upload is left");
        }
    }
}

fn not_begun(version: Version) -> Fault {
    let message = format!(
        "version {version} takes no buckets: begin it with transfer \"store\", and push before the commit"
    );
    Fault::new(FaultKind::Stale, "VersionNotBegun", message)
}
