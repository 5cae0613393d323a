//! The life of a call: looked up, waiting, running; its end is in [`super::ends`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::gpu::{EngineId, Event, ServiceIndex};
use rollwright_core::ids::{ActionId, JobId, NodeId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::ends::answer;
use super::handle::{Input, Reply};
use super::request::Asked;
use crate::fault::{full, infrastructure, user};
use crate::store::Ended;
use rollwright_auth::Caller;

/// How long a call that names no time may wait for its service.
const WAITS: Duration = Duration::from_hours(1);
/// Callers that may wait for one call.
pub(super) const WAITERS: usize = 64;

/// A call that is not answered yet.
pub(super) struct Call {
    pub(super) job: JobId,
    pub(super) pool: usize,
    pub(super) service: ServiceIndex,
    pub(super) submitted: Time,
    /// `None`: an earlier queue's, which was started.
    pub(super) asked: Option<Asked>,
    /// Of what was asked; empty: not known.
    pub(super) digest: Bytes,
    /// In the budget.
    pub(super) bytes: usize,
    pub(super) stage: Stage,
    pub(super) run: Option<Run>,
    /// What its agent is told once its start is on disk.
    pub(super) held: Option<pb::StartCall>,
    /// What its agent said of its end.
    pub(super) report: Option<pb::CallEnded>,
    /// An agent that waits until its end is durable.
    pub(super) keeper: Option<NodeId>,
    pub(super) waiters: Vec<Reply>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// Whether it has ended before is being looked up.
    Looking,
    /// It is given to the core, which may refuse it.
    Offered,
    /// The core has it.
    Live,
    /// Its record is on its way to the disk.
    Ended(Arc<Ended>),
}

/// Where a call runs, or ran.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) engine: EngineId,
    pub(super) node: NodeId,
    pub(super) degree: u32,
    pub(super) began: Time,
    pub(super) restored_for: Duration,
}

impl Call {
    /// One of which nothing is asked, and for which nobody waits.
    pub(super) fn new(
        job: JobId,
        pool: usize,
        service: ServiceIndex,
        submitted: Time,
        digest: Bytes,
    ) -> Self {
        Self {
            job,
            pool,
            service,
            submitted,
            asked: None,
            digest,
            bytes: 0,
            stage: Stage::Looking,
            run: None,
            held: None,
            report: None,
            keeper: None,
            waiters: Vec::new(),
        }
    }

    /// One more caller waits for its end, unless too many do.
    pub(super) fn wait(&mut self, reply: Reply) -> Result<(), Reply> {
        self.waiters.retain(|waiter| !waiter.is_closed());
        if self.waiters.len() >= WAITERS {
            return Err(reply);
        }
        self.waiters.push(reply);
        Ok(())
    }
}

impl Gpu {
    pub(super) fn call(&mut self, caller: &Caller, asked: Asked, reply: Reply) {
        match self.place(caller, &asked) {
            Err(fault) => self.refuse(vec![reply], &fault),
            Ok((job, at, service)) => self.attach(asked, reply, job, at, service),
        }
    }

    /// The job that pays, and the service's pool and place.
    fn place(&self, caller: &Caller, asked: &Asked) -> Result<(JobId, usize, ServiceIndex), Fault> {
        let (job, id) = asked.target(caller, self.parts.namespaced)?;
        let (at, service) = self.services.get(&id).copied().ok_or_else(|| {
            let prefix = self.parts.namespaced.then(|| id.split_once('.')).flatten();
            let visible = |name: &&String| {
                prefix.is_none_or(|(own, _)| name.split_once('.').is_some_and(|(ns, _)| ns == own))
            };
            let mut known: Vec<&str> =
                self.services.keys().filter(visible).map(String::as_str).collect();
            known.sort_unstable();
            let message = format!(
                "this queue has no reward service `{id}` on GPUs; it has: [{}]",
                known.join(", ")
            );
            user("RewardServiceNotFound", message)
        })?;
        Ok((job, at, service))
    }

    fn attach(
        &mut self,
        asked: Asked,
        reply: Reply,
        job: JobId,
        pool: usize,
        service: ServiceIndex,
    ) {
        let action = asked.action.clone();
        if let Some(call) = self.calls.get_mut(&action) {
            if call.job != job || (call.pool, call.service) != (pool, service) {
                return self.refuse(vec![reply], &id_reused(&action));
            }
            if !same(&call.digest, &asked) {
                return self.refuse(vec![reply], &content_differs(&asked));
            }
            if let Err(reply) = call.wait(reply) {
                let fault = full(format!("{WAITERS} callers wait for this call already"));
                self.refuse(vec![reply], &fault);
            }
            return;
        }
        let of = &self.pools[pool];
        // One job leaves half of the places to others.
        let own = of.jobs.get(&job).copied().unwrap_or(0);
        let all: usize = of.jobs.values().sum();
        let bytes = asked.bytes();
        let refused = if all >= of.max_calls || own >= of.max_calls.div_ceil(2) {
            let message = format!(
                "pool `{}` has {all} calls, {own} of them of job `{job}`: it takes {}, and half of that of one job",
                of.name, of.max_calls
            );
            Some(full(message))
        } else if self.parts.budget.used() + bytes > self.parts.max_buffered_bytes {
            let most = self.parts.max_buffered_bytes;
            Some(full(format!("{most} bytes are held for callers: send the call again later")))
        } else {
            None
        };
        if let Some(fault) = refused {
            return self.refuse(vec![reply], &fault);
        }
        let digest = asked.digest.clone();
        let call = Call {
            asked: Some(asked),
            bytes,
            waiters: vec![reply],
            ..Call::new(job, pool, service, self.now(), digest)
        };
        self.insert(action.clone(), call);
        let (store, inbox) = (Arc::clone(&self.parts.store), self.parts.inbox.clone());
        let now = self.now();
        tokio::task::spawn_blocking(move || {
            let result = store.result(action.as_str(), now);
            let result = result.map_err(|error| infrastructure("StoreFailed", error.to_string()));
            // After a shutdown nobody needs to know.
            let result = Box::new(result);
            drop(inbox.blocking_send(Input::Found { action, result }));
        });
    }

    pub(super) fn insert(&mut self, action: ActionId, call: Call) {
        self.parts.budget.add(call.bytes);
        *self.pools[call.pool].jobs.entry(call.job.clone()).or_default() += 1;
        self.calls.insert(action, call);
    }

    pub(super) fn remove(&mut self, action: &ActionId) -> Option<Call> {
        let call = self.calls.remove(action)?;
        self.parts.budget.sub(call.bytes);
        let jobs = &mut self.pools[call.pool].jobs;
        if let Some(count) = jobs.get_mut(&call.job) {
            *count -= 1;
            if *count == 0 {
                jobs.remove(&call.job);
            }
        }
        if let Some(within) = call.asked.as_ref().and_then(|asked| asked.queue_deadline) {
            self.late.remove(&(call.submitted + within, action.clone()));
        }
        Some(call)
    }

    /// A call that runs at an agent. One that is not on record was started by a queue whose
    /// store is gone: the agent's word stands for the record.
    pub(super) fn take_in(
        &mut self,
        action: ActionId,
        job: JobId,
        pool: usize,
        run: Run,
        of: ServiceIndex,
    ) {
        let known = self.calls.get_mut(&action);
        if known.as_ref().is_none_or(|call| call.run.is_none()) {
            self.pools[pool].tallies[of.0].running += 1;
        }
        if let Some(call) = known {
            call.run.get_or_insert(run);
            return;
        }
        let call = Call::new(job, pool, of, run.began, Bytes::new());
        let call = Call { stage: Stage::Live, run: Some(run), ..call };
        self.insert(action, call);
    }

    /// The store has the answer of an id, or not.
    pub(super) fn found(&mut self, action: &ActionId, result: Result<Option<Ended>, Fault>) {
        let Some(call) = self.calls.get(action) else { return };
        // An agent may have said meanwhile that it has it.
        if call.stage != Stage::Looking {
            return;
        }
        match result {
            Ok(None) => self.submit(action),
            Ok(Some(ended)) => {
                let service = self.pools[call.pool].label(call.service);
                let of_service = ended.call.as_ref().filter(|of| of.service == service);
                let mine = of_service.filter(|_| ended.job == call.job.as_str());
                let differs = match (mine, &call.asked) {
                    (None, _) => Some(id_reused(action)),
                    (Some(of), Some(asked)) if !same(&of.digest, asked) => {
                        Some(content_differs(asked))
                    }
                    _ => None,
                };
                let Some(call) = self.remove(action) else { return };
                match differs {
                    Some(fault) => self.refuse(call.waiters, &fault),
                    None => answer(call.waiters, &ended),
                }
            }
            Err(fault) => {
                let Some(call) = self.remove(action) else { return };
                self.refuse(call.waiters, &fault);
            }
        }
    }

    fn submit(&mut self, action: &ActionId) {
        let Some(call) = self.calls.get_mut(action) else { return };
        let pool = &self.pools[call.pool];
        let Some(asked) = &call.asked else { return };
        let Some(degree) = pool.core.choose(call.service, &asked.degrees) else {
            let service = &pool.services[call.service.0].core;
            let offered: Vec<String> = service.degrees.keys().map(ToString::to_string).collect();
            let message = format!(
                "reward service `{}` has no engine on that many GPUs: use one of {}",
                service.name,
                offered.join(", ")
            );
            let Some(call) = self.remove(action) else { return };
            return self.refuse(call.waiters, &user("DegreeNotOffered", message));
        };
        let limit = asked.timeout.unwrap_or(WAITS + pool.services[call.service.0].timeout);
        let deadline = call.submitted + limit;
        if let Some(within) = asked.queue_deadline {
            self.late.insert((call.submitted + within, action.clone()));
        }
        call.stage = Stage::Offered;
        let service = call.service;
        let event = Event::Submit { action: action.clone(), service, degree, deadline };
        self.events.push_back((call.pool, event));
        self.work();
        if let Some(call) = self.calls.get_mut(action)
            && call.stage == Stage::Offered
        {
            call.stage = Stage::Live;
        }
    }

    pub(super) fn late(&mut self, action: &ActionId) {
        if let Some(call) = self.calls.get(action) {
            self.events.push_back((call.pool, Event::Late(action.clone())));
        }
    }

    /// Answers false where the call is not known here.
    pub(super) fn cancel(&mut self, caller: &Caller, job: &str, action: &ActionId) -> bool {
        let Some(call) = self.calls.get(action) else { return false };
        if !caller.may_use(&call.job) || !(job.is_empty() || job == call.job.as_str()) {
            return false;
        }
        match call.stage {
            Stage::Ended(_) => false,
            Stage::Looking if call.run.is_none() => {
                let fault = Fault::new(FaultKind::Cancelled, "Cancelled", "the call was cancelled");
                if let Some(call) = self.remove(action) {
                    self.refuse(call.waiters, &fault);
                }
                true
            }
            _ if call.run.is_some() && self.pools[call.pool].core.runs_on(action).is_none() => {
                // Its node is away, and what it does there is ended when it is back.
                let message = "the call was cancelled while its node was away";
                self.ended(action, Err(Fault::new(FaultKind::Cancelled, "Cancelled", message)));
                true
            }
            Stage::Looking | Stage::Offered | Stage::Live => {
                self.events.push_back((call.pool, Event::Cancel(action.clone())));
                true
            }
        }
    }
}

fn id_reused(action: &ActionId) -> Fault {
    let message = format!("id `{action}` is another action's: choose a new one");
    user("ActionIdReused", message)
}

/// Whether a call that is known by its digest is the one that is asked for.
fn same(known: &Bytes, asked: &Asked) -> bool {
    known.is_empty() || *known == asked.digest
}

fn content_differs(asked: &Asked) -> Fault {
    let (action, service) = (&asked.action, &asked.request.service);
    let message = format!(
        "id `{action}` is that of an earlier call of `{service}` with another method, path, body or degrees: repeat that call unchanged, or choose a new id for this one"
    );
    user("ActionIdReused", message)
}
