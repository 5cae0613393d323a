//! The thread that writes: everything that waits goes to disk together.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode};
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::BatchId;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::StoreError;
use super::index::{Changes, Index, Space, set_weights};
use super::meta::{GroupMeta, RecordMeta, TakenBatch, Weights};
use super::segment::{Place, Segments};

/// Payload bytes that one commit waits for at most.
const COMMIT_BYTES: usize = 16 << 20;
/// Writes that one commit holds at most.
const COMMIT_WRITES: usize = 1024;

/// Something to write.
pub(super) enum Op {
    Open { meta: GroupMeta, payload: Option<Bytes> },
    Keep { meta: RecordMeta, record: Bytes },
    Drop { group: GroupId, trajectories: Vec<TrajectoryId> },
    Settle { group: GroupId, kept: Vec<TrajectoryId> },
    End { group: GroupId },
    Take(TakenBatch),
    Acknowledge(BatchId),
    Weights(Weights),
}

impl Op {
    fn payload(&self) -> Option<&Bytes> {
        match self {
            Self::Open { payload, .. } => payload.as_ref(),
            Self::Keep { record, .. } => Some(record),
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.payload().map_or(0, Bytes::len)
    }
}

/// A write, and who waits for it.
pub(super) struct Write {
    pub(super) op: Op,
    pub(super) done: oneshot::Sender<Result<(), StoreError>>,
    /// Its share of what may wait.
    pub(super) budget: Option<OwnedSemaphorePermit>,
}

/// The embedded database's parts.
pub(super) struct Spaces {
    pub(super) db: Database,
    pub(super) groups: Keyspace,
    pub(super) records: Keyspace,
    pub(super) batches: Keyspace,
    pub(super) meta: Keyspace,
}

/// What the thread is told.
pub(super) enum Message {
    Write(Write),
    /// Everything before it is written; the thread ends.
    Stop,
}

/// What the thread owns.
pub(super) struct Writer {
    pub(super) dir: PathBuf,
    pub(super) spaces: Spaces,
    pub(super) segments: Segments,
    pub(super) index: Arc<RwLock<Index>>,
    /// Bytes of the disk that payloads leave free, so that what frees disk can be written.
    pub(super) headroom: u64,
}

impl Writer {
    /// Writes until it is told to stop, or nobody can ask any more.
    pub(super) fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let (mut failed, mut stopping) = (false, false);
        while !stopping {
            let Some(Message::Write(first)) = messages.blocking_recv() else { return };
            let mut bytes = first.op.bytes();
            let mut round = vec![first];
            while bytes < COMMIT_BYTES && round.len() < COMMIT_WRITES {
                match messages.try_recv() {
                    Ok(Message::Write(write)) => {
                        bytes += write.op.bytes();
                        round.push(write);
                    }
                    Ok(Message::Stop) => {
                        stopping = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            if failed {
                for write in round {
                    answer(write, Err(StoreError::Stopped));
                }
                continue;
            }
            if let Err(error) = self.commit(round) {
                tracing::error!(%error, "the store writes no more");
                failed = true;
            }
        }
    }

    /// Writes a round and answers everybody in it. An error ends all writing: what the
    /// database holds of this round is not known.
    fn commit(&mut self, round: Vec<Write>) -> Result<(), StoreError> {
        let mut placed = self.place(round);
        let mut changes = Changes::default();
        let mut outcomes = Vec::with_capacity(placed.len());
        {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            for (write, place) in &placed {
                outcomes.push(apply(&mut index, &write.op, *place, &mut changes));
            }
        }
        if let Err(error) = self.persist(&mut changes) {
            for (write, _) in placed.drain(..) {
                answer(write, Err(error.clone()));
            }
            return Err(error);
        }
        for ((write, _), outcome) in placed.into_iter().zip(outcomes) {
            answer(write, outcome);
        }
        for place in changes.freed {
            if let Err(error) = self.segments.free(place) {
                // The next start frees it; nothing depends on it.
                tracing::warn!(%error, "cannot give disk back");
            }
        }
        Ok(())
    }

    /// Puts the payloads on disk, and answers those for whom that failed.
    fn place(&mut self, round: Vec<Write>) -> Vec<(Write, Option<Place>)> {
        let mut placed = Vec::with_capacity(round.len());
        for write in round {
            match write.op.payload().map(|payload| append(self, payload)).transpose() {
                Ok(place) => placed.push((write, place)),
                Err(error) => answer(write, Err(error)),
            }
        }
        let Err(error) = self.segments.sync() else { return placed };
        tracing::error!(%error, "payloads could not be written");
        let (without, with): (Vec<_>, Vec<_>) =
            placed.into_iter().partition(|(_, place)| place.is_none());
        for (write, place) in with {
            answer(write, Err(error.clone()));
            if let Some(Err(error)) = place.map(|place| self.segments.free(place)) {
                tracing::warn!(%error, "cannot give disk back");
            }
        }
        without
    }

    fn persist(&self, changes: &mut Changes) -> Result<(), StoreError> {
        if changes.keys.is_empty() {
            return Ok(());
        }
        let mut batch = self.spaces.db.batch();
        for ((space, key), value) in changes.keys.drain() {
            let keyspace = match space {
                Space::Groups => &self.spaces.groups,
                Space::Records => &self.spaces.records,
                Space::Batches => &self.spaces.batches,
                Space::Meta => &self.spaces.meta,
            };
            match value {
                Some(value) => batch.insert(keyspace, key, value),
                None => batch.remove(keyspace, key),
            }
        }
        Ok(batch.durability(Some(PersistMode::SyncData)).commit()?)
    }
}

fn append(writer: &mut Writer, payload: &[u8]) -> Result<Place, StoreError> {
    let too_large = |_| StoreError::TooLarge { length: payload.len(), max: super::MAX_RECORD };
    let length = u32::try_from(payload.len()).map_err(too_large)?;
    let disk = rustix::fs::statvfs(&writer.dir).map_err(std::io::Error::from)?;
    let available = disk.f_bavail.saturating_mul(disk.f_frsize);
    if available < writer.headroom.saturating_add(u64::from(length)) {
        return Err(StoreError::Full { available });
    }
    match writer.segments.append(payload, length) {
        Err(StoreError::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull => {
            Err(StoreError::Full { available })
        }
        done => done,
    }
}

fn apply(
    index: &mut Index,
    op: &Op,
    place: Option<Place>,
    changes: &mut Changes,
) -> Result<(), StoreError> {
    match (op, place) {
        (Op::Open { meta, .. }, place) => index.open(meta, place, changes),
        (Op::Keep { meta, .. }, Some(place)) => index.keep(meta, place, changes),
        // A record always has a place: `payload` says so.
        (Op::Keep { .. }, None) => Ok(()),
        (Op::Drop { group, trajectories }, _) => {
            index.drop_records(group, trajectories, changes);
            Ok(())
        }
        (Op::Settle { group, kept }, _) => index.settle(group, kept, changes),
        (Op::End { group }, _) => {
            index.end(group, changes);
            Ok(())
        }
        (Op::Take(batch), _) => index.take(batch, changes),
        (Op::Acknowledge(batch), _) => index.acknowledge(*batch, changes),
        (Op::Weights(weights), _) => set_weights(weights, changes),
    }
}

/// Tells the caller, if it still waits.
fn answer(write: Write, outcome: Result<(), StoreError>) {
    drop(write.budget);
    // A caller that went away has given up the answer, not the write.
    drop(write.done.send(outcome));
}
