//! What is to be done for groups and trajectories.

use std::time::Duration;

use super::event::LogState;
use crate::buffer::SettledGroup;
use crate::fault::Fault;
use crate::ids::{GroupId, Task, TrajectoryId};
use crate::version::{RequestId, Version};

/// An output of [`super::Trajectories::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Write the group's record to disk before anything that follows.
    RecordGroup {
        /// Which group.
        group: GroupId,
        /// Numbers of its trajectories below this may be given away from now on.
        numbers: u32,
    },
    /// Remove the group's record from disk; its trajectories' are dropped each.
    DropGroup(GroupId),
    /// End a generation request, whose turn is abandoned.
    AbortRequest {
        /// Whose.
        trajectory: TrajectoryId,
        /// Which.
        request: RequestId,
    },
    /// Remove the trajectory's sandbox, if there is one, and cancel its actions. Comes
    /// once for each trajectory.
    CloseSandbox(TrajectoryId),
    /// Score it: answer by [`super::Event::Scored`].
    Score {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its task.
        task: Task,
        /// Its reward where that is known.
        reward: Option<f64>,
        /// Whether teachers are asked about its tokens.
        taught: bool,
    },
    /// Its score is not wanted any more.
    CancelReward(TrajectoryId),
    /// Write its record to disk: answer by [`super::Event::Kept`].
    Keep(Keep),
    /// Forget its token log and remove its record from disk, if there is one. Comes once
    /// for each trajectory that does not go to the buffer.
    Drop(TrajectoryId),
    /// The group goes to the buffer with exactly the trajectories that it needed, all on
    /// disk. Their token logs may leave memory.
    Settle(SettledGroup),
    /// Tell those who listen.
    Announce(Announcement),
}

/// What a trajectory's record holds beside its token log.
#[derive(Debug, Clone, PartialEq)]
pub struct Keep {
    /// Which trajectory.
    pub trajectory: TrajectoryId,
    /// Its group.
    pub group: GroupId,
    /// Its reward.
    pub reward: f64,
    /// Current version when it was opened.
    pub opened_at: Version,
    /// Its tokens.
    pub log: LogState,
    /// From its opening until it was scored.
    pub took: Duration,
}

/// News of a group.
#[derive(Debug, Clone, PartialEq)]
pub enum Announcement {
    /// A trajectory is to be run, in the place of one that ended. Those that a group
    /// starts with are the answer to its opening.
    Start {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its group.
        group: GroupId,
    },
    /// A trajectory is aborted: its driver should stop.
    Abort {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its group.
        group: GroupId,
        /// Why.
        fault: Fault,
    },
    /// A group has what it needs.
    Settled {
        /// Which group.
        group: GroupId,
        /// Its trajectories.
        kept: Vec<TrajectoryId>,
    },
    /// A group is aborted whole.
    GroupAborted {
        /// Which group.
        group: GroupId,
        /// Why.
        fault: Fault,
    },
}
