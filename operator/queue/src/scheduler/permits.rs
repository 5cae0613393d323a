//! Permits of quotas that callers hold themselves.

use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::ids::{JobId, PermitId, QuotaName};
use rollwright_core::queue::{AcquirePermit, Event};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::input::Reply;
use super::{Scheduler, seconds};
use crate::auth::Caller;
use crate::convert;
use crate::fault::user;

/// When a permit returns by itself, unless its caller says otherwise.
const TTL: Duration = Duration::from_mins(10);

/// A permit, waiting or held.
pub(super) struct Permit {
    job: JobId,
    granted: Option<pb::AcquireResponse>,
    waiters: Vec<Reply<pb::AcquireResponse>>,
}

impl Scheduler {
    pub(super) fn acquire(
        &mut self,
        caller: &Caller,
        request: &pb::AcquireRequest,
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
            Some(permit) => match permit.granted {
                // A caller that has gone does not want the answer.
                Some(granted) => drop(reply.send(Ok(granted))),
                None => permit.waiters.push(reply),
            },
            None => {
                self.permits.insert(id, Permit { job, granted: None, waiters: vec![reply] });
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
            ttl: convert::duration("ttl", request.ttl.as_ref())?.unwrap_or(TTL),
        };
        Ok((caller.job(&request.job)?, acquire))
    }

    pub(super) fn release(
        &mut self,
        caller: &Caller,
        request: &pb::ReleaseRequest,
        reply: Reply<()>,
    ) {
        let parsed = PermitId::new(&request.permit_id).map_err(convert::bad_id).and_then(|id| {
            Ok((id, convert::duration("retry_after", request.retry_after.as_ref())?))
        });
        let answer = parsed.map(|(permit, retry_after)| {
            if self.permits.get(&permit).is_some_and(|held| caller.may_use(&held.job)) {
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
        for waiter in permit.waiters.drain(..) {
            // Its caller sends a release when it has gone.
            let _gone = waiter.send(Ok(response));
        }
    }

    pub(super) fn permit_ended(&mut self, id: &PermitId, fault: Option<&Fault>) {
        let Some(permit) = self.permits.remove(id) else { return };
        let returned = || user("PermitReturned", format!("permit `{id}` was returned"));
        for waiter in permit.waiters {
            // A caller that has gone does not want the answer.
            let _gone = waiter.send(Err(fault.cloned().unwrap_or_else(returned)));
        }
    }
}
