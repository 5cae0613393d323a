//! What the buffer is told.

use std::time::Duration;

use crate::ids::{GroupId, Task, TrajectoryId};
use crate::version::{BatchId, Version};

/// An input of [`super::Buffer::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A group has all the trajectories that it needs, and they are on disk. A group that
    /// the buffer has already is left as it is.
    Settled(SettledGroup),
    /// The policy has a new version; an older one than the current changes nothing.
    VersionChanged(Version),
    /// Somebody waits for a batch. He gets the batch that is not acknowledged yet, if
    /// there is one, whatever its size.
    Take {
        /// Who waits; a name of the caller's choosing. A second wish replaces the first.
        taker: Taker,
        /// Groups of the batch; `None`: the job's.
        groups: Option<usize>,
    },
    /// Somebody does not wait any more.
    Leave(Taker),
    /// The trainer has the batch safe. A repetition does no harm.
    Ack(BatchId),
    /// What was on disk when the process began; comes first.
    Recovered(Recovered),
}

/// One who waits for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taker(pub u64);

/// A group whose trajectories are scored and on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledGroup {
    /// The group.
    pub group: GroupId,
    /// Its task.
    pub task: Task,
    /// Exactly those that it needed.
    pub trajectories: Vec<Member>,
}

/// One trajectory of a settled group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The trajectory.
    pub trajectory: TrajectoryId,
    /// Version of its first generated token.
    pub start: Version,
    /// Version of its oldest generated token.
    pub oldest: Version,
}

/// Groups that were given to the trainer together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Its number; batches are numbered from 1 in the order of their making.
    pub id: BatchId,
    /// Current version when it was made.
    pub version: Version,
    /// Its groups, the oldest first.
    pub groups: Vec<SettledGroup>,
    /// How long the trainer had waited for it.
    pub waited: Duration,
}

/// What was on disk.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The current version.
    pub version: Version,
    /// Settled groups that are in no batch, in the order in which they settled.
    pub groups: Vec<SettledGroup>,
    /// The batch that is not acknowledged.
    pub taken: Option<Batch>,
    /// The highest number of a batch that was ever made; 0: none was.
    pub last: BatchId,
}
