//! The end of trajectories and groups: everything that they hold is released.

use super::command::{Announcement, Command};
use super::group::GroupState;
use super::member::State;
use super::{Key, Trajectories, member_of, refusal};
use crate::buffer::{Member, SettledGroup};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, TrajectoryId};
use crate::time::Time;

/// Why a trajectory is aborted; rules whether it is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its group has what it needs.
    Surplus,
    /// It is too old: replaced.
    Stale,
    /// Something that it needs has failed: replaced, as often as the group needs
    /// trajectories.
    Failed,
    /// Somebody wanted it: not replaced.
    Cancelled,
}

impl Trajectories {
    pub(super) fn abort_by_caller(
        &mut self,
        id: &TrajectoryId,
        fault: &Fault,
        now: Time,
    ) -> Result<(), Fault> {
        let key = self.locate(id)?;
        let infrastructure = fault.kind == FaultKind::Infrastructure;
        let cause = if infrastructure { Cause::Failed } else { Cause::Cancelled };
        self.lose_member(&key, fault, cause, now);
        Ok(())
    }

    pub(super) fn abort_group_by_caller(
        &mut self,
        id: &GroupId,
        fault: Fault,
        now: Time,
    ) -> Result<(), Fault> {
        let group = self.groups.get(id).ok_or_else(|| refusal::unknown_group(id))?;
        if group.state == GroupState::Open {
            self.abort_group(id, fault, now);
        }
        Ok(())
    }

    /// Aborts a trajectory, and sees to its group.
    pub(super) fn lose_member(&mut self, key: &Key, fault: &Fault, cause: Cause, now: Time) {
        if !self.abort(key, fault.clone(), cause, now) {
            return;
        }
        let Some(group) = self.groups.get_mut(&key.0) else { return };
        let again = match cause {
            Cause::Stale => true,
            Cause::Failed => group.replaced < group.open.needed,
            Cause::Surplus | Cause::Cancelled => false,
        };
        if again {
            group.replaced += u32::from(cause == Cause::Failed);
            self.replace(&key.0, now);
        } else if group.live() < group.needed() as usize {
            let message = format!(
                "{} of the {} trajectories that it needs are left; the last ended so: {fault}",
                group.live(),
                group.needed()
            );
            let fault = Fault::new(fault.kind, "TooFewTrajectories", message);
            self.abort_group(&key.0, fault, now);
        }
    }

    /// Aborts a trajectory that has not ended: everything that it holds is released.
    pub(super) fn abort(&mut self, key: &Key, fault: Fault, cause: Cause, now: Time) -> bool {
        if self.member(key).is_none_or(|member| member.state.is_ended()) {
            return false;
        }
        self.abort_requests(key);
        self.stop_looking(key);
        self.close_sandbox(key);
        self.turn_to(key, State::Aborted);
        let Some(member) = member_of(&mut self.groups, key) else { return false };
        if std::mem::take(&mut member.reward_call) {
            self.out.push(Command::CancelReward(member.id.clone()));
        }
        member.ended.get_or_insert(now);
        member.fault = Some(fault.clone());
        let (trajectory, group) = (member.id.clone(), member.group.clone());
        let tokens = member.log.generated_tokens;
        self.out.push(Command::Drop(trajectory.clone()));
        self.out.push(Command::Announce(Announcement::Abort { trajectory, group, fault }));
        if !self.groups[&key.0].is_evaluation() {
            self.stats.aborted(cause, tokens);
        }
        true
    }

    /// The group has what it needs: these go, the others are aborted.
    pub(super) fn settle(&mut self, id: &GroupId, now: Time) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.state = GroupState::Settled;
        let needed = group.needed() as usize;
        let (mut kept, mut surplus) = (Vec::new(), Vec::new());
        for (number, member) in &group.members {
            if member.is_kept() && kept.len() < needed {
                kept.push((id.clone(), *number));
            } else if !member.state.is_ended() {
                surplus.push((id.clone(), *number));
            }
        }
        for key in surplus {
            let fault = Fault::new(
                FaultKind::Cancelled,
                "Surplus",
                "its group has the trajectories that it needs",
            );
            self.abort(&key, fault, Cause::Surplus, now);
        }
        for key in &kept {
            self.turn_to(key, State::Settled);
        }
        self.give_away(id);
        self.group_ended(id, now);
    }

    fn give_away(&mut self, id: &GroupId) {
        let Some(group) = self.groups.get(id) else { return };
        let settled = || group.members.values().filter(|member| member.state == State::Settled);
        let kept = settled().map(|member| member.id.clone()).collect();
        if group.is_evaluation() {
            self.stats.evaluations_settled += 1;
            let drops = settled().map(|member| Command::Drop(member.id.clone()));
            self.out.extend(drops);
            self.out.push(Command::DropGroup(id.clone()));
        } else {
            self.stats.settled(settled());
            let trajectories = settled()
                .map(|member| Member {
                    trajectory: member.id.clone(),
                    start: member.start_version(),
                    oldest: member.oldest_version(),
                })
                .collect();
            let (group, task) = (id.clone(), group.task().clone());
            self.out.push(Command::Settle(SettledGroup { group, task, trajectories }));
        }
        let group = id.clone();
        self.out.push(Command::Announce(Announcement::Settled { group, kept }));
    }

    fn abort_group(&mut self, id: &GroupId, fault: Fault, now: Time) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.state = GroupState::Aborted;
        group.fault = Some(fault.clone());
        self.stats.groups_aborted += u64::from(!group.is_evaluation());
        let members: Vec<_> = group.members.keys().map(|number| (id.clone(), *number)).collect();
        for key in members {
            self.abort(&key, fault.clone(), Cause::Cancelled, now);
        }
        self.out.push(Command::DropGroup(id.clone()));
        let group = id.clone();
        self.out.push(Command::Announce(Announcement::GroupAborted { group, fault }));
        self.group_ended(id, now);
    }

    fn group_ended(&mut self, id: &GroupId, now: Time) {
        if let Some(group) = self.groups.get(id) {
            self.counts.group_ends(!group.is_evaluation());
            self.ended.push_back((now, id.clone()));
            self.forget_ended(now);
        }
    }

    /// Forgets ended groups that are old or too many.
    pub(super) fn forget_ended(&mut self, now: Time) {
        while let Some((at, _)) = self.ended.front() {
            if *at + self.config.ended_ttl > now && self.ended.len() <= self.config.max_ended {
                break;
            }
            let Some((_, group)) = self.ended.pop_front() else { break };
            self.groups.remove(&group);
        }
    }

    /// Gives up trajectories that show no sign of life.
    pub(super) fn look_after_idle(&mut self, now: Time) {
        while let Some((at, _)) = self.looks.first() {
            if *at > now {
                break;
            }
            let Some((_, id)) = self.looks.pop_first() else { break };
            let limit = self.config.idle_limit;
            let Ok(member) = self.running(&id) else { continue };
            let since = if member.requests.is_empty() { member.last_sign } else { now };
            if since + limit > now {
                member.look = Some(since + limit);
                self.looks.insert((since + limit, id));
                continue;
            }
            member.look = None;
            let message = format!(
                "no request, step or completion came for {} s; its driver is taken for dead",
                limit.as_secs_f64()
            );
            let fault = Fault::new(FaultKind::Infrastructure, "Abandoned", message);
            if let Ok(key) = self.locate(&id) {
                self.lose_member(&key, &fault, Cause::Failed, now);
            }
        }
    }

    /// Ends the requests that are in flight.
    pub(super) fn abort_requests(&mut self, key: &Key) {
        let Some(member) = member_of(&mut self.groups, key) else { return };
        let trajectory = &member.id;
        for request in std::mem::take(&mut member.requests) {
            self.out.push(Command::AbortRequest { trajectory: trajectory.clone(), request });
        }
        member.noted = None;
    }

    pub(super) fn close_sandbox(&mut self, key: &Key) {
        let Some(member) = member_of(&mut self.groups, key) else { return };
        if std::mem::take(&mut member.sandbox) {
            self.out.push(Command::CloseSandbox(member.id.clone()));
        }
    }

    pub(super) fn stop_looking(&mut self, key: &Key) {
        let Some(member) = self.member(key) else { return };
        if let Some(look) = member.look.take() {
            let entry = (look, member.id.clone());
            self.looks.remove(&entry);
        }
    }

    pub(super) fn stale_fault(&self, key: &Key) -> Fault {
        let member = self.groups.get(&key.0).and_then(|group| group.members.get(&key.1));
        let of = member.map_or(self.version, super::Trajectory::oldest_version);
        let message = format!(
            "it goes back to version {of}; the policy is at {}, and {} behind is the most",
            self.version, self.config.staleness.bound
        );
        Fault::new(FaultKind::Stale, "Stale", message)
    }
}
