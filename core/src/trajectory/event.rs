//! What happens to groups and trajectories.

use std::time::Duration;

use crate::fault::Fault;
use crate::ids::{GroupId, Task, TrajectoryId};
use crate::version::{RequestId, Version};

/// An input of [`super::Trajectories::on_event`]. What comes late for a trajectory that
/// has ended changes nothing; it is refused only where the caller would go on with it.
#[derive(Debug, Clone)]
pub enum Event {
    /// A caller opens a group. One that is open with the same settings is left as it is.
    OpenGroup(OpenGroup),
    /// A caller aborts a group whole.
    AbortGroup {
        /// Which group.
        group: GroupId,
        /// Why.
        fault: Fault,
    },
    /// A generation request of the trajectory is accepted.
    TurnBegan {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its request.
        request: RequestId,
    },
    /// The trajectory has tokens that `version` generated. Once a turn and version is
    /// enough.
    Generated {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// The version.
        version: Version,
    },
    /// A request of the trajectory has ended.
    TurnEnded {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its request; one that is not in flight any more changes nothing.
        request: RequestId,
        /// What it has brought.
        turn: Turn,
    },
    /// A turn that was generated elsewhere was added to the token log.
    TokensGiven {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// The log after it.
        log: LogState,
    },
    /// The trajectory's driver reports a step of its environment.
    Step(TrajectoryId),
    /// The trajectory's driver has ended it.
    Complete {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its reward; `None`: a reward service scores it.
        reward: Option<f64>,
        /// Teachers are asked about its tokens before it counts as scored.
        taught: bool,
    },
    /// A reward service has scored it, or given up.
    Scored {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its reward.
        result: Result<f64, Fault>,
    },
    /// The trajectory's record is on disk, or could not be written.
    Kept {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// The fault of the disk.
        result: Result<(), Fault>,
    },
    /// The trajectory is to be aborted: by its driver, or because something that it needs
    /// has failed. It is replaced if the fault is one of infrastructure.
    AbortTrajectory {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Why.
        fault: Fault,
    },
    /// The policy has a new version; an older one than the current changes nothing.
    VersionChanged(Version),
    /// Groups that were open when the process ended before; comes first, and after the
    /// current version.
    Recovered(Vec<RecoveredGroup>),
    /// Time has passed: see [`super::Trajectories::next_deadline`].
    Tick,
}

/// Opens a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenGroup {
    /// Idempotency key, at most [`super::MAX_GROUP_ID`] bytes. It names the group's
    /// trajectories: do not use it again while anything of an earlier group of this name
    /// is left, in the buffer or with a driver.
    pub group: GroupId,
    /// What it is about.
    pub task: Task,
    /// Trajectories that it settles with.
    pub needed: u32,
    /// Whether it trains.
    pub purpose: Purpose,
    /// Its token logs are kept: a trajectory that generated nothing cannot be completed.
    pub recorded: bool,
}

/// What a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It goes to the trainer.
    Training,
    /// It measures one version, and never goes to the trainer.
    Evaluation {
        /// The version that it measures.
        pinned: Version,
    },
}

/// What a request has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing that was kept: it failed or was withdrawn.
    Lost,
    /// An answer of which no token log is kept.
    Unrecorded {
        /// Tokens of its prompt.
        prompt_tokens: u64,
        /// Tokens of its answer.
        generated_tokens: u64,
    },
    /// An answer that is in the token log.
    Recorded(LogState),
}

/// Where the token log of a trajectory stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogState {
    /// Turns in it.
    pub turns: u32,
    /// Tokens that were not generated.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Version of the first generated token.
    pub start: Option<Version>,
    /// Oldest version of a generated token.
    pub oldest: Option<Version>,
}

/// An open group as it was on disk.
#[derive(Debug, Clone)]
pub struct RecoveredGroup {
    /// How it was opened.
    pub open: OpenGroup,
    /// Numbers of its trajectories below this may have been given away: that of the last
    /// [`super::Command::RecordGroup`].
    pub numbers: u32,
    /// Its trajectories whose records are on disk.
    pub kept: Vec<KeptTrajectory>,
}

/// A trajectory as it was on disk.
#[derive(Debug, Clone)]
pub struct KeptTrajectory {
    /// Its id.
    pub trajectory: TrajectoryId,
    /// Its reward.
    pub reward: f64,
    /// Current version when it was opened.
    pub opened_at: Version,
    /// Its tokens.
    pub log: LogState,
    /// From its opening until it was scored.
    pub took: Duration,
}
