//! What the routes of `/rollout/v1` ask for.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::{BatchId, Version};

use super::types::{
    AbortTrajectory, BeginWeights, Begun, Bucket, CommitWeights, Committed, CompleteTrajectory,
    Group, OpenGroup, RecordedTokens, StatusReport, Step, StepTaken, TakeBatch, Trajectory,
    TrajectoryState, WeightsReport, WorkerSet, WorkerStates,
};
use crate::events::{Filter, Subscription};

/// Bytes that are read as they are sent, so that nothing large is held whole.
pub type ByteStream = BoxStream<'static, Result<Bytes, Fault>>;

/// The rollouts of one job, as a trainer and its agents see them.
///
/// A caller that goes away drops the future, at any await point: an implementation
/// must leave nothing behind but what it has already accepted. Where a method takes
/// `wait`, it answers at once when there is an answer, and blocks for at most that long.
#[async_trait]
pub trait Rollouts: Send + Sync + 'static {
    /// Opens a group, once there is room for it.
    async fn open_group(&self, open: OpenGroup, wait: Duration) -> Result<Opened, Fault>;

    /// The group; with `wait`, when it has settled or was aborted, or as it is then.
    async fn group(&self, group: &GroupId, wait: Duration) -> Result<Group, Fault>;

    /// Aborts every trajectory of the group. Does nothing to a group that has ended.
    async fn abort_group(&self, group: &GroupId) -> Result<Group, Fault>;

    /// A trajectory of a group that is open or ended less than an hour ago.
    async fn trajectory(&self, trajectory: &TrajectoryId) -> Result<Trajectory, Fault>;

    /// Takes note that a tool call of the trajectory ended.
    async fn step(&self, trajectory: &TrajectoryId, step: Step) -> Result<StepTaken, Fault>;

    /// Ends the trajectory's rollout: it is scored with the given reward, or by the
    /// job's reward services.
    async fn complete(
        &self,
        trajectory: &TrajectoryId,
        complete: CompleteTrajectory,
    ) -> Result<TrajectoryState, Fault>;

    /// Aborts the trajectory, its requests, actions and reward.
    async fn abort(
        &self,
        trajectory: &TrajectoryId,
        abort: AbortTrajectory,
    ) -> Result<TrajectoryState, Fault>;

    /// Adds a turn that was generated elsewhere.
    async fn tokens(
        &self,
        trajectory: &TrajectoryId,
        tokens: RecordedTokens,
    ) -> Result<TrajectoryState, Fault>;

    /// The next batch, or the one that was given out and not acknowledged; `None` when
    /// none is ready in time.
    async fn take_batch(&self, take: TakeBatch) -> Result<Option<Batch>, Fault>;

    /// Acknowledges a batch: its records are deleted. Again is fine.
    async fn ack_batch(&self, batch: BatchId) -> Result<(), Fault>;

    /// Begins an update to a greater version.
    async fn weights_begin(&self, begin: BeginWeights) -> Result<Begun, Fault>;

    /// Brings the begun version to every worker; answers when they hold it.
    async fn weights_commit(&self, commit: CommitWeights) -> Result<Committed, Fault>;

    /// Gives the begun update up; the old version goes on.
    async fn weights_abort(&self, version: Version) -> Result<(), Fault>;

    /// Stores one bucket of the begun version's weights.
    async fn put_bucket(&self, put: PutBucket) -> Result<Bucket, Fault>;

    /// The stored buckets of a version, by name.
    async fn list_buckets(&self, version: Version) -> Result<Vec<Bucket>, Fault>;

    /// A bucket's bytes, or a stretch of them.
    async fn get_bucket(
        &self,
        version: Version,
        name: &str,
        range: ByteRange,
    ) -> Result<BucketBody, Fault>;

    /// The current version, and what each worker holds.
    async fn weights(&self) -> Result<WeightsReport, Fault>;

    /// The workers are to be these: adds, changes, drains and removes, and answers with how
    /// they are now.
    async fn set_workers(&self, wished: WorkerSet) -> Result<WorkerStates, Fault>;

    /// How the workers are.
    async fn workers(&self) -> Result<WorkerStates, Fault>;

    /// How the job is.
    async fn status(&self) -> Result<StatusReport, Fault>;

    /// Events from now on, or from after the one with the id `after`.
    fn subscribe(&self, filter: Filter, after: Option<u64>) -> Result<Subscription, Fault>;
}

/// A group, and whether it is new.
#[derive(Debug)]
pub struct Opened {
    /// The group.
    pub group: Group,
    /// False when a group of that id was open already.
    pub created: bool,
}

/// A batch on its way to the trainer.
pub struct Batch {
    /// Its number; the same until it is acknowledged.
    pub id: BatchId,
    /// The policy's version when it was made up.
    pub version: Version,
    /// Its groups.
    pub groups: Vec<BatchGroup>,
    /// For how long this call waited.
    pub waited: Duration,
    /// The records of all trajectories: those of the first group, then of the second...
    /// Each item is one whole record, a JSON object.
    pub records: ByteStream,
}

/// A group of a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchGroup {
    /// Its id.
    pub id: GroupId,
    /// Its task.
    pub task: rollwright_core::ids::Task,
    /// What the caller gave when it opened the group: JSON.
    pub payload: Option<Bytes>,
    /// How many of [`Batch::records`] are its.
    pub trajectories: usize,
}

/// A bucket to be stored.
pub struct PutBucket {
    /// Version that was begun with transfer `store`.
    pub version: Version,
    /// Its name: `A-Z a-z 0-9 . _ -`, at most 128.
    pub name: String,
    /// What the bytes must hash to.
    pub sha256: Option<[u8; 32]>,
    /// Length, where the caller says it.
    pub length: Option<u64>,
    /// The bytes; an error means that the caller went away.
    pub body: ByteStream,
}

/// Bytes of a bucket.
pub struct BucketBody {
    /// What is sent of it.
    pub range: Range<u64>,
    /// Length of the whole bucket.
    pub total: u64,
    /// The bytes of `range`.
    pub body: ByteStream,
}

/// The stretch of bytes that an HTTP `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// No header: everything.
    Whole,
    /// From an offset to another one, inclusive, or to the end.
    From(u64, Option<u64>),
    /// The last so many bytes.
    Last(u64),
}

impl ByteRange {
    /// The stretch within `total` bytes; refused when it lies outside.
    pub fn resolve(self, total: u64) -> Result<Range<u64>, Fault> {
        let range = match self {
            Self::Whole => return Ok(0..total),
            Self::From(first, last) => {
                first..last.map_or(total, |last| last.saturating_add(1).min(total))
            }
            Self::Last(count) => total.saturating_sub(count)..total,
        };
        if range.is_empty() {
            let message = format!("the range lies outside the bucket, which has {total} bytes");
            return Err(Fault::new(FaultKind::User, "RangeNotSatisfiable", message));
        }
        Ok(range)
    }
}
