//! The durable buffer: groups, the records of scored trajectories, batches, and the
//! current version of the weights. What was answered is on disk.
//!
//! Payloads (a record is some 256 KiB of JSON, stored as it is sent) lie in segment
//! files; everything else in an embedded database, which names their places. Recovery
//! reads no payload. Plain appends are used for payloads because the database writes them
//! twice (journal, then blob file) and gives their disk back only when it compacts.

mod error;
mod index;
mod meta;
mod recover;
mod segment;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use futures::stream::{self, StreamExt as _};
use rollwright_core::fault::Fault;
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::BatchId;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use self::error::StoreError;
pub use self::meta::{GroupMeta, RecordMeta, TakenBatch, Weights};
pub use self::recover::{Recovered, RecoveredGroup};

use self::index::Index;
use self::segment::{Place, Reader};
use self::writer::{Message, Op, Spaces, Write, Writer};
use crate::api::rollouts::ByteStream;

/// Largest record or payload, bytes.
pub const MAX_RECORD: usize = 64 << 20;
/// Bytes of payloads that wait for the writer; a caller beyond waits itself.
const QUEUE_BYTES: usize = MAX_RECORD;
/// Writes that wait for the writer.
const QUEUE_WRITES: usize = 4096;
/// Unit of the budget of payloads.
const KIB: usize = 1024;
/// Records that are read ahead of the one that is being sent.
const READ_AHEAD: usize = 2;

/// How a store is kept.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Its directory, of this gateway alone.
    pub dir: PathBuf,
    /// Bytes of the disk that records leave free, so that an acknowledgement, which gives
    /// disk back, can always be written.
    pub headroom: u64,
}

impl StoreConfig {
    /// In this directory, with 128 MiB left free.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), headroom: 128 << 20 }
    }
}

/// The durable buffer. Cheap to clone.
///
/// A write answers when it is on disk; many share one sync. One whose future is dropped
/// before may be written or not. Writes that do not wait for each other have no order.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    writer: mpsc::Sender<Message>,
    budget: Arc<Semaphore>,
    index: Arc<RwLock<Index>>,
    reader: Arc<Reader>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Store {
    /// Opens or creates the store, and says what was in it. Locks the directory against
    /// every other process.
    pub async fn open(config: StoreConfig) -> Result<(Self, Recovered), StoreError> {
        let opened = tokio::task::spawn_blocking(move || Self::open_blocking(&config)).await;
        opened.unwrap_or(Err(StoreError::Stopped))
    }

    fn open_blocking(config: &StoreConfig) -> Result<(Self, Recovered), StoreError> {
        private_dir(&config.dir)?;
        let spaces = open_spaces(&config.dir)?;
        let (index, segments, recovered) = recover::recover(&spaces, &config.dir.join("segments"))?;
        let index = Arc::new(RwLock::new(index));
        let reader = segments.reader();
        let writer = Writer {
            dir: config.dir.clone(),
            spaces,
            segments,
            index: Arc::clone(&index),
            headroom: config.headroom,
        };
        let (messages, queue) = mpsc::channel(QUEUE_WRITES);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(queue))?;
        let budget = Arc::new(Semaphore::new(QUEUE_BYTES / KIB));
        let thread = Mutex::new(Some(thread));
        let shared = Shared { writer: messages, budget, index, reader, thread };
        Ok((Self { shared: Arc::new(shared) }, recovered))
    }

    async fn write(&self, op: Op) -> Result<(), StoreError> {
        let length = op.bytes();
        if length > MAX_RECORD {
            return Err(StoreError::TooLarge { length, max: MAX_RECORD });
        }
        let weight = u32::try_from(length.div_ceil(KIB)).unwrap_or(u32::MAX);
        let budget = Arc::clone(&self.shared.budget).acquire_many_owned(weight).await.ok();
        let (done, outcome) = oneshot::channel();
        let write = Write { op, done, budget };
        self.shared.writer.send(Message::Write(write)).await.map_err(|_| StoreError::Stopped)?;
        outcome.await.unwrap_or(Err(StoreError::Stopped))
    }

    /// Writes a new group, and what its caller wants back in the batch.
    pub async fn open_group(
        &self,
        meta: GroupMeta,
        payload: Option<Bytes>,
    ) -> Result<(), StoreError> {
        self.write(Op::Open { meta, payload }).await
    }

    /// Writes the record of a scored trajectory: the JSON object that a batch sends
    /// ([`RecordBody::to_bytes`](crate::api::types::RecordBody::to_bytes)). Again is fine.
    pub async fn keep(&self, meta: RecordMeta, record: Bytes) -> Result<(), StoreError> {
        self.write(Op::Keep { meta, record }).await
    }

    /// Deletes records of a group that has not settled.
    pub async fn drop_records(
        &self,
        group: GroupId,
        trajectories: Vec<TrajectoryId>,
    ) -> Result<(), StoreError> {
        self.write(Op::Drop { group, trajectories }).await
    }

    /// The group has settled with these records; its others are deleted.
    pub async fn settle(&self, group: GroupId, kept: Vec<TrajectoryId>) -> Result<(), StoreError> {
        self.write(Op::Settle { group, kept }).await
    }

    /// Deletes a group, its payload and its records: aborted, evicted, or an evaluation
    /// that is over. Again is fine.
    pub async fn end_group(&self, group: GroupId) -> Result<(), StoreError> {
        self.write(Op::End { group }).await
    }

    /// Writes down what a batch consists of; to be done before it is sent.
    pub async fn take(&self, batch: TakenBatch) -> Result<(), StoreError> {
        self.write(Op::Take(batch)).await
    }

    /// Deletes a batch and everything in it. Again is fine.
    pub async fn acknowledge(&self, batch: BatchId) -> Result<(), StoreError> {
        self.write(Op::Acknowledge(batch)).await
    }

    /// Writes the current version of the weights, and where they came from.
    pub async fn set_weights(&self, weights: Weights) -> Result<(), StoreError> {
        self.write(Op::Weights(weights)).await
    }

    /// What the caller of a group wants back; none where it gave nothing.
    pub async fn payload(&self, group: &GroupId) -> Result<Option<Bytes>, StoreError> {
        let place = {
            let index = self.shared.index.read().unwrap_or_else(PoisonError::into_inner);
            let held = index.groups.get(group);
            let missing = || StoreError::GroupNotFound { group: group.to_string() };
            held.ok_or_else(missing)?.form.payload
        };
        match place {
            Some(place) => self.read(place, group.to_string()).await.map(Some),
            None => Ok(None),
        }
    }

    /// The record of a trajectory, checked against its checksum.
    pub async fn record(&self, trajectory: &TrajectoryId) -> Result<Bytes, StoreError> {
        let place = {
            let index = self.shared.index.read().unwrap_or_else(PoisonError::into_inner);
            index.records.get(trajectory).copied()
        };
        let missing = || StoreError::RecordNotFound { trajectory: trajectory.to_string() };
        self.read(place.ok_or_else(missing)?, trajectory.to_string()).await
    }

    async fn read(&self, place: Place, key: String) -> Result<Bytes, StoreError> {
        let reader = Arc::clone(&self.shared.reader);
        let read = tokio::task::spawn_blocking(move || reader.read(place, &key)).await;
        read.unwrap_or(Err(StoreError::Stopped)).map(Bytes::from)
    }

    /// These records in this order, read a little ahead of who takes them.
    pub fn records(&self, trajectories: Vec<TrajectoryId>) -> ByteStream {
        let store = self.clone();
        stream::iter(trajectories)
            .map(move |trajectory| {
                let store = store.clone();
                async move { store.record(&trajectory).await.map_err(Fault::from) }
            })
            .buffered(READ_AHEAD)
            .boxed()
    }

    /// Ends the writer, once everything that was asked for is written, and gives the
    /// directory free. Later writes are refused.
    pub async fn close(&self) {
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Refused only when the thread has ended already.
        drop(self.shared.writer.send(Message::Stop).await);
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the store's writer panicked");
            }
        }
    }
}

fn open_spaces(dir: &Path) -> Result<Spaces, StoreError> {
    let opened = Database::builder(dir.join("index"))
        .manual_journal_persist(true)
        .max_journaling_size(128 << 20)
        .cache_size(8 << 20)
        .worker_threads(1)
        .open();
    let db = opened.map_err(|error| match error {
        fjall::Error::Locked => StoreError::Locked { path: dir.into() },
        error => error.into(),
    })?;
    let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
    let open = |name: &str| -> Result<Keyspace, StoreError> { Ok(db.keyspace(name, options)?) };
    let meta = open("meta")?;
    match meta.get("schema")? {
        Some(found) if *found != *meta::SCHEMA.as_bytes() => {
            let found = String::from_utf8_lossy(&found).into_owned();
            return Err(StoreError::Schema { path: dir.into(), found });
        }
        Some(_) => {}
        None => meta.insert("schema", meta::SCHEMA)?,
    }
    let (groups, records) = (open("groups")?, open("records")?);
    let batches = open("batches")?;
    db.persist(PersistMode::SyncAll)?;
    Ok(Spaces { db, groups, records, batches, meta })
}

/// Makes the directory, for this user alone: prompts and answers lie in it.
fn private_dir(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let failed = |source| StoreError::Directory { path: path.into(), source: Arc::new(source) };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path).map_err(failed)?;
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(mode & !0o077);
        std::fs::set_permissions(path, private).map_err(failed)?;
    }
    Ok(())
}
