//! What the weight updates are told.

use std::sync::Arc;
use std::time::Duration;

use crate::fault::Fault;
use crate::ids::{GroupId, WorkerId};
use crate::version::Version;

/// An input of [`super::Weights::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A worker exists, and gets no request before [`super::Command::Release`].
    Joined {
        /// Which worker.
        worker: WorkerId,
        /// The version that its engine says it holds; `None` if it cannot tell.
        version: Option<Version>,
    },
    /// A worker is gone.
    Left(WorkerId),
    /// A worker's engine was started anew: what it held is lost.
    Restarted {
        /// Which worker.
        worker: WorkerId,
        /// The version that its engine says it holds now.
        version: Option<Version>,
    },
    /// The trainer begins an update. Again for the same one: no change.
    Begin {
        /// Greater than the current version.
        version: Version,
        /// How the weights reach the workers.
        transfer: Transfer,
        /// The time until the commit; `None` is that of the configuration.
        deadline: Option<Duration>,
    },
    /// The weights are there: bring them into service. Again for the version that is
    /// being committed, or is current: no change.
    Commit {
        /// The version begun.
        version: Version,
        /// Where they are; needed for [`Transfer::Disk`].
        path: Option<Arc<str>>,
    },
    /// The trainer gives up an update that it has not committed.
    Abort {
        /// The version begun.
        version: Version,
    },
    /// A held worker has nothing in flight: [`crate::router::Command::Idle`].
    Idle(WorkerId),
    /// A call has been answered, or has failed or run out of time. Exactly one for each
    /// [`super::Command::Call`].
    Answered {
        /// Which worker.
        worker: WorkerId,
        /// The number of the call.
        call: u64,
        /// For [`super::Step::Verify`] the version that the engine says it holds, if it
        /// can tell; otherwise `None`.
        result: Result<Option<Version>, Fault>,
    },
    /// An evaluation needs this version until [`Self::Unpin`].
    Pin {
        /// The evaluation.
        group: GroupId,
        /// The current version, or one that is pinned already.
        version: Version,
    },
    /// The evaluation has ended. One that is not known is ignored.
    Unpin(GroupId),
    /// Time has passed: see [`super::Weights::next_deadline`].
    Tick,
}

/// How new weights reach the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transfer {
    /// The engines read them from a path.
    Disk,
    /// The workers pull them in buckets from a store.
    Store,
    /// The trainer moves them itself (NCCL) while the workers are suspended.
    External,
}

/// Where the weights of a version can be had from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The engines were started with them.
    Launch,
    /// A path that the engines can read.
    Disk(Arc<str>),
    /// The bucket store.
    Store,
    /// Nowhere: the trainer moved them itself.
    External,
}
