//! One group.

use std::collections::BTreeMap;

use super::event::{OpenGroup, Purpose};
use super::member::{State, Trajectory};
use crate::fault::Fault;
use crate::ids::{GroupId, Task, TrajectoryId};
use crate::version::Version;

/// The trajectories of one prompt.
#[derive(Debug, Clone)]
pub struct Group {
    pub(super) open: OpenGroup,
    pub(super) state: GroupState,
    pub(super) fault: Option<Fault>,
    pub(super) start: u32,
    pub(super) version: Version,
    pub(super) members: BTreeMap<u32, Trajectory>,
    /// Number of the next trajectory.
    pub(super) next: u32,
    /// Trajectories replaced after faults.
    pub(super) replaced: u32,
}

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// Trajectories run.
    Open,
    /// It has all that it needed.
    Settled,
    /// It was aborted.
    Aborted,
}

impl GroupState {
    /// The word used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Settled => "settled",
            Self::Aborted => "aborted",
        }
    }
}

impl Group {
    /// Its id.
    pub const fn id(&self) -> &GroupId {
        &self.open.group
    }

    /// What it is about.
    pub const fn task(&self) -> &Task {
        &self.open.task
    }

    /// How it was opened.
    pub const fn settings(&self) -> &OpenGroup {
        &self.open
    }

    /// Where it stands.
    pub const fn state(&self) -> GroupState {
        self.state
    }

    /// Why it was aborted.
    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Trajectories that it settles with.
    pub const fn needed(&self) -> u32 {
        self.open.needed
    }

    /// Trajectories that it started with.
    pub const fn start(&self) -> u32 {
        self.start
    }

    /// The pinned version of an evaluation, else the current one when it was opened.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Whether it measures and does not train.
    pub const fn is_evaluation(&self) -> bool {
        matches!(self.open.purpose, Purpose::Evaluation { .. })
    }

    /// Whether the tokens of its trajectories are recorded.
    pub const fn is_recorded(&self) -> bool {
        self.open.recorded
    }

    /// Its trajectories in the order of their start. Of those that were replaced, only
    /// the latest are known.
    pub fn trajectories(&self) -> impl Iterator<Item = &Trajectory> {
        self.members.values()
    }

    /// Whether it is open and goes to the trainer.
    pub(super) fn is_training(&self) -> bool {
        self.state == GroupState::Open && !self.is_evaluation()
    }

    /// Forgets the oldest aborted trajectory when they become many.
    pub(super) fn forget_oldest_aborted(&mut self) {
        let most = self.start.saturating_add(self.open.needed.saturating_mul(2)) as usize;
        while self.members.len() > most {
            let aborted = |(_, member): &(&u32, &Trajectory)| member.state == State::Aborted;
            let Some(number) = self.members.iter().find(aborted).map(|(number, _)| *number) else {
                break;
            };
            self.members.remove(&number);
        }
    }

    /// Those on disk.
    pub(super) fn kept(&self) -> usize {
        self.members.values().filter(|member| member.is_kept()).count()
    }

    /// Those that may still be among the needed.
    pub(super) fn live(&self) -> usize {
        self.members.values().filter(|member| member.state != State::Aborted).count()
    }

    pub(super) fn member_id(&self, number: u32) -> Option<TrajectoryId> {
        TrajectoryId::new(&format!("{}.{number}", self.open.group)).ok()
    }
}
