//! What the gateway is told of its workers, and says of them and the job.
//!
//! What it said is believed for a while: its figures change all the time, they go into the
//! status, and a status that is written brings the next pass.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use rollwright_core::router::Role;
use rollwright_crds::RolloutJob;
use rollwright_crds::engine::EngineType;

use super::fetch::Fetched;
use super::fleet::Stage;
use super::observe::{Heard, Seen};
use super::{LATER, SOON, engine, gateway};
use crate::audience;
use crate::context::Context;
use crate::gateway_client::{GatewayClient, GatewayError, JobState, WishedWorker, WorkerState};

/// So much sooner an answer is old than the next pass is due: each of those is to ask.
const EARLY: Duration = Duration::from_millis(500);

/// What gateways said last, by the uid of their job: an entry of a job that nobody looks at any
/// more is forgotten.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<HashMap<String, Answer>>);

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    address: String,
    told: Vec<WishedWorker>,
    workers: Vec<WorkerState>,
    job: JobState,
    at: Instant,
}

impl Answer {
    /// Workers come up, or are to end what they have: that is news soon.
    fn is_settled(&self) -> bool {
        let serves = |of: &WorkerState| super::observe::serves(of);
        self.workers.iter().all(serves) && self.told.iter().all(|worker| !worker.drain)
    }

    fn is_old(&self, now: Instant) -> bool {
        let long = if self.is_settled() { LATER } else { SOON };
        now.saturating_duration_since(self.at) + EARLY >= long
    }
}

impl Answers {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the gateway at `address` said when it was told the same, not long ago.
    fn fresh(
        &self,
        uid: &str,
        address: &str,
        told: &[WishedWorker],
        now: Instant,
    ) -> Option<Answer> {
        let mut answers = self.open();
        answers.retain(|_, of| now.saturating_duration_since(of.at) < LATER * 8);
        let answer = answers.get(uid)?;
        let same = answer.address == address && answer.told == told;
        (same && !answer.is_old(now)).then(|| answer.clone())
    }
}

/// Tells the gateway which workers there are, and asks how they and the job are; or takes what
/// it said a short while ago.
pub(super) async fn ask(
    job: &RolloutJob,
    context: &Context,
    fetched: &Fetched,
    known: &[Seen],
) -> (Heard, Result<JobState, GatewayError>) {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let Some(address) = &fetched.gateway else {
        let fault = "no pod of it runs".to_owned();
        let address = gateway::endpoint(&namespace, &name);
        return (Heard::default(), Err(GatewayError::Unreachable { address, fault }));
    };
    let uid = job.uid().unwrap_or_default();
    let told: Vec<WishedWorker> = known.iter().filter_map(|seen| wished(job, seen)).collect();
    let answers = &context.jobs.answers;
    let now = Instant::now();
    if let Some(Answer { workers, job, .. }) = answers.fresh(&uid, address, &told, now) {
        return (heard(workers), Ok(job));
    }
    answers.open().remove(&uid);
    let token = match context.tokens.get(&audience::of_gateway(&namespace, &name)).await {
        Ok(token) => token,
        Err(error) => return (Heard::default(), Err(error.into())),
    };
    let client = GatewayClient { address: address.clone(), token };
    let workers = match client.set_workers(&told).await {
        Ok(workers) => workers,
        Err(error) => return (Heard::default(), Err(error)),
    };
    let state = client.status().await;
    if let Ok(job) = &state {
        let (address, workers, job) = (address.clone(), workers.clone(), job.clone());
        answers.open().insert(uid, Answer { address, told, workers, job, at: now });
    }
    (heard(workers), state)
}

fn heard(workers: Vec<WorkerState>) -> Heard {
    let workers = workers.into_iter().map(|state| (state.name.clone(), state)).collect();
    Heard { workers: Some(workers) }
}

/// A worker as the gateway is told of it: once its engine has been up, until it is deleted.
fn wished(job: &RolloutJob, seen: &Seen) -> Option<WishedWorker> {
    let worker = &seen.worker;
    if !seen.started || matches!(worker.stage, Stage::Leaving | Stage::Ended) {
        return None;
    }
    let ip = seen.ip.as_deref()?;
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let prefill = worker.kind.role == Role::Prefill;
    let bootstraps = prefill && job.spec.engine.kind == EngineType::SGLang;
    Some(WishedWorker {
        name: worker.name.clone(),
        url: format!("http://{host}:{}", job.spec.engine.port),
        class: seen.class.clone(),
        role: worker.kind.role.as_str(),
        slots: job.spec.engine.slots,
        drain: worker.stage == Stage::Draining,
        bootstrap_port: bootstraps.then_some(engine::BOOTSTRAP_PORT),
    })
}

#[cfg(test)]
mod tests;
