//! What happens to a trajectory between its beginning and its end.

use super::command::{Command, Keep};
use super::end::Cause;
use super::event::{LogState, Turn};
use super::member::State;
use super::{Key, Trajectories, refusal};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, TrajectoryId};
use crate::time::Time;
use crate::version::{RequestId, Version};

impl Trajectories {
    pub(super) fn turn_began(
        &mut self,
        id: &TrajectoryId,
        request: RequestId,
        now: Time,
    ) -> Result<(), Fault> {
        let most = self.config.max_requests;
        let member = self.running(id)?;
        if !member.requests.contains(&request) && member.requests.len() >= most {
            return Err(refusal::too_many_requests(member, most));
        }
        member.requests.insert(request);
        member.last_sign = now;
        Ok(())
    }

    pub(super) fn generated(&mut self, id: &TrajectoryId, version: Version) {
        if let Ok(member) = self.running(id) {
            member.noted = Some(member.noted.map_or(version, |noted| noted.min(version)));
        }
    }

    pub(super) fn turn_ended(
        &mut self,
        id: &TrajectoryId,
        request: RequestId,
        turn: Turn,
        now: Time,
    ) {
        let Ok(member) = self.running(id) else { return };
        if !member.requests.remove(&request) {
            return;
        }
        member.last_sign = now;
        match turn {
            Turn::Lost => {}
            Turn::Unrecorded { prompt_tokens, generated_tokens } => {
                member.log.turns = member.log.turns.saturating_add(1);
                member.log.prompt_tokens += prompt_tokens;
                member.log.generated_tokens += generated_tokens;
                if let Some(version) = member.noted {
                    member.log.note(version);
                }
            }
            Turn::Recorded(log) => member.log = log,
        }
        if member.requests.is_empty() {
            member.noted = None;
        }
        self.abort_if_stale(id, now);
    }

    pub(super) fn tokens_given(
        &mut self,
        id: &TrajectoryId,
        log: LogState,
        now: Time,
    ) -> Result<(), Fault> {
        let member = self.running(id)?;
        member.log = log;
        member.last_sign = now;
        self.abort_if_stale(id, now);
        Ok(())
    }

    pub(super) fn step(&mut self, id: &TrajectoryId, now: Time) -> Result<(), Fault> {
        let key = self.locate(id)?;
        let Some(member) = self.member(&key) else { return Ok(()) };
        if member.state == State::Aborted {
            return Err(refusal::aborted(id, member.fault()));
        }
        member.steps = member.steps.saturating_add(1);
        member.last_sign = now;
        Ok(())
    }

    pub(super) fn complete(
        &mut self,
        id: &TrajectoryId,
        reward: Option<f64>,
        taught: bool,
        now: Time,
    ) -> Result<(), Fault> {
        let key = self.locate(id)?;
        let group = &self.groups[&key.0];
        let (recorded, task) = (group.open.recorded, group.task().clone());
        let Some(member) = self.member(&key) else { return Ok(()) };
        match member.state {
            State::Aborted => return Err(refusal::aborted(id, member.fault())),
            State::Scoring | State::Scored | State::Settled => return Ok(()),
            State::Running => {}
        }
        if recorded && member.log.generated_tokens == 0 {
            return Err(refusal::nothing_generated(member));
        }
        if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
            return Err(refusal::not_finite(FaultKind::User, id, reward));
        }
        self.abort_requests(&key);
        if self.abort_if_stale(id, now) {
            return Ok(());
        }
        self.stop_looking(&key);
        if let (Some(reward), false) = (reward, taught) {
            self.keep(&key, reward, now);
            return Ok(());
        }
        self.turn_to(&key, State::Scoring);
        if let Some(member) = self.member(&key) {
            member.reward_call = true;
        }
        self.out.push(Command::Score { trajectory: id.clone(), task, reward, taught });
        Ok(())
    }

    pub(super) fn scored(&mut self, id: &TrajectoryId, result: Result<f64, Fault>, now: Time) {
        let Ok(key) = self.locate(id) else { return };
        let Some(member) = self.member(&key).filter(|member| member.reward_call) else { return };
        member.reward_call = false;
        match result {
            Ok(reward) if reward.is_finite() => self.keep(&key, reward, now),
            Ok(reward) => {
                let fault = refusal::not_finite(FaultKind::Action, id, reward);
                self.lose_member(&key, &fault, Cause::Failed, now);
            }
            Err(fault) => self.lose_member(&key, &fault, Cause::Failed, now),
        }
    }

    pub(super) fn kept(&mut self, id: &TrajectoryId, result: Result<(), Fault>, now: Time) {
        let Ok(key) = self.locate(id) else { return };
        let Some(member) = self.member(&key) else { return };
        if member.state != State::Scored || member.kept {
            return;
        }
        if let Err(fault) = result {
            self.lose_member(&key, &fault, Cause::Failed, now);
            return;
        }
        member.kept = true;
        let group = &self.groups[&key.0];
        if group.kept() >= group.needed() as usize {
            self.settle(&key.0, now);
        }
    }

    /// It has its reward: nothing but its record is needed any more.
    fn keep(&mut self, key: &Key, reward: f64, now: Time) {
        self.turn_to(key, State::Scored);
        self.close_sandbox(key);
        let Some(member) = self.member(key) else { return };
        let took = now.since(member.opened);
        member.reward = Some(reward);
        member.ended = Some(now);
        member.took = Some(took);
        let keep = Keep {
            trajectory: member.id.clone(),
            group: member.group.clone(),
            reward,
            opened_at: member.opened_at,
            log: member.log,
            took,
        };
        self.out.push(Command::Keep(keep));
    }

    pub(super) fn version_changed(&mut self, version: Version, now: Time) {
        if version <= self.version {
            return;
        }
        self.version = version;
        let open = self.groups.values().filter(|group| group.is_training());
        let open: Vec<_> = open.map(|group| group.id().clone()).collect();
        for group in open {
            for _ in 0..self.abort_stale(&group, now) {
                self.replace(&group, now);
            }
        }
    }

    /// Aborts what is too old in a group; returns how many.
    pub(super) fn abort_stale(&mut self, id: &GroupId, now: Time) -> usize {
        let Some(group) = self.groups.get(id).filter(|group| group.is_training()) else {
            return 0;
        };
        let stale = group.members.iter().filter(|(_, member)| self.is_stale(group, member));
        let stale: Vec<_> = stale.map(|(number, _)| (id.clone(), *number)).collect();
        for key in &stale {
            let fault = self.stale_fault(key);
            self.abort(key, fault, Cause::Stale, now);
        }
        stale.len()
    }

    /// A turn may bring tokens that are older than the trajectory seemed, and one that ends
    /// without tokens leaves it with the version of its opening.
    fn abort_if_stale(&mut self, id: &TrajectoryId, now: Time) -> bool {
        let Ok(key) = self.locate(id) else { return false };
        let group = &self.groups[&key.0];
        let stale = |member| group.is_training() && self.is_stale(group, member);
        let stale = group.members.get(&key.1).is_some_and(stale);
        if stale {
            let fault = self.stale_fault(&key);
            self.lose_member(&key, &fault, Cause::Stale, now);
        }
        stale
    }
}
