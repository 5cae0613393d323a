//! Groups of trajectories and their life.
//!
//! A group starts redundant trajectories, replaces those that faults of infrastructure or
//! age take, and settles as soon as the trajectories that it needs are scored and on disk;
//! the others are aborted at once (RollArt 6.1, 6.3). What a trajectory holds - requests in
//! flight, sandbox, reward call, token log - is released exactly once, whatever ends it.

mod command;
mod config;
mod event;
mod group;
mod member;
mod stats;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use command::{Announcement, Command, Keep};
pub use config::Config;
pub use event::{Event, KeptTrajectory, LogState, OpenGroup, Purpose, RecoveredGroup, Turn};
pub use group::{Group, GroupState};
pub use member::{State, Trajectory};
pub use stats::Stats;

use crate::buffer::Running;
use crate::fault::Fault;
use crate::ids::{GroupId, MAX_LEN, TrajectoryId};
use crate::time::Time;
use crate::version::Version;

/// Longest id of a group, in bytes: its trajectories are named `{group}.{number}`.
pub const MAX_GROUP_ID: usize = MAX_LEN - 11;

/// All groups of a job and their trajectories.
#[derive(Debug)]
pub struct Trajectories {
    config: Config,
    version: Version,
    groups: BTreeMap<GroupId, Group>,
    /// When the idleness of running trajectories is looked at.
    looks: BTreeSet<(Time, TrajectoryId)>,
    /// Ended groups, in the order of their end.
    ended: VecDeque<(Time, GroupId)>,
    counts: Counts,
    stats: Stats,
    out: Vec<Command>,
}

/// What is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open groups, evaluations too.
    pub groups: usize,
    /// Trajectories that run.
    pub running: usize,
    /// Trajectories that are being scored.
    pub scoring: usize,
    /// Trajectories that are scored and wait for their group.
    pub scored: usize,
    /// Of them all, what may come to the buffer.
    pub training: Running,
}

impl Trajectories {
    /// No group is open, and the policy has this version.
    pub fn new(config: Config, version: Version) -> Self {
        Self {
            config,
            version,
            groups: BTreeMap::new(),
            looks: BTreeSet::new(),
            ended: VecDeque::new(),
            counts: Counts::default(),
            stats: Stats::default(),
            out: Vec::new(),
        }
    }

    /// Handles one event. A refused one changes nothing.
    pub fn on_event(&mut self, _event: Event, _now: Time) -> Result<Vec<Command>, Fault> {
        Ok(Vec::new())
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_deadline(&self) -> Option<Time> {
        let look = self.looks.first().map(|(at, _)| *at);
        let forget = self.ended.front().map(|(at, _)| *at + self.config.ended_ttl);
        look.into_iter().chain(forget).min()
    }

    /// A group that is open, or ended not long ago.
    pub fn group(&self, group: &str) -> Option<&Group> {
        self.groups.get(group)
    }

    /// A trajectory of such a group.
    pub fn trajectory(&self, trajectory: &str) -> Option<&Trajectory> {
        let (group, number) = split(trajectory)?;
        self.groups.get(group)?.members.get(&number)
    }

    /// All groups that are known, by their ids.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// What is open now.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// What became of the trajectories so far.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The current version.
    pub const fn version(&self) -> Version {
        self.version
    }
}

/// Group and number of a trajectory's id.
fn split(trajectory: &str) -> Option<(&str, u32)> {
    let (group, number) = trajectory.rsplit_once('.')?;
    number.parse().ok().map(|number| (group, number))
}
