//! The bucket store: what the trainer pushed, on this gateway's disk.
//!
//! `DIR/VERSION/NAME` is a bucket, `DIR/VERSION/.meta/NAME` its length and digest. A
//! bucket is written beside its name and renamed when it is whole, so a reader sees all of
//! it or none; what a crash left half done is swept at the next start.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use rollwright_core::fault::Fault;
use rollwright_core::version::Version;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, SeekFrom};
use tokio::sync::watch;
use tokio_util::io::ReaderStream;

use super::bucket::{
    Bucket, Listing, check_name, directory, disk, gone, remove, retain, to_hex, user,
};
use super::upload::Upload;

/// Bytes read from the disk at once.
const READ: usize = 256 << 10;

/// Where and how much.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// A directory of its own; made when it is not there.
    pub dir: PathBuf,
    /// Bytes of one bucket at most.
    pub max_bucket: u64,
    /// Bytes of one version at most. At most the current, the begun and the pinned
    /// versions are kept, so the disk needs a multiple of it.
    pub max_version: u64,
    /// Buckets of one version at most.
    pub max_buckets: usize,
}

/// The bucket store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BucketStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) config: StoreConfig,
    versions: Mutex<BTreeMap<Version, Held>>,
    /// Numbers partial files and begun versions.
    numbers: AtomicU64,
    /// One bucket becomes visible at a time.
    pub(super) publishing: tokio::sync::Mutex<()>,
    /// Counts changes: pullers in this process wait on it.
    changed: watch::Sender<u64>,
}

/// A version of which something was, or may be, pushed.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Tells it from an earlier begin of the same version.
    pub(super) number: u64,
    pub(super) buckets: BTreeMap<String, Bucket>,
    /// Bytes on disk, of uploads under way too.
    pub(super) bytes: u64,
    pub(super) uploads: usize,
    pub(super) state: State,
    pub(super) pushing: Option<(Instant, Instant)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Takes buckets.
    Open,
    /// Committed: whole.
    #[default]
    Sealed,
}

impl BucketStore {
    /// Takes up what an earlier run left. All of it counts as complete but is deleted by
    /// the next [`Self::retain`] that does not name it.
    pub async fn open(config: StoreConfig) -> Result<Self, Fault> {
        let dir = config.dir.clone();
        let fault = |error: std::io::Error| disk(&dir, &error);
        fs::create_dir_all(&dir).await.map_err(fault)?;
        let mut versions = BTreeMap::new();
        let mut entries = fs::read_dir(&dir).await.map_err(fault)?;
        while let Some(entry) = entries.next_entry().await.map_err(fault)? {
            let name = entry.file_name();
            let Some(version) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let held = take_up(&entry.path()).await.map_err(fault)?;
            versions.insert(Version(version), held);
        }
        let inner = Inner {
            config,
            versions: Mutex::new(versions),
            numbers: AtomicU64::new(1),
            publishing: tokio::sync::Mutex::default(),
            changed: watch::channel(0).0,
        };
        Ok(Self(Arc::new(inner)))
    }

    pub(super) fn number(&self) -> u64 {
        self.0.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn versions(&self) -> MutexGuard<'_, BTreeMap<Version, Held>> {
        self.0.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.0.changed.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// From now on `version` takes buckets. What an earlier attempt left of it is deleted,
    /// unless it is open still.
    pub async fn begin(&self, version: Version) -> Result<(), Fault> {
        let _one = self.0.publishing.lock().await;
        if self.versions().get(&version).is_some_and(|held| held.state == State::Open) {
            return Ok(());
        }
        self.versions().remove(&version);
        let dir = directory(&self.0.config.dir, version);
        remove(&dir).await.map_err(|error| disk(&dir, &error))?;
        fs::create_dir_all(meta_dir(&dir)).await.map_err(|error| disk(&dir, &error))?;
        let held = Held { number: self.number(), state: State::Open, ..Held::default() };
        self.versions().insert(version, held);
        self.notify();
        Ok(())
    }

    /// True from [`Self::begin`] to [`Self::seal`].
    pub fn is_open(&self, version: Version) -> bool {
        self.versions().get(&version).is_some_and(|held| held.state == State::Open)
    }

    /// `version` is whole: it takes no bucket any more, and pullers finish. Refused while
    /// an upload is under way, and when nothing was pushed.
    pub fn seal(&self, version: Version) -> Result<(), Fault> {
        let mut versions = self.versions();
        let held = versions.get_mut(&version).ok_or_else(|| unknown(version))?;
        if held.uploads > 0 {
            let message = format!(
                "{} uploads of version {version} are under way: commit when all have been answered",
                held.uploads
            );
            return Err(user("UploadsUnderWay", message));
        }
        if held.buckets.is_empty() {
            let message = format!("version {version} has no bucket: push its weights first");
            return Err(user("NoBuckets", message));
        }
        held.state = State::Sealed;
        drop(versions);
        self.notify();
        Ok(())
    }

    /// Deletes all versions but those of `keep`: the current, the begun, pinned ones.
    /// Readers of a deleted bucket still get all of it.
    pub async fn retain(&self, keep: &[Version]) -> Result<(), Fault> {
        let _one = self.0.publishing.lock().await;
        self.versions().retain(|version, _| keep.contains(version));
        self.notify();
        let dir = &self.0.config.dir;
        retain(dir, keep).await.map_err(|error| disk(dir, &error))
    }

    /// Returns when `version` is complete. [`rollwright_core::fault::FaultKind::Stale`] when it was aborted. What
    /// an engine on this machine waits for instead of a pull: see [`Self::path`].
    pub async fn complete(&self, version: Version) -> Result<(), Fault> {
        let mut changes = self.changes();
        loop {
            let listing = self.list(version).map_err(|_| gone(version))?;
            if listing.complete {
                return Ok(());
            }
            // The sender lives as long as this store.
            drop(changes.changed().await);
        }
    }

    /// The directory that holds the buckets of `version`, for engines on this machine.
    pub fn path(&self, version: Version) -> PathBuf {
        directory(&self.0.config.dir, version)
    }

    /// The buckets that are whole.
    pub fn list(&self, version: Version) -> Result<Listing, Fault> {
        let versions = self.versions();
        let held = versions.get(&version).ok_or_else(|| unknown(version))?;
        Ok(Listing {
            version: version.0,
            complete: held.state == State::Sealed,
            buckets: held.buckets.values().cloned().collect(),
        })
    }

    /// From the begin of the first upload of `version` to the end of the last.
    pub fn push_time(&self, version: Version) -> Option<Duration> {
        let (first, last) = self.versions().get(&version)?.pushing?;
        Some(last.duration_since(first))
    }

    /// Refuses a bucket whose announced length is too much, before a byte of it is read.
    pub fn fits(&self, name: &str, announced: Option<u64>) -> Result<(), Fault> {
        let most = self.0.config.max_bucket;
        if announced.is_some_and(|bytes| bytes > most) {
            Err(too_large(name, most))
        } else {
            Ok(())
        }
    }

    /// Takes a bucket as it comes; its digest must be `expected`, where that is given. A
    /// bucket that is there already with the same content is success, so that an upload
    /// may be repeated.
    pub async fn put<E: Display>(
        &self,
        version: Version,
        name: &str,
        expected: Option<[u8; 32]>,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Bucket, Fault> {
        check_name(name)?;
        let mut upload = Upload::begin(self, version, name)?;
        let file = fs::File::create_new(&upload.partial).await;
        let file = file.map_err(|error| disk(&upload.partial, &error))?;
        let sha = upload.receive(file, body).await?;
        if let Some(expected) = expected
            && expected != sha
        {
            let message = format!(
                "bucket `{name}` came with SHA-256 {}, and {} was announced: push it again",
                to_hex(&sha),
                to_hex(&expected)
            );
            return Err(user("ChecksumMismatch", message));
        }
        upload.publish(&sha).await
    }

    /// The length of a bucket.
    pub fn length(&self, version: Version, name: &str) -> Result<u64, Fault> {
        let versions = self.versions();
        let held = versions.get(&version).ok_or_else(|| unknown(version))?;
        let bucket = held.buckets.get(name).ok_or_else(|| missing(version, name))?;
        Ok(bucket.bytes)
    }

    /// The bytes of a bucket in `range`, which must lie inside. All of them come, even
    /// when the version is deleted meanwhile.
    pub async fn stream(
        &self,
        version: Version,
        name: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        self.length(version, name)?;
        let path = self.path(version).join(name);
        let mut file = File::open(&path).await.map_err(|error| match error.kind() {
            // Deleted since.
            std::io::ErrorKind::NotFound => missing(version, name),
            _ => disk(&path, &error),
        })?;
        let sought = file.seek(SeekFrom::Start(range.start)).await;
        sought.map_err(|error| disk(&path, &error))?;
        let part = file.take(range.end.saturating_sub(range.start));
        let pieces = ReaderStream::with_capacity(part, READ);
        Ok(pieces.map(move |piece| piece.map_err(|error| disk(&path, &error))).boxed())
    }
}

fn unknown(version: Version) -> Fault {
    let message =
        format!("version {version} has no buckets here: begin it with transfer \"store\"");
    user("VersionNotFound", message)
}

pub(super) fn too_large(name: &str, most: u64) -> Fault {
    let message = format!(
        "bucket `{name}` is longer than {most} bytes: split the weights into smaller buckets"
    );
    user("BucketTooLarge", message)
}

fn missing(version: Version, name: &str) -> Fault {
    user("BucketNotFound", format!("version {version} has no bucket `{name}`: see its list"))
}

pub(super) fn meta_dir(version: &Path) -> PathBuf {
    version.join(".meta")
}

/// What an earlier run left of one version: whole buckets stay, the rest is deleted.
async fn take_up(dir: &Path) -> std::io::Result<Held> {
    let mut held = Held::default();
    let mut entries = fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        let file_name = entry.file_name();
        let Some(name) = file_name.to_str().filter(|name| *name != ".meta") else { continue };
        let meta = fs::read(meta_dir(dir).join(name)).await.unwrap_or_default();
        let length = entry.metadata().await?.len();
        match serde_json::from_slice::<Bucket>(&meta) {
            Ok(bucket) if bucket.bytes == length && bucket.name == name => {
                held.bytes += length;
                held.buckets.insert(bucket.name.clone(), bucket);
            }
            _ => fs::remove_file(entry.path()).await?,
        }
    }
    Ok(held)
}
