//! Groups of trajectories and their life.
//!
//! A group starts redundant trajectories, replaces those that faults of infrastructure or
//! age take, and settles as soon as the trajectories that it needs are scored and on disk;
//! the others are aborted at once (RollArt 6.1, 6.3). What a trajectory holds - requests in
//! flight, sandbox, reward call, token log - is released exactly once, whatever ends it.

mod command;
mod config;
mod counts;
mod end;
mod event;
mod group;
mod life;
mod member;
mod open;
mod refusal;
mod stats;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use command::{Announcement, Command, Keep};
pub use config::Config;
pub use counts::Counts;
pub use event::{Event, KeptTrajectory, LogState, OpenGroup, Purpose, RecoveredGroup, Turn};
pub use group::{Group, GroupState};
pub use member::{State, Trajectory};
pub use stats::Stats;

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

/// A trajectory: its group and its number there.
type Key = (GroupId, u32);

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

    /// Handles one event. A refused one changes nothing. What the commands of one event
    /// write to disk belongs in one write.
    pub fn on_event(&mut self, event: Event, now: Time) -> Result<Vec<Command>, Fault> {
        match event {
            Event::OpenGroup(open) => self.open(open, now)?,
            Event::AbortGroup { group, fault } => self.abort_group_by_caller(&group, fault, now)?,
            Event::TurnBegan { trajectory, request } => {
                self.turn_began(&trajectory, request, now)?;
            }
            Event::Generated { trajectory, version } => self.generated(&trajectory, version),
            Event::TurnEnded { trajectory, request, turn } => {
                self.turn_ended(&trajectory, request, turn, now);
            }
            Event::TokensGiven { trajectory, log } => self.tokens_given(&trajectory, log, now)?,
            Event::Step(trajectory) => self.step(&trajectory, now)?,
            Event::Complete { trajectory, reward, taught } => {
                self.complete(&trajectory, reward, taught, now)?;
            }
            Event::Scored { trajectory, result } => self.scored(&trajectory, result, now),
            Event::Kept { trajectory, result } => self.kept(&trajectory, result, now),
            Event::AbortTrajectory { trajectory, fault } => {
                self.abort_by_caller(&trajectory, &fault, now)?;
            }
            Event::VersionChanged(version) => self.version_changed(version, now),
            Event::Recovered(found) => self.recover(found, now),
            Event::Tick => {
                self.look_after_idle(now);
                self.forget_ended(now);
            }
        }
        Ok(std::mem::take(&mut self.out))
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

    /// Where a trajectory is kept.
    fn locate(&self, id: &TrajectoryId) -> Result<Key, Fault> {
        let unknown = || refusal::unknown_trajectory(id);
        let (group, number) = split(id.as_str()).ok_or_else(unknown)?;
        let group = self.groups.get(group).ok_or_else(unknown)?;
        if group.members.contains_key(&number) {
            return Ok((group.id().clone(), number));
        }
        Err(if number < group.next { refusal::aborted(id, None) } else { unknown() })
    }

    fn member(&mut self, key: &Key) -> Option<&mut Trajectory> {
        member_of(&mut self.groups, key)
    }

    /// A trajectory that its driver runs.
    fn running(&mut self, id: &TrajectoryId) -> Result<&mut Trajectory, Fault> {
        let key = self.locate(id)?;
        let member = self.member(&key).ok_or_else(|| refusal::unknown_trajectory(id))?;
        match member.state {
            State::Running => Ok(member),
            State::Aborted => Err(refusal::aborted(id, member.fault())),
            State::Scoring | State::Scored | State::Settled => Err(refusal::completed(member)),
        }
    }

    fn turn_to(&mut self, (group, number): &Key, state: State) {
        let Some(group) = self.groups.get_mut(group) else { return };
        let training = !group.is_evaluation();
        if let Some(member) = group.members.get_mut(number) {
            self.counts.leaves(member.state, training);
            self.counts.enters(state, training);
            member.state = state;
        }
    }

    /// Whether a trajectory of a group that trains is too old.
    fn is_stale(&self, group: &Group, member: &Trajectory) -> bool {
        let unrecorded = || (!group.open.recorded).then_some(member.opened_at);
        let oldest = member.oldest_token().or_else(unrecorded);
        let start = member.start_version();
        !member.state.is_ended() && self.config.staleness.is_stale(start, oldest, self.version)
    }
}

fn member_of<'a>(
    groups: &'a mut BTreeMap<GroupId, Group>,
    (group, number): &Key,
) -> Option<&'a mut Trajectory> {
    groups.get_mut(group)?.members.get_mut(number)
}

/// Group and number of a trajectory's id.
fn split(trajectory: &str) -> Option<(&str, u32)> {
    let (group, number) = trajectory.rsplit_once('.')?;
    number.parse().ok().map(|number| (group, number))
}

#[cfg(test)]
mod tests;
