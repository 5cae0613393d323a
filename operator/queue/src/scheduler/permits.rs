//! Permits of quotas that callers hold themselves.

use std::collections::HashSet;
use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::ids::{JobId, PermitId, QuotaName};
use rollwright_core::queue::{AcquirePermit, Event};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::input::Reply;
use super::trajectories::may_end;
use super::{Scheduler, seconds};
use crate::convert;
use crate::fault::user;
use rollwright_auth::Caller;

/// When a permit returns by itself, unless its caller says otherwise.
const TTL: Duration = Duration::from_mins(10);
/// The longest time to live that a caller may ask for.
const MAX_TTL: Duration = Duration::from_hours(1);
/// The longest time for which one caller can keep everybody away from an API.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(10);

/// A permit, waiting or held.
pub(super) struct Permit {
    job: JobId,
    granted: Option<pb::AcquireResponse>,
    waiters: Vec<(u64, Reply<pb::AcquireResponse>)>,
    /// Calls that were told that they have it.
    holders: HashSet<u64>,
}

impl Scheduler {
    pub(super) fn acquire(
        &mut self,
        caller: &Caller,
        request: &pb::AcquireRequest,
        waiter: u64,
        reply: Reply<pb::AcquireResponse>,
    ) {
        let (job, acquire) = match self.parse_acquire(caller, request) {
            Ok(parsed) => parsed,
            // A caller that has gone does not want the answer.
            Err(fault) => return drop(reply.send(Err(fault))),
        };
        let id = acquire.permit.clone();
        match self.permits.get_mut(&id) {
            Some(permit) if permit.job != job => {
                let message = format!("permit id `{id}` is in use: choose a new id");
                // A caller that has gone does not want the answer.
                drop(reply.send(Err(user("PermitIdReused", message))));
            }
            Some(permit) => {
                if let Some(granted) = permit.granted {
                    // One that has gone holds nothing.
                    if reply.send(Ok(granted)).is_ok() {
                        permit.holders.insert(waiter);
                    }
                } else {
                    permit.waiters.retain(|(_, waiting)| !waiting.is_closed());
                    permit.waiters.push((waiter, reply));
                }
            }
            None => {
                let waiters = vec![(waiter, reply)];
                let holders = HashSet::new();
                self.permits.insert(id, Permit { job, granted: None, waiters, holders });
                self.events.push(Event::Acquire(acquire));
            }
        }
    }

    fn parse_acquire(
        &self,
        caller: &Caller,
        request: &pb::AcquireRequest,
    ) -> Result<(JobId, AcquirePermit), Fault> {
        let deadline = convert::duration("deadline", request.deadline.as_ref())?;
        let acquire = AcquirePermit {
            permit: PermitId::new(&request.permit_id).map_err(convert::bad_id)?,
            quota: QuotaName::new(&request.quota).map_err(convert::bad_id)?,
            amount: request.amount.max(1),
            deadline: deadline.map(|after| self.now() + after),
            ttl: convert::duration_to("ttl", request.ttl.as_ref(), MAX_TTL)?.unwrap_or(TTL),
        };
        Ok((caller.job(&request.job)?, acquire))
    }

    pub(super) fn release(
        &mut self,
        caller: &Caller,
        request: &pb::ReleaseRequest,
        reply: Reply<()>,
    ) {
        // It goes back whatever the rest of the request says: 0 is a refusal without a time,
        // and too long is as long as may be.
        let retry_after = request.retry_after.and_then(|after| Duration::try_from(after).ok());
        let retry_after = retry_after.map(|after| after.min(MAX_RETRY_AFTER));
        let permit = PermitId::new(&request.permit_id).map_err(convert::bad_id);
        let answer = permit.map(|permit| {
            if self
                .permits
                .get(&permit)
                .is_some_and(|held| may_end(caller, &request.job, &held.job))
            {
                self.events.push(Event::Release { permit, retry_after });
            }
        });
        // A caller that has gone does not want the answer.
        let _gone = reply.send(answer);
    }

    pub(super) fn permit_granted(&mut self, id: &PermitId, submitted: Time) {
        let queue_s = seconds(self.now().since(submitted));
        let Some(permit) = self.permits.get_mut(id) else { return };
        let response = pb::AcquireResponse { queue_s };
        permit.granted = Some(response);
        for (waiter, reply) in permit.waiters.drain(..) {
            if reply.send(Ok(response)).is_ok() {
                permit.holders.insert(waiter);
            }
        }
        self.return_unheld(id);
    }

    /// A call has gone without its answer. The permit goes back only when nobody
    /// else waits for it or holds it.
    pub(super) fn give_up(&mut self, permit_id: &str, waiter: u64) {
        let Ok(id) = PermitId::new(permit_id) else { return };
        let Some(permit) = self.permits.get_mut(&id) else { return };
        permit.waiters.retain(|(other, _)| *other != waiter);
        permit.holders.remove(&waiter);
        self.return_unheld(&id);
    }

    fn return_unheld(&mut self, id: &PermitId) {
        let Some(permit) = self.permits.get(id) else { return };
        if permit.holders.is_empty() && permit.waiters.is_empty() {
            self.events.push(Event::Release { permit: id.clone(), retry_after: None });
        }
    }

    pub(super) fn permit_ended(&mut self, id: &PermitId, fault: Option<&Fault>) {
        let Some(permit) = self.permits.remove(id) else { return };
        let returned = || user("PermitReturned", format!("permit `{id}` was returned"));
        for (_, waiter) in permit.waiters {
            // A caller that has gone does not want the answer.
            let _gone = waiter.send(Err(fault.cloned().unwrap_or_else(returned)));
        }
    }
}
