//! What the weight updates decide.

use std::time::Duration;

use super::event::Source;
use crate::fault::Fault;
use crate::ids::WorkerId;
use crate::version::Version;

/// An output of [`super::Weights::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// To the router: no new request, and tell when the worker is idle.
    Hold {
        /// Which worker.
        worker: WorkerId,
    },
    /// To the router: abort what the worker has in flight and send it again.
    TakeBack {
        /// Which worker.
        worker: WorkerId,
        /// From the beginning of the turn.
        restart: bool,
    },
    /// To the engine. Answered by one [`super::Event::Answered`].
    Call {
        /// Which worker.
        worker: WorkerId,
        /// The number of the call.
        call: u64,
        /// What to do.
        step: Step,
    },
    /// To the router: what the worker holds; `None` is unknown.
    SetVersion {
        /// Which worker.
        worker: WorkerId,
        /// The version.
        version: Option<Version>,
    },
    /// To the router: only requests that are pinned to the worker's version, or all.
    Reserve {
        /// Which worker.
        worker: WorkerId,
        /// Only pinned ones.
        reserved: bool,
    },
    /// To the router: requests again.
    Release {
        /// Which worker.
        worker: WorkerId,
    },
    /// The update is begun; with [`super::Transfer::External`] the workers are suspended
    /// and the trainer may move the weights.
    Begun {
        /// The version.
        version: Version,
        /// The workers that take part.
        workers: Vec<WorkerId>,
    },
    /// The version is current: every worker holds it, or is out of service, or kept for
    /// an evaluation.
    Committed(Committed),
    /// The update has ended without effect, and the current version goes on.
    Aborted {
        /// The version.
        version: Version,
        /// Why.
        fault: Fault,
    },
    /// No worker holds a pinned version any more; its pins have ended.
    PinLost {
        /// The version.
        version: Version,
    },
}

/// One call of an update to an engine, in this order. All but [`Self::Pull`] find the
/// worker idle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fetch the buckets of the version, while generation goes on.
    Pull {
        /// The version.
        version: Version,
    },
    /// Stop generation.
    Pause,
    /// Load the weights.
    Update {
        /// The version.
        version: Version,
        /// Where they are.
        source: Source,
    },
    /// Drop all KV cache: nothing of the old version survives.
    FlushCache,
    /// Say which version is held, if the engine can tell.
    Verify,
    /// Generate again.
    Resume,
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The version.
    pub version: Version,
    /// Workers that hold it and are in service.
    pub workers: u32,
    /// Workers that hold an older version for an evaluation.
    pub passed_over: u32,
    /// Workers that failed, and are out of service until they have been brought up.
    pub failed: Vec<(WorkerId, Fault)>,
    /// From the commit until the last bucket was pulled; zero without a store.
    pub pull: Duration,
    /// How long a worker got no requests because of the update, in the mean.
    pub exposed: Duration,
}
