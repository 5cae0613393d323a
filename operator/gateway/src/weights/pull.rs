//! The puller: a node's copy of a begun version, fetched while generation goes on.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered, StreamExt as _};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use sha2::{Digest as _, Sha256};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::bucket::{
    Bucket, Listing, check_name, directory, disk, hash_file, infrastructure, retain, to_hex,
};
use super::origin::Origin;
use super::pace::Pacer;

/// Times that a bucket may come with a wrong digest.
const CORRUPT: u32 = 3;
/// Back-off between tries: the first, doubled up to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Where to and how fast.
#[derive(Debug, Clone)]
pub struct PullConfig {
    /// A directory of its own; `DIR/VERSION` is what the engine loads.
    pub dir: PathBuf,
    /// Bytes a second until the commit, so that generation is not disturbed; then the
    /// weights are waited for, and there is no cap. `None`: no cap at all.
    pub bandwidth: Option<u64>,
    /// Buckets at once; at least 1.
    pub parallel: usize,
    /// A failing origin is given up when no byte came for so long.
    pub patience: Duration,
}

/// A version that a node holds whole and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Pulled {
    /// Which.
    pub version: Version,
    /// Its directory, for [`crate::engine::control::Source::Disk`].
    pub path: PathBuf,
    /// Bytes that came over the wire.
    pub bytes: u64,
    /// Bytes that an earlier, broken pull had brought already.
    pub resumed: u64,
    /// Time with a transfer under way.
    pub pull: Duration,
    /// Of that, time after the version was seen to be complete: what workers wait for.
    pub exposed: Duration,
}

/// Fetches versions into a directory of this node.
#[derive(Debug)]
pub struct Puller {
    origin: Origin,
    config: PullConfig,
    /// What was pulled last. Workers of one node pull through one puller: the first
    /// fetches, the others wait for it.
    last: Mutex<Option<Pulled>>,
}

impl Puller {
    /// A puller of `origin`.
    pub fn new(origin: Origin, config: PullConfig) -> Self {
        Self { origin, config, last: Mutex::new(None) }
    }

    /// What was pulled last is not believed any more: its version was aborted and may be
    /// begun again with other buckets.
    pub async fn forget(&self) {
        *self.last.lock().await = None;
    }

    /// Fetches the buckets of `version` as they are pushed, until it is complete. Deletes
    /// all versions but it and those of `keep`. Dropping the future stops it, and what
    /// came is used again; calls for the same version share one pull. [`FaultKind::Stale`]: the version was aborted meanwhile.
    pub async fn pull(&self, version: Version, keep: &[Version]) -> Result<Pulled, Fault> {
        let mut last = self.last.lock().await;
        if let Some(pulled) = last.as_ref().filter(|pulled| pulled.version == version) {
            return Ok(pulled.clone());
        }
        *last = None;
        let root = &self.config.dir;
        let dir = directory(root, version);
        fs::create_dir_all(&dir).await.map_err(|error| disk(&dir, &error))?;
        let keep: Vec<Version> = keep.iter().copied().chain([version]).collect();
        retain(root, &keep).await.map_err(|error| disk(root, &error))?;
        let pull =
            Pull { puller: self, version, dir: &dir, pacer: Pacer::new(self.config.bandwidth) };
        let (listing, clock, moved) = pull.run().await?;
        sweep(&dir, &listing).await.map_err(|error| disk(&dir, &error))?;
        let Moved { bytes, resumed } = moved;
        let (pull, exposed) = (clock.busy, clock.exposed);
        let pulled = Pulled { version, path: dir, bytes, resumed, pull, exposed };
        Ok(last.insert(pulled).clone())
    }
}

/// Bytes of one or more buckets.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    bytes: u64,
    resumed: u64,
}

/// Measures time with transfers under way.
#[derive(Debug, Default)]
struct Stopwatch {
    busy: Duration,
    exposed: Duration,
    last: Option<Instant>,
}

impl Stopwatch {
    /// Counts the time since the last mark.
    fn mark(&mut self, running: bool, complete: bool) {
        let now = Instant::now();
        if let Some(last) = self.last {
            let passed = now - last;
            self.busy += passed;
            if complete {
                self.exposed += passed;
            }
        }
        self.last = running.then_some(now);
    }
}

struct Pull<'a> {
    puller: &'a Puller,
    version: Version,
    dir: &'a Path,
    pacer: Pacer,
}

impl Pull<'_> {
    async fn run(&self) -> Result<(Listing, Stopwatch, Moved), Fault> {
        let listings = stream::unfold(self.puller.origin.changes(), async |mut changes| {
            Origin::changed(&mut changes).await;
            Some((self.list().await, changes))
        });
        let mut listings = pin!(listings);
        let mut listing = self.list().await?;
        let mut queued = VecDeque::new();
        let mut known = BTreeSet::new();
        let mut running = FuturesUnordered::new();
        let mut clock = Stopwatch::default();
        let mut moved = Moved::default();
        loop {
            for bucket in &listing.buckets {
                if known.insert(bucket.name.clone()) {
                    check_name(&bucket.name)?;
                    queued.push_back(bucket.clone());
                }
            }
            if listing.complete {
                self.pacer.lift();
            }
            while running.len() < self.puller.config.parallel.max(1)
                && let Some(bucket) = queued.pop_front()
            {
                running.push(self.fetch(bucket));
            }
            clock.mark(!running.is_empty(), false);
            if running.is_empty() && listing.complete {
                return Ok((listing, clock, moved));
            }
            let complete = listing.complete;
            tokio::select! {
                Some(fetched) = running.next() => {
                    let fetched: Moved = fetched?;
                    moved.bytes += fetched.bytes;
                    moved.resumed += fetched.resumed;
                }
                Some(listed) = listings.next(), if !complete => listing = listed?,
            }
            clock.mark(!running.is_empty(), complete);
        }
    }

    /// The list, asked for until the origin answers or patience ends.
    async fn list(&self) -> Result<Listing, Fault> {
        let mut tries = Tries::new(self.puller.config.patience);
        loop {
            match self.puller.origin.list(self.version).await {
                Ok(listing) => return Ok(listing),
                Err(fault) => tries.again(fault).await?,
            }
        }
    }

    async fn fetch(&self, bucket: Bucket) -> Result<Moved, Fault> {
        let mut tries = Tries::new(self.puller.config.patience);
        let mut corrupt = 0;
        let mut moved = Moved::default();
        let path = self.dir.join(&bucket.name);
        if let Ok(there) = fs::metadata(&path).await {
            let mut hasher = Sha256::new();
            hash_file(&path, &mut hasher).await.map_err(|error| disk(&path, &error))?;
            if to_hex(&hasher.finalize().into()) == bucket.sha256 {
                moved.resumed = there.len();
                return Ok(moved);
            }
            fs::remove_file(&path).await.map_err(|error| disk(&path, &error))?;
        }
        loop {
            let before = moved.bytes;
            match self.attempt(&bucket, &mut moved).await {
                Ok(()) => return Ok(moved),
                Err(fault) if fault.reason == CORRUPT_BUCKET => {
                    corrupt += 1;
                    if corrupt == CORRUPT {
                        return Err(fault);
                    }
                    tracing::warn!(%fault, "a bucket is pulled again");
                }
                Err(fault) => {
                    if moved.bytes > before {
                        tries = Tries::new(self.puller.config.patience);
                    }
                    tries.again(fault).await?;
                }
            }
        }
    }

    /// One try, which goes on where the one before it ended.
    async fn attempt(&self, bucket: &Bucket, moved: &mut Moved) -> Result<(), Fault> {
        let path = self.dir.join(format!(".{}.part", bucket.name));
        let fault = |error: std::io::Error| disk(&path, &error);
        let mut partial = Partial::open(path.clone(), bucket.bytes).await.map_err(fault)?;
        if moved.bytes == 0 {
            moved.resumed = partial.have;
        }
        let received = self.receive(bucket, &mut partial, moved).await;
        // Even what broke off is read again by the next try.
        partial.file.flush().await.map_err(fault)?;
        received?;
        if to_hex(&partial.hasher.finalize().into()) != bucket.sha256 {
            fs::remove_file(&path).await.map_err(fault)?;
            return Err(corrupt(bucket));
        }
        partial.file.sync_all().await.map_err(fault)?;
        let whole = self.dir.join(&bucket.name);
        fs::rename(&path, &whole).await.map_err(|error| disk(&whole, &error))
    }

    async fn receive(
        &self,
        bucket: &Bucket,
        partial: &mut Partial,
        moved: &mut Moved,
    ) -> Result<(), Fault> {
        if partial.have == bucket.bytes {
            return Ok(());
        }
        let mut content = self.puller.origin.read(self.version, bucket, partial.have).await?;
        if content.from != partial.have {
            partial.restart().await.map_err(|error| disk(&partial.path, &error))?;
            moved.resumed = 0;
        }
        while let Some(piece) = content.pieces.next().await {
            let piece = piece?;
            let bytes = piece.len() as u64;
            if partial.have + bytes > bucket.bytes {
                let restarted = partial.restart().await;
                restarted.map_err(|error| disk(&partial.path, &error))?;
                return Err(corrupt(bucket));
            }
            partial.append(&piece).await.map_err(|error| disk(&partial.path, &error))?;
            moved.bytes += bytes;
            self.pacer.passed(bytes).await;
        }
        if partial.have < bucket.bytes {
            let message = format!("bucket `{}` ended after {} bytes", bucket.name, partial.have);
            return Err(infrastructure("WeightsOrigin", message));
        }
        Ok(())
    }
}

/// A bucket that is not whole yet.
struct Partial {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    have: u64,
}

impl Partial {
    /// Takes up what is there, if it can be the begin of a bucket of `most` bytes.
    async fn open(path: PathBuf, most: u64) -> std::io::Result<Self> {
        let file = File::options().create(true).append(true).open(&path).await?;
        let mut hasher = Sha256::new();
        let have = hash_file(&path, &mut hasher).await?;
        let mut partial = Self { path, file, hasher, have };
        if have > most {
            partial.restart().await?;
        }
        Ok(partial)
    }

    async fn restart(&mut self) -> std::io::Result<()> {
        self.file.flush().await?;
        self.file.set_len(0).await?;
        (self.have, self.hasher) = (0, Sha256::new());
        Ok(())
    }

    async fn append(&mut self, piece: &[u8]) -> std::io::Result<()> {
        self.hasher.update(piece);
        self.have += piece.len() as u64;
        self.file.write_all(piece).await
    }
}

/// Reason of the fault of a bucket whose content is not what its digest says.
const CORRUPT_BUCKET: &str = "BucketCorrupt";

fn corrupt(bucket: &Bucket) -> Fault {
    let Bucket { name, sha256, .. } = bucket;
    let message = format!("what came for bucket `{name}` has not SHA-256 {sha256}: push it again");
    infrastructure(CORRUPT_BUCKET, message)
}

/// Back-off, until patience ends.
struct Tries {
    patience: Duration,
    since: Instant,
    wait: Duration,
}

impl Tries {
    fn new(patience: Duration) -> Self {
        Self { patience, since: Instant::now(), wait: BACK_OFF.0 }
    }

    /// Waits for the next try; the fault itself when it is final or patience has ended.
    async fn again(&mut self, fault: Fault) -> Result<(), Fault> {
        let passing = fault.kind == FaultKind::Infrastructure && fault.reason != "WeightsDisk";
        if !passing || self.since.elapsed() >= self.patience {
            return Err(fault);
        }
        tracing::debug!(%fault, "a pull is tried again");
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(BACK_OFF.1);
        Ok(())
    }
}

/// Deletes what is not in the list: an engine loads all files of the directory.
async fn sweep(dir: &Path, listing: &Listing) -> std::io::Result<()> {
    let mut entries = fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        let name = entry.file_name();
        if !listing.buckets.iter().any(|bucket| name == *bucket.name) {
            fs::remove_file(entry.path()).await?;
        }
    }
    Ok(())
}
