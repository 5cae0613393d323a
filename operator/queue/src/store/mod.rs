//! The embedded store: open trajectories, accepted actions, calls that were started, and
//! results for as long as they are kept.
//!
//! Results lie in buckets, each a keyspace of its own that is dropped whole when
//! its time is over: nothing is deleted one by one.

mod record;
mod retained;
mod writer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use prost::Message;
use rollwright_core::time::Time;

pub(crate) use record::{Accepted, CallAnswer, Ended, Level, Profile, StartedCall, Trajectory};
pub(crate) use retained::Retained;
pub(crate) use writer::{Durable, Op, Pusher, Writer};

/// Version of what is written; another one is refused.
const SCHEMA: &[u8] = b"rollwright-queue/1";
/// A bucket is closed after this part of the time that results are kept.
const BUCKETS: u32 = 8;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened or created.
    #[error(
        "cannot open the store in {path}: {source}; it must be a directory that only this queue writes to"
    )]
    Open {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: fjall::Error,
    },
    /// Its directory cannot be made private.
    #[error(
        "the store's directory {path} cannot be kept from other users: {source}; it must belong to this user"
    )]
    Directory {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has it.
    #[error("the store in {path} is in use by another process: one queue has one store")]
    Locked {
        /// Its directory.
        path: PathBuf,
    },
    /// It was written by another version.
    #[error(
        "the store in {path} has schema `{found}`, this queue writes `rollwright-queue/1`: use the version that wrote it, or an empty directory"
    )]
    Schema {
        /// Its directory.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A record cannot be read.
    #[error(
        "the store in {path} is corrupt: {what} `{key}` cannot be read ({source}); restore the directory from a backup, or start with an empty one"
    )]
    Corrupt {
        /// Its directory.
        path: PathBuf,
        /// Sort of record.
        what: &'static str,
        /// Its key.
        key: String,
        /// Why.
        source: prost::DecodeError,
    },
    /// A record can be read but not used.
    #[error(
        "the store is corrupt: {what} `{key}`: {message}; restore the directory from a backup, or start with an empty one"
    )]
    Invalid {
        /// Sort of record.
        what: &'static str,
        /// Its key.
        key: String,
        /// Why.
        message: String,
    },
    /// A thread of ours has a fault of its own.
    #[error("the store's thread `{thread}` panicked: restart the queue, and report the panic")]
    Panicked {
        /// Its name.
        thread: &'static str,
    },
    /// Reading or writing failed.
    #[error("the store failed: {0}")]
    Io(#[from] fjall::Error),
}

/// For how long, and how many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) keep_for: Duration,
    pub(crate) max_results: usize,
    pub(crate) max_bytes: u64,
}

impl Retention {
    fn bucket_time(self) -> Duration {
        self.keep_for / BUCKETS
    }

    fn bucket_size(self) -> usize {
        (self.max_results / BUCKETS as usize).max(1)
    }

    fn bucket_bytes(self) -> u64 {
        (self.max_bytes / u64::from(BUCKETS)).max(1)
    }
}

/// A run of results in order of their ends.
#[derive(Clone)]
struct Bucket {
    seq: u64,
    created: Time,
    results: Keyspace,
    count: usize,
    bytes: u64,
}

/// What was found at opening.
#[derive(Default)]
pub(crate) struct Recovered {
    pub(crate) trajectories: Vec<(String, Trajectory)>,
    pub(crate) actions: Vec<(String, Accepted)>,
    pub(crate) calls: Vec<(String, StartedCall)>,
    pub(crate) profiles: Vec<(String, Profile)>,
    pub(crate) retained: Retained,
    /// Above every epoch that was given out before.
    pub(crate) epoch: u64,
}

/// The store itself. Reads may come from any thread; one [`Writer`] writes.
pub(crate) struct Store {
    path: PathBuf,
    db: Database,
    accepted: Keyspace,
    /// Calls that were started.
    calls: Keyspace,
    trajectories: Keyspace,
    profiles: Keyspace,
    buckets: RwLock<VecDeque<Bucket>>,
    retention: Retention,
}

impl Store {
    /// Opens or creates the store and reads what is unfinished. Blocks.
    pub(crate) fn open(
        path: &Path,
        retention: Retention,
        now: Time,
    ) -> Result<(Self, Recovered), StoreError> {
        private_dir(path)?;
        let opened = Database::builder(path)
            .manual_journal_persist(true)
            .max_journaling_size(128 << 20)
            .cache_size(16 << 20)
            .worker_threads(1)
            .open();
        let db = opened.map_err(|source| match source {
            fjall::Error::Locked => StoreError::Locked { path: path.into() },
            source => StoreError::Open { path: path.into(), source },
        })?;
        let meta = db.keyspace("meta", KeyspaceCreateOptions::default)?;
        match meta.get("schema")? {
            Some(found) if *found != *SCHEMA => {
                let found = String::from_utf8_lossy(&found).into_owned();
                return Err(StoreError::Schema { path: path.into(), found });
            }
            Some(_) => {}
            None => meta.insert("schema", SCHEMA)?,
        }
        // A wall clock that was set back must not bring an old epoch again.
        let last = meta
            .get("epoch")?
            .and_then(|bytes| Some(u64::from_be_bytes((*bytes).try_into().ok()?)));
        let epoch = (now.as_nanos() / 1_000).max(last.unwrap_or(0) + (1 << 32));
        meta.insert("epoch", epoch.to_be_bytes())?;

        let accepted = db.keyspace("accepted", KeyspaceCreateOptions::default)?;
        let calls = db.keyspace("calls", KeyspaceCreateOptions::default)?;
        let trajectories = db.keyspace("trajectories", KeyspaceCreateOptions::default)?;
        let profiles = db.keyspace("profiles", KeyspaceCreateOptions::default)?;
        let mut store = Self {
            path: path.into(),
            db,
            accepted,
            calls,
            trajectories,
            profiles,
            buckets: RwLock::default(),
            retention,
        };
        let retained = store.open_buckets(now)?;
        store.db.persist(PersistMode::SyncAll)?;
        let recovered = Recovered {
            trajectories: store.read_all(&store.trajectories, "trajectory")?,
            actions: store.read_all(&store.accepted, "action")?,
            calls: store.read_all(&store.calls, "call")?,
            profiles: store.read_all(&store.profiles, "profile")?,
            retained,
            epoch,
        };
        Ok((store, recovered))
    }

    fn open_buckets(&mut self, now: Time) -> Result<Retained, StoreError> {
        let mut found: Vec<(u64, Time, String)> = Vec::new();
        for name in self.db.list_keyspace_names() {
            if let Some((seq, created)) = parse_bucket(&name) {
                found.push((seq, created, name.to_string()));
            }
        }
        found.sort();
        let mut buckets = VecDeque::new();
        let mut retained = Retained::default();
        for (seq, created, name) in found {
            let results = self.db.keyspace(&name, bucket_options)?;
            let (mut count, mut bytes) = (0, 0);
            for entry in results.iter() {
                let (key, value) = entry.into_inner()?;
                retained.insert(seq, &String::from_utf8_lossy(&key));
                count += 1;
                bytes += value.len() as u64;
            }
            buckets.push_back(Bucket { seq, created, results, count, bytes });
        }
        if buckets.is_empty() {
            buckets.push_back(self.new_bucket(1, now)?);
        }
        self.buckets = RwLock::new(buckets);
        Ok(retained)
    }

    fn new_bucket(&self, seq: u64, created: Time) -> Result<Bucket, StoreError> {
        let name = format!("results-{seq:016x}-{:016x}", created.as_nanos());
        let results = self.db.keyspace(&name, bucket_options)?;
        Ok(Bucket { seq, created, results, count: 0, bytes: 0 })
    }

    fn read_all<M: Message + Default>(
        &self,
        keyspace: &Keyspace,
        what: &'static str,
    ) -> Result<Vec<(String, M)>, StoreError> {
        let mut all = Vec::new();
        for entry in keyspace.iter() {
            let (key, value) = entry.into_inner()?;
            let key = String::from_utf8_lossy(&key).into_owned();
            let record = self.decode(what, &key, &value)?;
            all.push((key, record));
        }
        Ok(all)
    }

    fn decode<M: Message + Default>(
        &self,
        what: &'static str,
        key: &str,
        value: &[u8],
    ) -> Result<M, StoreError> {
        M::decode(value).map_err(|source| StoreError::Corrupt {
            path: self.path.clone(),
            what,
            key: key.to_owned(),
            source,
        })
    }

    /// The result of an ended action, unless its time is over. Blocks.
    pub(crate) fn result(&self, action: &str, now: Time) -> Result<Option<Ended>, StoreError> {
        let buckets: Vec<Keyspace> = {
            let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
            buckets.iter().rev().map(|bucket| bucket.results.clone()).collect()
        };
        for results in buckets {
            let Some(value) = results.get(action)? else { continue };
            let ended: Ended = self.decode("result", action, &value)?;
            let over = Time::from_nanos(ended.at) + self.retention.keep_for <= now;
            return Ok((!over).then_some(ended));
        }
        Ok(None)
    }
}

/// Makes the directory, for this user alone: requests and outputs lie in it.
fn private_dir(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let failed = |source| StoreError::Directory { path: path.into(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path).map_err(failed)?;
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(mode & !0o077);
        std::fs::set_permissions(path, private).map_err(failed)?;
    }
    Ok(())
}

fn bucket_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().manual_journal_persist(true)
}

fn parse_bucket(name: &str) -> Option<(u64, Time)> {
    let (seq, created) = name.strip_prefix("results-")?.split_once('-')?;
    let created = u64::from_str_radix(created, 16).ok()?;
    Some((u64::from_str_radix(seq, 16).ok()?, Time::from_nanos(created)))
}

#[cfg(test)]
mod tests;
