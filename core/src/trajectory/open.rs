//! The beginning of groups and trajectories, also after a restart.

use std::collections::BTreeMap;

use super::command::{Announcement, Command};
use super::event::{KeptTrajectory, OpenGroup, Purpose, RecoveredGroup};
use super::group::{Group, GroupState};
use super::member::{State, Trajectory};
use super::{MAX_GROUP_ID, Trajectories, refusal, split};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, TrajectoryId};
use crate::time::Time;

impl Trajectories {
    pub(super) fn open(&mut self, open: OpenGroup, now: Time) -> Result<(), Fault> {
        if let Some(group) = self.groups.get(&open.group) {
            let same = group.state == GroupState::Open && group.open == open;
            return if same { Ok(()) } else { Err(refusal::group_exists(group)) };
        }
        if open.group.as_str().len() > MAX_GROUP_ID {
            return Err(refusal::long_id(&open.group));
        }
        if !(1..=self.config.max_group).contains(&open.needed) {
            return Err(refusal::group_size(open.needed, self.config.max_group));
        }
        let (live, start) = (self.counts.trajectories(), self.start_of(&open));
        if live.saturating_add(start as usize) > self.config.max_trajectories {
            return Err(refusal::too_many(live, start, self.config.max_trajectories));
        }
        let group = open.group.clone();
        self.add_group(open);
        self.out.push(Command::RecordGroup { group: group.clone(), numbers: start });
        for _ in 0..start {
            self.start(&group, now);
        }
        Ok(())
    }

    /// Takes in what was open before a restart: what was kept stays, what ran is lost and
    /// replaced.
    pub(super) fn recover(&mut self, found: Vec<RecoveredGroup>, now: Time) {
        for RecoveredGroup { open, numbers, kept } in found {
            let id = open.group.clone();
            if self.groups.contains_key(&id) {
                continue;
            }
            self.add_group(open);
            for trajectory in kept {
                self.restore(&id, trajectory, now);
            }
            self.lose(&id, numbers, now);
            self.abort_stale(&id, now);
            let Some(group) = self.groups.get(&id) else { continue };
            if group.kept() >= group.needed() as usize {
                self.settle(&id, now);
                continue;
            }
            for _ in group.live()..group.start as usize {
                self.replace(&id, now);
            }
        }
    }

    /// A trajectory to run in the place of one that was lost.
    pub(super) fn replace(&mut self, group: &GroupId, now: Time) {
        let Some(numbers) = self.groups.get(group).map(|group| group.next + 1) else { return };
        self.out.push(Command::RecordGroup { group: group.clone(), numbers });
        if let Some(trajectory) = self.start(group, now) {
            let group = group.clone();
            self.out.push(Command::Announce(Announcement::Start { trajectory, group }));
        }
    }

    fn start_of(&self, open: &OpenGroup) -> u32 {
        match open.purpose {
            Purpose::Training => open.needed.saturating_add(self.config.redundant),
            Purpose::Evaluation { .. } => open.needed,
        }
    }

    fn add_group(&mut self, open: OpenGroup) {
        let (training, version) = match open.purpose {
            Purpose::Training => (true, self.version),
            Purpose::Evaluation { pinned } => (false, pinned),
        };
        self.counts.group_opens(training);
        self.stats.groups_opened += u64::from(training);
        let group = Group {
            start: self.start_of(&open),
            state: GroupState::Open,
            fault: None,
            version,
            members: BTreeMap::new(),
            next: 0,
            replaced: 0,
            open,
        };
        self.groups.insert(group.open.group.clone(), group);
    }

    fn start(&mut self, id: &GroupId, now: Time) -> Option<TrajectoryId> {
        let group = self.groups.get_mut(id)?;
        let number = group.next;
        group.next += 1;
        let trajectory = group.member_id(number)?;
        let version = match group.open.purpose {
            Purpose::Training => self.version,
            Purpose::Evaluation { pinned } => pinned,
        };
        let mut member = Trajectory::new(trajectory.clone(), id.clone(), version, now);
        let look = now + self.config.idle_limit;
        member.look = Some(look);
        self.counts.enters(State::Running, !group.is_evaluation());
        group.members.insert(number, member);
        group.forget_oldest_aborted();
        self.looks.insert((look, trajectory.clone()));
        Some(trajectory)
    }

    fn restore(&mut self, id: &GroupId, found: KeptTrajectory, now: Time) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let KeptTrajectory { trajectory, reward, opened_at, log, took } = found;
        let Some((_, number)) = split(trajectory.as_str()).filter(|(of, _)| *of == id.as_str())
        else {
            return;
        };
        group.next = group.next.max(number + 1);
        let mut member = Trajectory::new(trajectory, id.clone(), opened_at, now);
        member.state = State::Scored;
        member.kept = true;
        member.reward = Some(reward);
        member.log = log;
        member.took = Some(took);
        if group.members.insert(number, member).is_none() {
            self.counts.enters(State::Scored, !group.is_evaluation());
        }
    }

    /// What was given away and is not on disk is lost. Its driver and its sandbox may
    /// have outlived us.
    fn lose(&mut self, id: &GroupId, numbers: u32, now: Time) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.next = group.next.max(numbers);
        for number in 0..group.next {
            let Some(trajectory) = group.member_id(number) else { continue };
            self.out.push(Command::CloseSandbox(trajectory.clone()));
            if group.members.contains_key(&number) {
                continue;
            }
            let fault = Fault::new(
                FaultKind::Infrastructure,
                "GatewayRestarted",
                "the gateway was restarted while it ran",
            );
            let mut member = Trajectory::new(trajectory.clone(), id.clone(), group.version, now);
            member.state = State::Aborted;
            member.sandbox = false;
            member.ended = Some(now);
            member.fault = Some(fault.clone());
            group.members.insert(number, member);
            let group = id.clone();
            self.out.push(Command::Announce(Announcement::Abort { trajectory, group, fault }));
        }
        for member in group.members.values_mut() {
            member.sandbox = false;
        }
        group.forget_oldest_aborted();
    }
}
