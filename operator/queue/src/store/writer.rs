//! Group commit: everything that piled up during one commit goes into the next.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fjall::PersistMode;
use prost::Message as _;
use rollwright_core::ids::{ActionId, JobId, TrajectoryId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::{Accepted, Ended, Profile, StartedCall, Store, StoreError, Trajectory};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// How often the age of buckets is looked at when nothing is written.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Something to write.
pub(crate) enum Op {
    Accept {
        action: ActionId,
        job: JobId,
        submitted: Time,
        request: Arc<pb::ExecuteRequest>,
    },
    End {
        action: ActionId,
        record: Arc<Ended>,
    },
    /// A call of a reward service is about to be started.
    Start {
        action: ActionId,
        record: Box<StartedCall>,
    },
    /// Its answer.
    Answer {
        action: ActionId,
        record: Arc<Ended>,
    },
    Trajectory {
        trajectory: TrajectoryId,
        record: Box<Trajectory>,
    },
    RemoveTrajectory(TrajectoryId),
    /// What was learned of a profile; `None` where it is forgotten.
    Profile {
        key: String,
        record: Option<Box<Profile>>,
    },
}

/// What a commit made durable, or ended.
pub(crate) enum Durable {
    Accepted(ActionId),
    Ended {
        action: ActionId,
        /// Names the bucket that the result lies in.
        bucket: u64,
    },
    /// That a call is started.
    Started(ActionId),
    /// The answer of a call, and the bucket that it lies in.
    Answered {
        action: ActionId,
        bucket: u64,
    },
    Trajectory(TrajectoryId),
    /// The trajectory's end.
    Removed(TrajectoryId),
    /// Results in this bucket and before it are gone, so many before their time.
    Expired {
        bucket: u64,
        early: usize,
    },
}

#[derive(Default)]
struct Pending {
    ops: Vec<Op>,
    stopping: bool,
}

struct Shared {
    pending: Mutex<Pending>,
    wake: Condvar,
}

/// The thread that writes.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. `notify` is given what each commit made durable, or the
    /// error that ended the thread; it may block.
    pub(crate) fn spawn(
        store: Arc<Store>,
        clock: Clock,
        metrics: Arc<Metrics>,
        notify: impl Fn(Result<Vec<Durable>, StoreError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { pending: Mutex::default(), wake: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let run = move || {
            while let Some(ops) = theirs.next() {
                let began = Instant::now();
                let size = ops.len();
                let outcome = store.commit(ops, clock.now());
                if size > 0 {
                    metrics.commit_batch.observe(size as f64);
                    metrics.commit_seconds.observe(began.elapsed().as_secs_f64());
                }
                let failed = outcome.is_err();
                if outcome.as_ref().is_ok_and(Vec::is_empty) {
                    continue;
                }
                notify(outcome);
                if failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-writer".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands over what a round of the scheduler wants written. Never blocks for
    /// longer than it takes to move the list.
    pub(crate) fn push(&self, ops: &mut Vec<Op>) {
        self.shared.push(ops);
    }

    /// For another task that writes.
    pub(crate) fn pusher(&self) -> Pusher {
        Pusher(Arc::clone(&self.shared))
    }

    /// Writes what is left and ends the thread. Blocks.
    pub(crate) fn stop(&mut self) {
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

/// Hands over what is to be written; what comes after the writer's end is not.
pub(crate) struct Pusher(Arc<Shared>);

impl Pusher {
    /// See [`Writer::push`].
    pub(crate) fn push(&self, ops: &mut Vec<Op>) {
        self.0.push(ops);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Without waiting: the thread writes what is left and ends by itself.
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn push(&self, ops: &mut Vec<Op>) {
        if ops.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.ops.is_empty() {
            std::mem::swap(&mut pending.ops, ops);
        } else {
            pending.ops.append(ops);
        }
        drop(pending);
        self.wake.notify_one();
    }

    /// Everything that waits; empty after a while without; `None` at the end.
    fn next(&self) -> Option<Vec<Op>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.ops.is_empty() && !pending.stopping {
            let waited = self.wake.wait_timeout(pending, IDLE_CHECK);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if pending.ops.is_empty() && pending.stopping {
            return None;
        }
        Some(std::mem::take(&mut pending.ops))
    }
}

impl Store {
    /// Writes a batch and makes it durable.
    pub(super) fn commit(&self, ops: Vec<Op>, now: Time) -> Result<Vec<Durable>, StoreError> {
        let mut durable = Vec::with_capacity(ops.len() + 1);
        if let Some(expired) = self.turn_buckets(now)? {
            durable.push(expired);
        }
        if ops.is_empty() {
            return Ok(durable);
        }
        let (bucket, results) = {
            let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
            let Some(last) = buckets.back() else { return Ok(durable) };
            (last.seq, last.results.clone())
        };
        // What began and ended within one batch is written once.
        let (mut ended, mut answered) = (HashSet::new(), HashSet::new());
        for op in &ops {
            match op {
                Op::End { action, .. } => drop(ended.insert(action.clone())),
                Op::Answer { action, .. } => drop(answered.insert(action.clone())),
                _ => {}
            }
        }
        let mut began_here = HashSet::new();
        let mut trajectories: HashMap<TrajectoryId, Option<Box<Trajectory>>> = HashMap::new();
        let mut profiles: HashMap<String, Option<Box<Profile>>> = HashMap::new();
        let mut batch = self.db.batch();
        let (mut count, mut bytes) = (0, 0);
        for op in ops {
            match op {
                Op::Accept { action, .. } if ended.contains(&action) => {
                    began_here.insert(action);
                }
                Op::Accept { action, job, submitted, request } => {
                    let record = Accepted {
                        job: job.as_str().to_owned(),
                        submitted: submitted.as_nanos(),
                        request: Some(Arc::unwrap_or_clone(request)),
                    };
                    batch.insert(&self.accepted, action.as_str(), record.encode_to_vec());
                    durable.push(Durable::Accepted(action));
                }
                Op::End { action, record } => {
                    let value = record.encode_to_vec();
                    bytes += value.len() as u64;
                    batch.insert(&results, action.as_str(), value);
                    if !began_here.remove(&action) {
                        batch.remove(&self.accepted, action.as_str());
                    }
                    count += 1;
                    durable.push(Durable::Ended { action, bucket });
                }
                // Its agent was not told of it, and never is.
                Op::Start { action, .. } if answered.contains(&action) => {}
                Op::Start { action, record } => {
                    batch.insert(&self.calls, action.as_str(), record.encode_to_vec());
                    durable.push(Durable::Started(action));
                }
                Op::Answer { action, record } => {
                    batch.remove(&self.calls, action.as_str());
                    let value = record.encode_to_vec();
                    bytes += value.len() as u64;
                    batch.insert(&results, action.as_str(), value);
                    count += 1;
                    durable.push(Durable::Answered { action, bucket });
                }
                Op::Trajectory { trajectory, record } => {
                    trajectories.insert(trajectory.clone(), Some(record));
                    durable.push(Durable::Trajectory(trajectory));
                }
                Op::RemoveTrajectory(trajectory) => {
                    trajectories.insert(trajectory.clone(), None);
                    durable.push(Durable::Removed(trajectory));
                }
                Op::Profile { key, record } => {
                    profiles.insert(key, record);
                }
            }
        }
        // A key may stand in a batch only once.
        for (trajectory, record) in trajectories {
            match record {
                Some(record) => {
                    let value = record.encode_to_vec();
                    batch.insert(&self.trajectories, trajectory.as_str(), value);
                }
                None => batch.remove(&self.trajectories, trajectory.as_str()),
            }
        }
        for (key, record) in profiles {
            match record {
                Some(record) => batch.insert(&self.profiles, key, record.encode_to_vec()),
                None => batch.remove(&self.profiles, key),
            }
        }
        batch.durability(Some(PersistMode::SyncData)).commit()?;
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = buckets.back_mut() {
            last.count += count;
            last.bytes += bytes;
        }
        Ok(durable)
    }

    /// Begins a new bucket when the last is old or large enough, and drops those
    /// whose time is over, or that are too many. Says which were dropped.
    fn turn_buckets(&self, now: Time) -> Result<Option<Durable>, StoreError> {
        let (turn, next) = {
            let buckets = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
            let Some(last) = buckets.back() else { return Ok(None) };
            let old = last.created + self.retention.bucket_time() <= now;
            let large = last.count >= self.retention.bucket_size()
                || last.bytes >= self.retention.bucket_bytes();
            (last.count > 0 && (old || large), last.seq + 1)
        };
        let fresh = if turn { Some(self.new_bucket(next, now)?) } else { None };
        let mut gone = Vec::new();
        let mut early = 0;
        {
            let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
            buckets.extend(fresh);
            // The next one's creation is the last moment that a bucket was written to.
            while let Some(next) = buckets.get(1) {
                let over = next.created + self.retention.keep_for <= now;
                let results: usize = buckets.iter().map(|bucket| bucket.count).sum();
                let bytes: u64 = buckets.iter().map(|bucket| bucket.bytes).sum();
                let fits =
                    results <= self.retention.max_results && bytes <= self.retention.max_bytes;
                if !over && fits {
                    break;
                }
                if !over {
                    early += buckets.front().map_or(0, |bucket| bucket.count);
                }
                gone.extend(buckets.pop_front());
            }
        }
        let mut last = None;
        for bucket in gone {
            last = Some(Durable::Expired { bucket: bucket.seq, early });
            self.db.delete_keyspace(bucket.results)?;
        }
        Ok(last)
    }
}
