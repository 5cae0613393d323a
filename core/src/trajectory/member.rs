//! One trajectory.

use std::collections::BTreeSet;
use std::time::Duration;

use super::event::LogState;
use crate::fault::Fault;
use crate::ids::{GroupId, TrajectoryId};
use crate::time::Time;
use crate::version::{RequestId, Version};

/// One rollout of a group.
#[derive(Debug, Clone)]
pub struct Trajectory {
    pub(super) id: TrajectoryId,
    pub(super) group: GroupId,
    pub(super) state: State,
    /// Its record is on disk.
    pub(super) kept: bool,
    pub(super) fault: Option<Fault>,
    pub(super) reward: Option<f64>,
    pub(super) opened: Time,
    /// When it was scored, or aborted.
    pub(super) ended: Option<Time>,
    pub(super) last_sign: Time,
    /// When its idleness is looked at next.
    pub(super) look: Option<Time>,
    pub(super) requests: BTreeSet<RequestId>,
    pub(super) opened_at: Version,
    pub(super) log: LogState,
    /// Oldest version that generates in the turns in flight.
    pub(super) noted: Option<Version>,
    pub(super) steps: u32,
    /// From its opening until it was scored.
    pub(super) took: Option<Duration>,
    /// Its sandbox may be there.
    pub(super) sandbox: bool,
    /// A reward service is asked.
    pub(super) reward_call: bool,
}

/// Where a trajectory stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Its driver runs it.
    Running,
    /// A reward service scores it.
    Scoring,
    /// It has its reward, and waits for its group.
    Scored,
    /// It went with its group.
    Settled,
    /// It was aborted.
    Aborted,
}

impl State {
    /// The word used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Scoring => "scoring",
            Self::Scored => "scored",
            Self::Settled => "settled",
            Self::Aborted => "aborted",
        }
    }

    /// Nothing becomes of it any more.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Settled | Self::Aborted)
    }
}

impl Trajectory {
    pub(super) fn new(id: TrajectoryId, group: GroupId, version: Version, now: Time) -> Self {
        Self {
            id,
            group,
            state: State::Running,
            kept: false,
            fault: None,
            reward: None,
            opened: now,
            ended: None,
            last_sign: now,
            look: None,
            requests: BTreeSet::new(),
            opened_at: version,
            log: LogState::default(),
            noted: None,
            steps: 0,
            took: None,
            sandbox: true,
            reward_call: false,
        }
    }

    /// Its id.
    pub const fn id(&self) -> &TrajectoryId {
        &self.id
    }

    /// Its group.
    pub const fn group(&self) -> &GroupId {
        &self.group
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether its record is on disk and it counts for its group.
    pub const fn is_kept(&self) -> bool {
        self.kept && matches!(self.state, State::Scored | State::Settled)
    }

    /// Why it was aborted.
    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Its reward, from the state scored on.
    pub const fn reward(&self) -> Option<f64> {
        self.reward
    }

    /// Its tokens.
    pub const fn log(&self) -> &LogState {
        &self.log
    }

    /// Steps that its driver reported.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// When it was opened.
    pub const fn opened(&self) -> Time {
        self.opened
    }

    /// When it was scored or aborted.
    pub const fn ended(&self) -> Option<Time> {
        self.ended
    }

    /// From its opening until it was scored.
    pub const fn took(&self) -> Option<Duration> {
        self.took
    }

    /// Version of its first generated token; before, the current one at its opening.
    pub fn start_version(&self) -> Version {
        self.log.start.or(self.noted).unwrap_or(self.opened_at)
    }

    /// Oldest version of a generated token; before, the current one at its opening.
    pub fn oldest_version(&self) -> Version {
        self.oldest_token().unwrap_or(self.opened_at)
    }

    pub(super) fn oldest_token(&self) -> Option<Version> {
        self.log.oldest.into_iter().chain(self.noted).min()
    }

    /// Requests in flight.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.requests.iter().copied()
    }
}

impl LogState {
    /// `version` has generated tokens of it.
    pub(super) fn note(&mut self, version: Version) {
        self.start.get_or_insert(version);
        self.oldest = Some(self.oldest.map_or(version, |oldest| oldest.min(version)));
    }
}
