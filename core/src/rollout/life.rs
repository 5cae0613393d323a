//! The life of trajectories, and what it asks of the other parts.

use super::{Command, Recovered, Rollout, turn};
use crate::fault::{Fault, FaultKind};
use crate::ids::TrajectoryId;
use crate::time::Time;
use crate::trajectory::{self, Announcement};
use crate::version::Version;
use crate::weights::Weights;
use crate::{buffer, reward, router};

impl Rollout {
    /// Gives the trajectories an event, and carries their commands on.
    pub(super) fn live(&mut self, event: trajectory::Event, now: Time) -> Result<(), Fault> {
        for command in self.trajectories.on_event(event, now)? {
            match command {
                trajectory::Command::RecordGroup { group, numbers } => {
                    self.out.push(Command::RecordGroup { group, numbers });
                }
                trajectory::Command::DropGroup(group) => self.out.push(Command::DropGroup(group)),
                trajectory::Command::AbortRequest { trajectory, request } => {
                    let fault = self.why_aborted(&trajectory);
                    self.lose_turn(request, now);
                    self.out.push(Command::Refuse { request, fault });
                    self.route(router::Event::Withdrawn(request), now)?;
                }
                trajectory::Command::CloseSandbox(trajectory) => {
                    self.route(router::Event::Forget(trajectory.clone()), now)?;
                    self.out.push(Command::CloseSandbox(trajectory));
                }
                trajectory::Command::Score { trajectory, task, reward, taught } => {
                    let trajectory_id = trajectory.clone();
                    let asked =
                        reward::Event::Score { trajectory: trajectory_id, task, reward, taught };
                    if let Err(fault) = self.score(asked, now) {
                        let result = Err(fault);
                        self.live(trajectory::Event::Scored { trajectory, result }, now)?;
                    }
                }
                trajectory::Command::CancelReward(trajectory) => {
                    self.score(reward::Event::Cancel(trajectory), now)?;
                }
                trajectory::Command::Keep(keep) => {
                    let log = self.logs.remove(&keep.trajectory);
                    self.out.push(Command::Keep { keep, log });
                }
                trajectory::Command::Drop(trajectory) => {
                    self.logs.remove(&trajectory);
                    self.out.push(Command::Drop(trajectory));
                }
                trajectory::Command::Settle(group) => {
                    self.out.push(Command::Settle(group.clone()));
                    self.store(buffer::Event::Settled(group), now)?;
                }
                trajectory::Command::Announce(news) => {
                    if let Announcement::Settled { group, .. }
                    | Announcement::GroupAborted { group, .. } = &news
                    {
                        self.unpin(group, now);
                    }
                    self.out.push(Command::Announce(news));
                }
            }
        }
        Ok(())
    }

    fn why_aborted(&self, trajectory: &TrajectoryId) -> Fault {
        let known = self.trajectories.trajectory(trajectory.as_str());
        known.and_then(|known| known.fault().cloned()).unwrap_or_else(|| {
            let message = format!("trajectory `{trajectory}` was aborted");
            Fault::new(FaultKind::Cancelled, "Aborted", message)
        })
    }

    /// The trajectory's driver has ended it, with its reward or for a service to score.
    pub(super) fn complete(
        &mut self,
        trajectory: TrajectoryId,
        reward: Option<f64>,
        now: Time,
    ) -> Result<(), Fault> {
        let known = self.trajectories.trajectory(trajectory.as_str());
        let group = known.and_then(|known| self.trajectories.group(known.group().as_str()));
        if let (None, Some(group)) = (reward, group)
            && !self.rewards.scores(group.task())
        {
            let message = format!(
                "no reward service of this job scores task `{}`: complete it with a reward",
                group.task()
            );
            return Err(Fault::new(FaultKind::User, "RewardNeeded", message));
        }
        let taught = group.is_some_and(|group| self.taught(group));
        // One that teachers are asked about gets its penalty when they have answered.
        let penalty = if taught { 0.0 } else { self.penalty(&trajectory) };
        let reward = reward.map(|reward| reward + penalty);
        self.live(trajectory::Event::Complete { trajectory, reward, taught }, now)
    }

    /// Whether teachers are asked about the tokens of the group: those that are trained on.
    fn taught(&self, group: &trajectory::Group) -> bool {
        group.is_recorded() && !group.is_evaluation() && self.rewards.teaches(group.task())
    }

    /// What the length of a trajectory adds to its reward, from 0 to -1.
    pub(super) fn penalty(&self, trajectory: &TrajectoryId) -> f64 {
        self.logs.get(trajectory).map_or(0.0, |log| log.penalty())
    }

    pub(super) fn tokens_given(
        &mut self,
        trajectory: TrajectoryId,
        prompt: &[u32],
        ids: &[u32],
        logprobs: &[f32],
        version: Version,
        now: Time,
    ) -> Result<(), Fault> {
        let current = self.weights.current();
        if version > current {
            let message = format!(
                "version {version} cannot have made these tokens: {current} is the newest that is committed"
            );
            return Err(Fault::new(FaultKind::User, "VersionAhead", message));
        }
        // The life cycle refuses what it does not know before the log changes.
        self.live(trajectory::Event::Step(trajectory.clone()), now)?;
        let known = self.trajectories.trajectory(trajectory.as_str());
        if known.is_some_and(|known| known.state() != trajectory::State::Running) {
            let message = format!("trajectory `{trajectory}` is completed: it takes no more turns");
            return Err(Fault::new(FaultKind::User, "Completed", message));
        }
        let cap = self.config.cap;
        let log = self.logs.entry(trajectory.clone()).or_insert_with(|| turn::begin(cap));
        log.begin_turn(prompt).map_err(|fault| Fault::from(&fault))?;
        if let Err(fault) = log.append(ids, logprobs, version) {
            let abandoned = log.abandon_turn();
            debug_assert!(abandoned.is_ok(), "{abandoned:?}");
            return Err(Fault::from(&fault));
        }
        log.end_turn(crate::tokens::Finish::Other).map_err(|fault| Fault::from(&fault))?;
        let log = turn::state(log);
        self.live(trajectory::Event::TokensGiven { trajectory, log }, now)
    }

    pub(super) fn recover(&mut self, found: Recovered, now: Time) -> Result<(), Fault> {
        let Recovered { version, source, groups, buffer } = found;
        self.weights = Weights::new(self.config.weights.clone(), version, source);
        self.live(trajectory::Event::VersionChanged(version), now)?;
        let buffer = buffer::Recovered { version, ..buffer };
        self.store(buffer::Event::Recovered(buffer), now)?;
        self.live(trajectory::Event::Recovered(groups), now)?;
        let evaluations: Vec<_> = self
            .trajectories
            .groups()
            .filter(|group| group.state() == trajectory::GroupState::Open)
            .filter_map(|group| match group.settings().purpose {
                trajectory::Purpose::Evaluation { pinned } => Some((group.id().clone(), pinned)),
                trajectory::Purpose::Training => None,
            })
            .collect();
        for (group, pinned) in evaluations {
            if let Err(fault) = self.pin(&group, pinned, now) {
                self.live(trajectory::Event::AbortGroup { group, fault }, now)?;
            }
        }
        Ok(())
    }

    /// The policy has a new version: what is too old goes.
    pub(super) fn version_changed(&mut self, version: Version, now: Time) -> Result<(), Fault> {
        self.live(trajectory::Event::VersionChanged(version), now)?;
        self.store(buffer::Event::VersionChanged(version), now)
    }
}
