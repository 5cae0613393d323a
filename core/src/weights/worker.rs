//! One worker as the weight updates see it.

use super::command::Step;
use super::event::Source;
use crate::fault::Fault;
use crate::time::Time;
use crate::version::Version;

/// What is known of what a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has just been started, and nothing was done to it.
    Fresh,
    Used,
    /// The trainer may have written half of a version into it.
    Tainted,
}

/// Whether requests reach a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// The router sends it nothing more.
    Held,
    /// Nor has it anything in flight.
    Idle,
}

#[derive(Debug)]
pub(super) struct Worker {
    /// What it holds; unknown from the moment that an update is called.
    pub(super) version: Option<Version>,
    pub(super) trust: Trust,
    pub(super) gate: Gate,
    /// When it was taken out of service.
    pub(super) held_since: Option<Time>,
    /// It serves only an evaluation.
    pub(super) reserved: bool,
    /// Failures in a row.
    pub(super) strikes: u32,
    pub(super) phase: Phase,
    /// What it does after the call that is under way.
    pub(super) next: Option<Job>,
}

#[derive(Debug)]
pub(super) enum Phase {
    Serving,
    /// Out of service, and tried again then.
    Out {
        fault: Fault,
        retry: Option<Time>,
    },
    Working(Job, At),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    /// The version that it holds in the end.
    pub(super) target: Version,
    pub(super) plan: Plan,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// Load the weights.
    Update(Source),
    /// Stop, for the trainer to write the weights.
    Suspend,
    /// Go on with what the trainer has written.
    Adopt,
    /// Go on with what it held before it was stopped.
    Undo,
    /// Go on if the engine itself says that it holds the version.
    Check,
    /// Go on as it is.
    Admit,
    /// Go on, only for what is pinned to the version.
    Reserve,
}

/// How far a job is.
#[derive(Debug)]
pub(super) enum At {
    /// It serves until its turn comes; `after` is done.
    Ready { after: Option<Call> },
    /// It could not pull the buckets, and serves until others have.
    Barred(Fault),
    /// It waits for its requests to end, the latest until then.
    Draining { until: Option<Time>, then: Then },
    /// The engine works.
    Calling { number: u64, call: Call },
    /// The trainer may write into it.
    Suspended,
}

#[derive(Debug, Clone)]
pub(super) enum Then {
    /// The call after this one.
    Go(Option<Call>),
    Fail(Fault),
}

/// The calls, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Pull,
    Pause,
    Update,
    FlushCache,
    Verify,
    Resume,
}

impl Plan {
    fn calls(&self) -> &'static [Call] {
        use Call::{FlushCache, Pause, Pull, Resume, Update, Verify};
        match self {
            Self::Update(Source::Store) => &[Pull, Pause, Update, FlushCache, Verify, Resume],
            Self::Update(_) => &[Pause, Update, FlushCache, Verify, Resume],
            Self::Suspend => &[Pause],
            Self::Adopt => &[FlushCache, Verify, Resume],
            Self::Undo => &[Resume],
            Self::Check => &[Verify, Resume],
            Self::Admit | Self::Reserve => &[],
        }
    }

    pub(super) fn call_after(&self, done: Option<Call>) -> Option<Call> {
        self.calls().iter().copied().find(|call| done.is_none_or(|done| *call > done))
    }

    /// Whether weights that the engine cannot name are taken for the right ones.
    pub(super) fn trusts_silence(&self) -> bool {
        matches!(self, Self::Update(_) | Self::Adopt)
    }
}

impl Job {
    pub(super) fn step(&self, call: Call) -> Step {
        let version = self.target;
        match (call, &self.plan) {
            (Call::Pull, _) => Step::Pull { version },
            (Call::Pause, _) => Step::Pause,
            (Call::Update, Plan::Update(source)) => {
                Step::Update { version, source: source.clone() }
            }
            (Call::FlushCache, _) => Step::FlushCache,
            // Only an update has that call.
            (Call::Verify | Call::Update, _) => Step::Verify,
            (Call::Resume, _) => Step::Resume,
        }
    }
}

impl Worker {
    pub(super) fn new(version: Option<Version>, fault: Fault) -> Self {
        Self {
            version,
            trust: Trust::Fresh,
            gate: Gate::Idle,
            held_since: None,
            reserved: false,
            strikes: 0,
            phase: Phase::Out { fault, retry: None },
            next: None,
        }
    }

    pub(super) fn held(&self) -> bool {
        self.gate != Gate::Open
    }

    pub(super) fn serves(&self, version: Version) -> bool {
        !self.held() && self.version == Some(version)
    }

    pub(super) fn job(&self) -> Option<&Job> {
        if let Phase::Working(job, _) = &self.phase { Some(job) } else { None }
    }

    /// The engine works on something other than a pull, and cannot be interrupted.
    pub(super) fn busy(&self) -> bool {
        matches!(&self.phase, Phase::Working(_, At::Calling { call, .. }) if *call > Call::Pull)
    }

    pub(super) fn pulls(&self) -> bool {
        matches!(self.phase, Phase::Working(_, At::Calling { call: Call::Pull, .. }))
    }

    pub(super) fn ready(&self) -> bool {
        matches!(self.phase, Phase::Working(_, At::Ready { .. }))
    }

    pub(super) fn barred(&self) -> bool {
        matches!(self.phase, Phase::Working(_, At::Barred(_)))
    }

    pub(super) fn suspended(&self) -> bool {
        matches!(self.phase, Phase::Working(_, At::Suspended))
    }

    /// Keeps a version for an evaluation, or is about to.
    pub(super) fn keeps(&self, version: Version) -> bool {
        let about = self.job().is_some_and(|job| job.plan == Plan::Reserve);
        (self.reserved && matches!(self.phase, Phase::Serving) || about)
            && self.version == Some(version)
    }

    /// When time alone changes something.
    pub(super) fn due(&self) -> Option<Time> {
        match &self.phase {
            Phase::Working(_, At::Draining { until, .. }) => *until,
            Phase::Out { retry, .. } => *retry,
            Phase::Serving | Phase::Working(..) => None,
        }
    }
}
