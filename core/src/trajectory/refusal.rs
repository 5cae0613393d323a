//! Why an event of a caller is refused.

use std::time::Duration;

use super::MAX_GROUP_ID;
use super::group::{Group, GroupState};
use super::member::Trajectory;
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, TrajectoryId};

pub(super) fn unknown_trajectory(id: &TrajectoryId) -> Fault {
    let message =
        format!("there is no trajectory `{id}`; open a group, and use the ids that it answers");
    Fault::new(FaultKind::User, "UnknownTrajectory", message)
}

pub(super) fn unknown_group(id: &GroupId) -> Fault {
    let message = format!("there is no group `{id}`, or it ended long ago");
    Fault::new(FaultKind::User, "UnknownGroup", message)
}

/// The trajectory was aborted; the kind says whether for its age.
pub(super) fn aborted(id: &TrajectoryId, why: Option<&Fault>) -> Fault {
    let stale = why.is_some_and(|fault| fault.kind == FaultKind::Stale);
    let kind = if stale { FaultKind::Stale } else { FaultKind::Cancelled };
    let why = why.map_or_else(|| "it was replaced".to_owned(), Fault::to_string);
    Fault::new(kind, "Aborted", format!("trajectory `{id}` was aborted, stop running it: {why}"))
}

pub(super) fn completed(member: &Trajectory) -> Fault {
    let message = format!(
        "trajectory `{}` is {}: it was completed and takes no further turns",
        member.id(),
        member.state().as_str()
    );
    Fault::new(FaultKind::User, "Completed", message)
}

pub(super) fn too_many_requests(member: &Trajectory, most: usize) -> Fault {
    let message = format!(
        "trajectory `{}` has {most} requests in flight, which is the most; wait for one to end",
        member.id()
    );
    Fault::new(FaultKind::User, "TooManyRequests", message)
}

pub(super) fn nothing_generated(member: &Trajectory) -> Fault {
    let message = format!(
        "trajectory `{}` has generated no token, so there is nothing to train on; abort it, or \
         open its group without token logs",
        member.id()
    );
    Fault::new(FaultKind::User, "NothingGenerated", message)
}

pub(super) fn not_finite(kind: FaultKind, id: &TrajectoryId, reward: f64) -> Fault {
    let message = format!("the reward of trajectory `{id}` is {reward}; it must be finite");
    Fault::new(kind, "RewardNotFinite", message)
}

pub(super) fn group_size(needed: u32, most: u32) -> Fault {
    let message = format!("a group of {needed} trajectories was asked for; 1 to {most} can be");
    Fault::new(FaultKind::User, "GroupSize", message)
}

pub(super) fn long_id(group: &GroupId) -> Fault {
    let message = format!(
        "the id of the group has {} characters; it may have {MAX_GROUP_ID}",
        group.as_str().len()
    );
    Fault::new(FaultKind::User, "GroupIdTooLong", message)
}

pub(super) fn group_exists(group: &Group) -> Fault {
    let (id, needed, task) = (group.id(), group.needed(), group.task());
    let message = match group.state() {
        GroupState::Open => format!(
            "group `{id}` is open with other settings ({needed} trajectories, task `{task}`); \
             use another id"
        ),
        ended => format!("group `{id}` is {}; use another id", ended.as_str()),
    };
    Fault::new(FaultKind::User, "GroupExists", message)
}

pub(super) fn too_many(live: usize, start: u32, most: usize) -> Fault {
    let message = format!(
        "{live} trajectories run, {start} more would pass the {most} that may; try again when \
         some have ended"
    );
    let mut fault = Fault::new(FaultKind::Infrastructure, "TooManyTrajectories", message);
    fault.retry_after = Some(Duration::from_secs(1));
    fault
}
