//! `RolloutJob`: its generation workers and its gateway.
//!
//! Five steps: fetch what the job names and what there is; validate; plan and build (pure);
//! apply; status. What has to be known in the next pass stands on the API server: that a worker
//! is drained, on its pod. What is kept in memory ([`Remembered`]) spares work and waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource as _, ResourceExt as _};
use rollwright_crds::RolloutJob;

use self::converge::{Bounds, converge};
use self::decide::{Asked, Decision, Lags, decide};
use self::fetch::{Fetched, fetch};
use self::fleet::{Stage, Trust, Worker};
use self::observe::{Clock, Heard, Seen};
use self::plan::{Ground, Placement, Plan, wants};
use self::status::Outcome;
use self::validate::{Problem, Stops};
use self::worker::Template;
use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised};
use crate::index::job_of;
use crate::labels::{self, Component};
use crate::status::Over;
use crate::stores::Stores;
use crate::watch::{Change, What, same_meta};

mod apply;
mod ask;
pub mod converge;
mod decide;
pub mod engine;
mod fetch;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod fleet;
pub mod gateway;
pub(crate) mod lws;
pub mod observe;
pub mod plan;
mod refusals;
mod setbacks;
pub mod status;
mod tell;
pub mod validate;
pub mod worker;

use ask::Answers;
use refusals::Refusals;
use setbacks::Setbacks;

/// What is remembered of jobs between two passes, in memory alone: without it things are only
/// slower.
#[derive(Debug, Default)]
pub struct Remembered {
    /// Workers that fail, and where.
    setbacks: Setbacks,
    /// What gateways said last.
    answers: Answers,
    /// Workers that the API server refuses.
    refusals: Refusals,
}

/// Whether two versions of a job ask for the same: of its status nobody but we write.
pub(crate) fn asks_the_same(before: &RolloutJob, after: &RolloutJob) -> bool {
    before.spec == after.spec && same_meta(before, after)
}

/// Between two looks while workers come, go, or the gateway is silent.
const SOON: Duration = Duration::from_secs(5);
/// Between two looks at a job that runs: how old the figures of its status may be.
const LATER: Duration = Duration::from_secs(15);
/// After a look at a cache that lags.
const AGAIN: Duration = Duration::from_secs(1);

/// The controller of `RolloutJob`s.
#[derive(Debug)]
pub struct RolloutJobs;

/// Why a pass over a job failed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A request to the API server.
    #[error(transparent)]
    Call(#[from] CallError),
    /// One about workers: the status was written before it.
    #[error(transparent)]
    Workers(CallError),
    /// The gateway's manifests cannot be written.
    #[error("cannot write the gateway's manifests: {0}")]
    Manifests(#[from] serde_yaml::Error),
    /// A set of pods cannot be built.
    #[error("cannot build a LeaderWorkerSet: {0}")]
    Set(#[from] serde_json::Error),
    /// The API server has other workers than the cache shows.
    #[error("the cache of pods does not show the newest workers yet")]
    CacheLags,
}

impl Categorised for JobError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) | Self::Workers(error) => error.category(),
            Self::Manifests(_) => "Manifests",
            Self::Set(_) => "WorkerSet",
            Self::CacheLags => "CacheLags",
        }
    }
}

impl Controller for RolloutJobs {
    type Object = RolloutJob;
    type Error = JobError;

    const NAME: &'static str = "rolloutjob";
    /// The pods of a job come up one after the other, with several changes each.
    const GATHER: Duration = Duration::from_millis(500);

    fn store(stores: &Stores) -> &Store<RolloutJob> {
        &stores.jobs
    }

    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<RolloutJob>> {
        match change.what {
            What::Job(job) => vec![ObjectRef::from_obj(job)],
            What::Pool(pool) => {
                let name = pool.name_any();
                those(&stores.jobs, |job| {
                    validate::named_pools(&job.spec).iter().any(|of| of.as_str() == name)
                })
            }
            What::Queue(queue) => {
                let (namespace, name) = (queue.namespace(), queue.name_any());
                those(&stores.jobs, |job| {
                    let own = job.spec.action_queue.as_ref().is_some_and(|of| {
                        let of_namespace = of.namespace.as_ref().map(ToString::to_string);
                        of.name.as_str() == name
                            && of_namespace.or_else(|| job.namespace()) == namespace
                    });
                    own || (job.namespace() == namespace && !job.spec.reward_services.is_empty())
                })
            }
            What::Reward(reward) => {
                let (namespace, name) = (reward.namespace(), reward.name_any());
                those(&stores.jobs, |job| {
                    let named = job.spec.reward_services.iter();
                    job.namespace() == namespace
                        && named.into_iter().any(|of| of.name.as_str() == name)
                })
            }
            // A pod of others frees or takes GPUs of a node: the jobs that wait for those look
            // again by themselves.
            What::Pod(pod) => {
                let job = job_of(pod);
                job.map(|(namespace, job)| ObjectRef::new(&job).within(&namespace))
                    .into_iter()
                    .collect()
            }
            What::Owned(_, meta) => {
                let instance = meta.labels.as_ref().and_then(|all| all.get(labels::INSTANCE));
                let gateway = meta.labels.as_ref().and_then(|all| all.get(labels::COMPONENT))
                    == Some(&Component::Gateway.as_str().to_owned());
                let (Some(instance), Some(namespace), true) = (instance, &meta.namespace, gateway)
                else {
                    return Vec::new();
                };
                vec![ObjectRef::new(instance).within(namespace)]
            }
            What::Node(node) => those(&stores.jobs, |job| {
                let pools = validate::named_pools(&job.spec);
                let mut pools = pools.into_iter().filter_map(|name| stores.pool(name));
                pools.any(|pool| {
                    pool.spec.gpu.as_ref().is_some_and(|gpu| observe::selects(gpu, node))
                })
            }),
            What::PoolFigures(_) => Vec::new(),
            What::Everything => all(&stores.jobs),
        }
    }

    async fn reconcile(job: Arc<RolloutJob>, context: Arc<Context>) -> Result<Action, JobError> {
        match Box::pin(pass(&job, &context)).await {
            Err(JobError::CacheLags) => Ok(Action::requeue(AGAIN)),
            Err(JobError::Call(error)) => {
                let namespace = job.namespace().unwrap_or_default();
                let api = Api::namespaced(context.client.clone(), &namespace);
                context.tell_refused(tell::STATUS, &api, &*job, &error, Over::Anything).await;
                Err(error.into())
            }
            done => done,
        }
    }
}

/// One pass.
async fn pass(job: &RolloutJob, context: &Context) -> Result<Action, JobError> {
    let namespace = job.namespace().unwrap_or_default();
    let name = job.name_any();
    let Some(owner) = job.controller_owner_ref(&()) else { return Ok(Action::await_change()) };
    let mut fetched = fetch(job, context).await?;
    let mut problems = validate::problems(job, &fetched.named);
    let template = Template {
        namespace: &namespace,
        job: &name,
        owner: &owner,
        labels: job.labels(),
        model: &job.spec.model,
        engine: &job.spec.engine,
        pools: &fetched.pools,
    };

    let issuer = context.issuer();
    let gateway_stopped = problems.iter().any(|problem| problem.stops == Stops::All);
    if !gateway_stopped || fetched.has_gateway {
        let key = match &fetched.api_key {
            Some(key) => Some(key.clone()),
            None => apply::api_key(context, &apply::new_api_key(&template)).await?,
        };
        if key.is_none() {
            problems.push(validate::no_api_key(&namespace, &name));
        }
        if let (Some(issuer), Some(key)) = (&issuer, key) {
            let metrics_token = context.metrics_token().await?;
            let (pools, rewards, queues, queue_pools) = fetch::documents(job, &fetched, context);
            let facts = gateway::Facts {
                namespace: &namespace,
                job: &name,
                owner: &owner,
                spec: &job.spec,
                pools: &pools,
                rewards: &rewards,
                queues: &queues,
                queue_pools: &queue_pools,
                issuer,
                api_key: &key,
                metrics_token: metrics_token.as_deref(),
                settings: &context.settings,
            };
            // One that runs while its job is at odds with others still has to know its callers.
            let runs = fetched.gateway.is_some();
            apply::identity(context, &gateway::identity(&facts), runs).await?;
            if !gateway_stopped {
                apply::gateway(context, &owner, &gateway::build(&facts)?, runs).await?;
            }
        }
    }

    let clock = Clock { now: context.now(), drain: job.spec.allocation.drain_timeout.duration() };
    let known = see(&fetched, &context.stores, &template, &Heard::default(), clock);
    let (heard, state) = ask::ask(job, context, &fetched, &known).await;
    let mut seen = see(&fetched, &context.stores, &template, &heard, clock);
    let setbacks = &context.jobs.setbacks;
    setbacks.judge(&owner.uid, &mut seen, &mut fetched.nodes, Instant::now());
    let workers: Vec<Worker> = seen.iter().map(|seen| seen.worker.clone()).collect();

    let observed = heard.workers.is_some();
    let (decision, ground) = decided(job, context, &fetched, &problems, &workers, observed)?;
    let Decision { plan, minimum, steps, made, booking } = decision;
    let resting = fetched.nodes.iter().filter(|(_, node)| node.trust == Trust::None);
    let resting: Vec<&str> = resting.map(|(name, _)| name.as_str()).collect();
    let why = state.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let refused = context.jobs.refusals.of(&owner.uid);
    let outcome = Outcome {
        problems: &problems,
        waits_for_keys: issuer.is_none(),
        seen: &seen,
        plan: plan.as_ref().map(|plan| (plan, &ground)),
        below: steps.below,
        minimum,
        job: state.as_ref().map_err(|_| why.as_str()),
        unfinished: steps.unfinished,
        resting: &resting,
        refused: refused.as_deref(),
    };
    tell::say(job, context, &outcome, clock).await?;
    // After the status: what goes below the minimum is said before it is done.
    let make = apply::Make { workers: &made, booking: booking.as_ref() };
    let taken = apply::steps(context, &template, &fetched, make, &steps.steps).await;
    tell::announce(job, context, &seen, &steps).await;
    match &taken {
        Ok(()) => context.jobs.refusals.clear(&owner.uid),
        Err(JobError::Call(error)) if error.is_rejected() => {
            context.jobs.refusals.note(&owner.uid, said(error, &made), Instant::now());
        }
        Err(_) => {}
    }
    taken.map_err(|error| match error {
        JobError::Call(error) => JobError::Workers(error),
        other => other,
    })?;

    let waits = plan.iter().any(|plan| !plan.waiting.is_empty());
    let silent = !gateway_stopped && (state.is_err() || issuer.is_none());
    let soon = steps.unfinished || silent;
    Ok(match (soon, waits || !seen.is_empty()) {
        (true, _) => Action::requeue(SOON),
        (false, true) => Action::requeue(LATER),
        (false, false) => Action::requeue(LATER * 4),
    })
}

/// What the API server said of a worker, without its name: each try has another one.
fn said(error: &CallError, made: &[(String, Placement)]) -> String {
    made.iter().fold(error.said(), |said, (name, _)| said.replace(name, "NAME"))
}

/// Plans, books GPUs, and finds the steps.
fn decided(
    job: &RolloutJob,
    context: &Context,
    fetched: &Fetched,
    problems: &[Problem],
    workers: &[Worker],
    observed: bool,
) -> Result<(Decision, Ground), JobError> {
    // A suspended job wants nothing, whatever else is wrong.
    if !problems.is_empty() && !job.spec.suspend {
        let bounds = Bounds { minimum: 0, observed };
        let steps = converge(&Plan::as_is(workers), &fetched.nodes, workers, bounds);
        return Ok((Decision { steps, ..Decision::default() }, Ground::new()));
    }
    let key = (job.namespace().unwrap_or_default(), job.name_any());
    let (wants, ground) = wants(&job.spec, &fetched.pools);
    let ours: BTreeSet<String> = fetched.pods.iter().map(|pod| pod.name_any()).collect();
    let asked = Asked {
        job: &key,
        wants: &wants,
        pools: &fetched.pools,
        nodes: &fetched.nodes,
        labelled: &fetched.labelled,
        ours: &ours,
        workers,
        min_serving_percent: job.spec.allocation.min_serving_percent,
        observed,
    };
    let (uid, nonce) = (job.uid().unwrap_or_default(), context.now().as_nanosecond());
    let name = |index| worker::name(&key.1, &uid, nonce, index);
    let decision = decide(&asked, &context.stores.index, Instant::now(), name);
    Ok((decision.map_err(|Lags| JobError::CacheLags)?, ground))
}

/// The job's workers.
fn see(
    fetched: &Fetched,
    stores: &Stores,
    template: &Template<'_>,
    heard: &Heard,
    clock: Clock,
) -> Vec<Seen> {
    let node = |name: &str| stores.nodes.get(&ObjectRef::new(name));
    let one = |pod: &Pod, name: &str| {
        let hash = |kind: &fleet::Kind| template.hash(kind);
        observe::worker(pod, name, hash, node, heard, clock)
    };
    let alone = fetched.pods.iter().filter(|pod| lws::set_of(&pod.metadata).is_none());
    let mut seen: Vec<Seen> = alone.filter_map(|pod| one(pod, &pod.name_any())).collect();
    for set in &fetched.sets {
        let name = set.name_any();
        let leads = |pod: &&Arc<Pod>| lws::set_of(&pod.metadata) == Some((name.as_str(), true));
        let leader = fetched.pods.iter().find(leads);
        let found = match leader {
            Some(pod) => one(pod, &name),
            None => one(&lws::as_pod(set), &name),
        };
        seen.extend(found.map(|mut found| {
            if set.metadata.deletion_timestamp.is_some() {
                found.worker.stage = Stage::Leaving;
            }
            found
        }));
    }
    seen.sort_by(|left, right| left.worker.name.cmp(&right.worker.name));
    seen
}

#[cfg(test)]
mod tests;
