//! The lines of the quotas: permits that callers hold, and actions that need quota.

use std::collections::BTreeMap;
use std::time::Duration;

use super::command::Command;
use super::event::AcquirePermit;
use super::{Queue, Seq, Timer};
use crate::fault::{Fault, FaultKind};
use crate::ids::{PermitId, QuotaName};
use crate::quota::{Quota, QuotaLimit};
use crate::time::Time;

/// When a caller that was turned away should come back.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A quota and who waits for it, oldest first.
#[derive(Debug)]
pub(super) struct QuotaLine {
    pub(super) quota: Quota,
    pub(super) claims: BTreeMap<Seq, Claim>,
}

/// Who waits, and for how much.
#[derive(Debug)]
pub(super) enum Claim {
    Action(u32),
    Permit(PermitId, u32),
}

/// A permit, waiting or held.
#[derive(Debug)]
pub(super) struct Permit {
    seq: Seq,
    quota: QuotaName,
    amount: u32,
    submitted: Time,
    deadline: Option<Time>,
    ttl: Duration,
    /// Set while it is held.
    expires: Option<Time>,
}

impl QuotaLine {
    pub(super) fn new(limit: QuotaLimit) -> Self {
        Self { quota: Quota::new(limit), claims: BTreeMap::new() }
    }
}

impl Queue {
    /// Refuses a quota that does not exist, or an amount that it can never give.
    pub(super) fn check_quota(&self, name: &QuotaName, amount: u32) -> Result<(), Fault> {
        let Some(line) = self.quotas.get(name) else {
            let known: Vec<&str> = self.quotas.keys().map(QuotaName::as_str).collect();
            let message = format!("quota `{name}` does not exist; known: [{}]", known.join(", "));
            return Err(Fault::new(FaultKind::User, "UnknownQuota", message));
        };
        let most = line.quota.limit().most();
        if amount == 0 || amount > most {
            let message =
                format!("{amount} of quota `{name}` can never be had: ask for 1 to {most}");
            return Err(Fault::new(FaultKind::User, "QuotaAmount", message));
        }
        Ok(())
    }

    /// Refuses when too much waits already.
    pub(super) fn check_room(&self) -> Result<(), Fault> {
        let most = self.config.max_waiting;
        if self.waiting < most {
            return Ok(());
        }
        let message =
            format!("{most} actions wait already: send fewer at once, or try again later");
        let fault = Fault::new(FaultKind::Infrastructure, "QueueFull", message);
        Err(Fault { retry_after: Some(RETRY_AFTER), ..fault })
    }

    pub(super) fn acquire(&mut self, acquire: AcquirePermit) {
        if self.permits.contains_key(&acquire.permit) {
            return;
        }
        let checked =
            self.check_quota(&acquire.quota, acquire.amount).and_then(|()| self.check_room());
        if let Err(fault) = checked {
            self.emit(Command::PermitEnded { permit: acquire.permit, fault: Some(fault) });
            return;
        }
        let seq = self.take_seq();
        self.waiting += 1;
        if let Some(at) = acquire.deadline {
            self.timers.insert((at, Timer::PermitWait(acquire.permit.clone())));
        }
        if let Some(line) = self.quotas.get_mut(&acquire.quota) {
            line.claims.insert(seq, Claim::Permit(acquire.permit.clone(), acquire.amount));
        }
        self.dirty.quotas.insert(acquire.quota.clone());
        self.permits.insert(
            acquire.permit,
            Permit {
                seq,
                quota: acquire.quota,
                amount: acquire.amount,
                submitted: self.now,
                deadline: acquire.deadline,
                ttl: acquire.ttl,
                expires: None,
            },
        );
    }

    pub(super) fn release_permit(&mut self, id: &PermitId, retry_after: Option<Duration>) {
        if let Some(permit) = self.permits.get(id)
            && let Some(expires) = permit.expires
            && let Some(line) = self.quotas.get_mut(&permit.quota)
        {
            let granted = Time::ZERO + expires.since(Time::ZERO + permit.ttl);
            match retry_after {
                None => line.quota.answered(granted),
                Some(said) => {
                    let said = Some(said).filter(|said| !said.is_zero());
                    line.quota.refused(granted, said, self.now);
                }
            }
        }
        self.end_permit(id, None);
    }

    pub(super) fn permit_deadline_passed(&mut self, id: &PermitId) {
        let Some(permit) = self.permits.get(id).filter(|permit| permit.expires.is_none()) else {
            return;
        };
        let waited = self.now.since(permit.submitted).as_secs_f64();
        let message =
            format!("quota `{}` had no room within the deadline ({waited:.1} s)", permit.quota);
        self.end_permit(id, Some(Fault::new(FaultKind::Timeout, "QuotaDeadline", message)));
    }

    pub(super) fn permit_ttl_passed(&mut self, id: &PermitId) {
        let Some(permit) = self.permits.get(id).filter(|permit| permit.expires.is_some()) else {
            return;
        };
        let message = format!(
            "the permit was not returned within its time to live ({:.0} s) and returned by itself",
            permit.ttl.as_secs_f64()
        );
        self.end_permit(id, Some(Fault::new(FaultKind::Timeout, "PermitExpired", message)));
    }

    fn end_permit(&mut self, id: &PermitId, fault: Option<Fault>) {
        let Some(permit) = self.permits.remove(id) else { return };
        if let Some(at) = permit.deadline {
            self.timers.remove(&(at, Timer::PermitWait(id.clone())));
        }
        if let Some(line) = self.quotas.get_mut(&permit.quota) {
            if let Some(at) = permit.expires {
                self.timers.remove(&(at, Timer::PermitTtl(id.clone())));
                line.quota.release(permit.amount);
            } else {
                line.claims.remove(&permit.seq);
                self.waiting -= 1;
            }
        }
        self.dirty.quotas.insert(permit.quota);
        self.emit(Command::PermitEnded { permit: id.clone(), fault });
    }

    /// Serves a quota's line, first come first served, as far as there is room.
    pub(super) fn serve_quota(&mut self, name: &QuotaName) {
        let now = self.now;
        while let Some(line) = self.quotas.get_mut(name) {
            let Some((seq, claim)) = line.claims.first_key_value() else { return };
            let (Claim::Action(amount) | Claim::Permit(_, amount)) = claim;
            let (seq, amount) = (*seq, *amount);
            if !line.quota.try_take(amount, now) {
                if let Some(at) = line.quota.next_room(now) {
                    self.timers.insert((at, Timer::QuotaRoom(name.clone())));
                }
                return;
            }
            match line.claims.remove(&seq) {
                Some(Claim::Permit(id, _)) => self.grant_permit(&id),
                Some(Claim::Action(_)) => {
                    if let Some(action) = self.actions.get_mut(&seq) {
                        action.holds.insert(name.clone(), amount);
                    }
                    self.enter_line(seq);
                }
                None => {}
            }
        }
    }

    fn grant_permit(&mut self, id: &PermitId) {
        let Some(permit) = self.permits.get_mut(id) else { return };
        let expires = self.now + permit.ttl;
        permit.expires = Some(expires);
        let submitted = permit.submitted;
        if let Some(at) = permit.deadline {
            self.timers.remove(&(at, Timer::PermitWait(id.clone())));
        }
        self.timers.insert((expires, Timer::PermitTtl(id.clone())));
        self.waiting -= 1;
        self.emit(Command::PermitGranted { permit: id.clone(), submitted });
    }
}
