//! What can be read of the weight updates.

use super::Weights;
use super::event::Source;
use super::update::Update;
use super::worker::{At, Phase, Worker};
use crate::fault::Fault;
use crate::ids::WorkerId;
use crate::time::Time;
use crate::version::Version;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// Serves.
    Serving,
    /// Serves only what is pinned to the older version that it holds.
    Reserved,
    /// Serves, and pulls the next version or waits for its turn.
    Pulling,
    /// Waits for its requests to end.
    Draining,
    /// Is being updated.
    Updating,
    /// Waits for the trainer to write the weights.
    Suspended,
    /// Has failed, or holds a wrong version that cannot be replaced.
    Out,
}

impl WorkerState {
    /// The word used in metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Reserved => "reserved",
            Self::Pulling => "pulling",
            Self::Draining => "draining",
            Self::Updating => "updating",
            Self::Suspended => "suspended",
            Self::Out => "out",
        }
    }
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView<'a> {
    /// Its name.
    pub id: &'a WorkerId,
    /// What it holds; `None` is unknown.
    pub version: Option<Version>,
    /// What it does.
    pub state: WorkerState,
    /// Why it is out.
    pub fault: Option<&'a Fault>,
}

impl Weights {
    /// The version that is served.
    pub fn current(&self) -> Version {
        self.current
    }

    /// Where the current version can be had from: to be kept over a restart.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The version that is begun and not ended, and until when it must be committed;
    /// `None` once it is being committed.
    pub fn begun(&self) -> Option<(Version, Option<Time>)> {
        self.update.as_ref().map(|update| (update.version, Update::due(update)))
    }

    /// The workers by name.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView<'_>> {
        self.workers.iter().map(|(id, worker)| WorkerView {
            id,
            version: worker.version,
            state: state_of(worker),
            fault: match &worker.phase {
                Phase::Out { fault, .. } => Some(fault),
                Phase::Serving | Phase::Working(..) => None,
            },
        })
    }

    /// Whether any evaluation pins this version.
    pub fn pinned(&self, version: Version) -> bool {
        self.pins.values().any(|pinned| *pinned == version)
    }
}

fn state_of(worker: &Worker) -> WorkerState {
    match &worker.phase {
        Phase::Serving if worker.reserved => WorkerState::Reserved,
        Phase::Serving => WorkerState::Serving,
        Phase::Out { .. } => WorkerState::Out,
        Phase::Working(_, at) => match at {
            At::Suspended => WorkerState::Suspended,
            At::Draining { .. } => WorkerState::Draining,
            _ if !worker.held() => WorkerState::Pulling,
            At::Ready { .. } | At::Barred(_) | At::Calling { .. } => WorkerState::Updating,
        },
    }
}
