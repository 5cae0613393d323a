//! RewardService: whether what it names is there, and what its queue says of a model on GPUs. The
//! queue's controller hands those to the queue, and calls are the gateway's: there is nothing to
//! build, so the steps are fetch, validate and status.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::reward::RewardServiceStatus;
use rollwright_crds::{Name, RewardService};

use crate::apply::Site;
use crate::conditions::{self, Wish};
use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised};
use crate::status::Over;
use crate::stores::Stores;
use crate::watch::{Change, What};

mod fetch;
mod gpu;
#[cfg(test)]
mod tests;
mod validate;

use fetch::Seen;
pub(crate) use gpu::fits;
use validate::Obstacle;

const STATUS: Site = Site("rollwright-reward-status");
/// Secrets of others are not watched: they are looked at this often.
const LOOK: Duration = Duration::from_mins(5);
/// What a queue says is no event, and is kept in memory: it is read this often.
const LOOK_AT_QUEUE: Duration = Duration::from_secs(10);
/// The same while one is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// The controller of RewardServices.
pub struct Rewards;

/// What can go wrong with a reward service.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// A request to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Categorised for RewardError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
        }
    }
}

impl Controller for Rewards {
    type Object = RewardService;
    type Error = RewardError;

    const NAME: &'static str = "rewardservice";

    fn store(stores: &Stores) -> &Store<RewardService> {
        &stores.rewards
    }

    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<RewardService>> {
        match change.what {
            What::Reward(service) if !change.gone => vec![ObjectRef::from_obj(service)],
            What::Queue(queue) => {
                let name = queue.metadata.name.as_deref();
                those(&stores.rewards, |service| {
                    let gpu = service.spec.gpu.as_ref().map(|gpu| &gpu.queue);
                    let sandbox = service.spec.sandbox.as_ref().map(|of| &of.queue);
                    service.metadata.namespace == queue.metadata.namespace
                        && gpu.or(sandbox).map(Name::as_str) == name
                })
            }
            What::Pool(pool) => {
                let name = pool.metadata.name.as_deref();
                those(&stores.rewards, |service| {
                    service.spec.gpu.as_ref().map(|gpu| gpu.pool.as_str()) == name
                })
            }
            What::Everything => all(&stores.rewards),
            _ => Vec::new(),
        }
    }

    async fn reconcile(
        service: Arc<RewardService>,
        context: Arc<Context>,
    ) -> Result<Action, RewardError> {
        let seen = fetch::seen(&service, &context).await?;
        let result = validate::validate(&service, &seen);
        publish(&service, &context, &seen, status(&result)).await?;
        if service.spec.gpu.is_some() {
            return Ok(Action::requeue(LOOK_AT_QUEUE));
        }
        let serverless = service.spec.serverless.as_ref();
        Ok(match (serverless.and_then(|of| of.auth_secret.as_ref()), result) {
            (None, _) => Action::await_change(),
            (Some(_), Ok(())) => Action::requeue(LOOK),
            (Some(_), Err(_)) => Action::requeue(LOOK_AGAIN),
        })
    }
}

/// The conditions.
fn status(result: &Result<(), Obstacle>) -> Vec<Wish> {
    match result {
        Ok(()) => vec![
            Wish::is_true(types::READY, reasons::AS_SPECIFIED, ""),
            Wish::is_true(types::RESOLVED, reasons::AS_SPECIFIED, ""),
        ],
        Err(Obstacle { reason, message, resolved }) => vec![
            Wish::is_false(types::READY, reason, message.clone()),
            if *resolved {
                Wish::is_true(types::RESOLVED, reasons::AS_SPECIFIED, "")
            } else {
                Wish::is_false(types::RESOLVED, reason, message.clone())
            },
        ],
    }
}

/// Everything but the conditions.
fn figures(service: &RewardService, seen: &Seen) -> RewardServiceStatus {
    let told = gpu::told(service, seen).cloned().unwrap_or_default();
    RewardServiceStatus {
        backend: validate::backend(service).map(str::to_owned),
        running: told.running,
        waiting: told.waiting,
        resident: told.residents,
        restores: told.restores,
        ..RewardServiceStatus::default()
    }
}

async fn publish(
    service: &RewardService,
    context: &Context,
    seen: &Seen,
    wished: Vec<Wish>,
) -> Result<(), CallError> {
    let old = service.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let news: Vec<Wish> = conditions::changed(old, &wished).cloned().collect();
    let generation = service.metadata.generation;
    let status = RewardServiceStatus {
        observed_generation: generation,
        conditions: conditions::merge(old, wished, generation, context.now()),
        ..figures(service, seen)
    };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let api = Api::namespaced(context.client.clone(), namespace);
    if context.publish(STATUS, &api, service, &status, Over::Anything).await? {
        let waits = |wish: &&Wish| wish.reason() == reasons::WAITING_FOR_QUEUE;
        let ready = news.iter().filter(|wish| wish.kind() == types::READY);
        for wish in ready.filter(|wish| !waits(wish)) {
            context.events.condition(service, "ResolveReferences", wish, !wish.holds()).await;
        }
    }
    Ok(())
}
