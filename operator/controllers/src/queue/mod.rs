//! ActionQueue: the process that schedules actions, its store, and the certificates of its
//! agents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use rollwright_crds::ActionQueue;
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::queue::ActionQueueStatus;

use crate::apply::Site;
use crate::audience;
use crate::conditions::{self, Wish};
use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised};
use crate::owner;
use crate::pki::PkiError;
use crate::status::Over;
use crate::stores::Stores;
use crate::watch::{Change, What};

mod apply;
mod build;
mod certificates;
mod fetch;
mod stateful_set;
mod stats;
mod status;
#[cfg(test)]
mod tests;
mod validate;

pub(crate) use fetch::Names;

use certificates::Certificates;
use fetch::Seen;

/// Field manager of the status.
const STATUS: Site = Site("rollwright-queue-status");
/// How often a queue that is up is asked what it holds.
const LOOK: Duration = Duration::from_secs(30);
/// How often one is whose agents have not dialled yet, which nothing else tells of.
const LOOK_FOR_AGENTS: Duration = Duration::from_secs(3);
/// How often one that does not answer is.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How often its Secrets are looked at, which no watch tells of.
const LOOK_AT_SECRETS: Duration = Duration::from_mins(2);

/// The controller of ActionQueues.
pub struct Queues;

/// What can go wrong with a queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A request to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A certificate cannot be minted.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The manifests cannot be written.
    #[error("cannot write the queue's manifests: {0}")]
    Manifests(#[from] serde_yaml::Error),
}

impl Categorised for QueueError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
            Self::Pki(_) => "CertificateNotMinted",
            Self::Manifests(_) => "ManifestsNotWritten",
        }
    }
}

impl Controller for Queues {
    type Object = ActionQueue;
    type Error = QueueError;

    const NAME: &'static str = "actionqueue";

    fn store(stores: &Stores) -> &Store<ActionQueue> {
        &stores.queues
    }

    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<ActionQueue>> {
        match change.what {
            What::Queue(queue) if !change.gone => vec![ObjectRef::from_obj(queue)],
            What::Pool(pool) | What::PoolFigures(pool) => {
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                those(&stores.queues, |queue| {
                    queue.spec.pools.iter().any(|pool| pool.as_str() == name)
                })
            }
            What::Owned(_, meta) => {
                let queue = owner::of_kind(meta, "ActionQueue");
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                queue.map(|name| ObjectRef::new(name).within(namespace)).into_iter().collect()
            }
            // It may have named another queue before.
            What::Reward(service) => those(&stores.queues, |queue| {
                queue.metadata.namespace == service.metadata.namespace
            }),
            What::Everything => all(&stores.queues),
            What::Queue(_) | What::Job(_) | What::Node(_) | What::Pod(_) => Vec::new(),
        }
    }

    async fn reconcile(
        queue: Arc<ActionQueue>,
        context: Arc<Context>,
    ) -> Result<Action, QueueError> {
        let done = Box::pin(reconcile(&queue, &context)).await;
        if let Err(QueueError::Call(error)) = &done {
            let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
            let api = Api::namespaced(context.client.clone(), namespace);
            context.tell_refused(STATUS, &api, &*queue, error, Over::Anything).await;
        }
        done
    }
}

async fn reconcile(queue: &ActionQueue, context: &Context) -> Result<Action, QueueError> {
    let mut seen = fetch::seen(queue, context).await?;
    let validated = match validate::validate(queue, &seen) {
        Ok(validated) => validated,
        Err(obstacle) => {
            // No watch tells of Secrets.
            let mut again = (obstacle.reason == reasons::SECRET_NOT_FOUND).then_some(LOOK);
            if seen.ready_pods.is_some() {
                // What was made before runs on, and is not to be left with old certificates.
                let certificates = certificates(queue, &seen, context).await?;
                let identity = build::identity(queue, &certificates, seen.issuer.as_deref());
                identity.apply(context).await?;
                let due = until_due(&certificates, context);
                again = Some(again.unwrap_or(LOOK_AT_SECRETS).min(due));
            }
            let wished = status::blocked(&obstacle, &seen);
            publish(queue, context, status::figures(queue, &seen), wished).await?;
            return Ok(again.map_or_else(Action::await_change, Action::requeue));
        }
    };
    let (namespace, name) = (validated.namespace.to_owned(), validated.name.to_owned());
    let nodes = validated.pools.iter().filter(|pool| pool.spec.cpu.is_some());
    let nodes = nodes.filter_map(|pool| pool.status.as_ref().map(|status| status.nodes)).sum();
    let certificates = certificates(queue, &seen, context).await?;
    let prepared = build::build(&validated, &certificates, &context.settings)?;
    let applied = Box::pin(prepared.apply(context)).await?;
    let again = look(&mut seen, context, &namespace, &name).await;
    let mut figures = status::figures(queue, &seen);
    figures.endpoint = Some(status::endpoint(&namespace, &name));
    let wished = status::conditions(&applied, &seen, nodes);
    publish(queue, context, figures, wished).await?;
    let due = until_due(&certificates, context);
    Ok(Action::requeue(again.unwrap_or(LOOK_AT_SECRETS).min(due)))
}

/// Those that there are, with what is due or missing made anew.
async fn certificates(
    queue: &ActionQueue,
    seen: &Seen,
    context: &Context,
) -> Result<Certificates, QueueError> {
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let current = Certificates::current(namespace, name, seen, context.now())?;
    if !current.renewed {
        return Ok(current);
    }
    let fresh = seen.clone().with_fresh_secrets(queue, context).await?;
    Ok(Certificates::current(namespace, name, &fresh, context.now())?)
}

/// Until the first of them is to be made anew.
fn until_due(certificates: &Certificates, context: &Context) -> Duration {
    let due = certificates.due().saturating_sub(context.now().as_second());
    Duration::from_secs(u64::try_from(due).unwrap_or(0).max(1))
}

/// Asks the queue what it holds, unless it was asked a short while ago; returns when to ask
/// again. What it says changes its status, which must not make us ask it again.
async fn look(seen: &mut Seen, context: &Context, namespace: &str, name: &str) -> Option<Duration> {
    let observed = &context.observed;
    let key = (namespace.to_owned(), name.to_owned());
    let up = seen.ready_pods.is_some_and(|pods| pods > 0);
    if !up {
        observed.queues.remove(&key);
        seen.snapshot = None;
        return None;
    }
    let wait = observed.asked.get(&key).map(|at| at.saturating_duration_since(Instant::now()));
    if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
        return Some(wait);
    }
    let asked = async {
        let token = context.tokens.get(&audience::of_queue(namespace, name)).await?;
        stats::ask(&status::endpoint(namespace, name), &token).await
    };
    let again = match asked.await {
        Ok(snapshot) => {
            seen.snapshot = Some(Arc::new(snapshot.clone()));
            let again = if snapshot.waits_for_agents() { LOOK_FOR_AGENTS } else { LOOK };
            observed.queues.put(key.clone(), snapshot);
            again
        }
        Err(error) => {
            tracing::warn!(namespace, name, %error, "a queue does not say what it holds");
            observed.queues.remove(&key);
            seen.snapshot = None;
            LOOK_AGAIN
        }
    };
    observed.asked.put(key, Instant::now() + again);
    Some(again)
}

async fn publish(
    queue: &ActionQueue,
    context: &Context,
    mut status: ActionQueueStatus,
    wished: Vec<Wish>,
) -> Result<(), CallError> {
    let old = queue.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let news: Vec<Wish> = conditions::changed(old, &wished).cloned().collect();
    status.conditions = conditions::merge(old, wished, queue.metadata.generation, context.now());
    write(queue, context, &status, &news).await
}

async fn write(
    queue: &ActionQueue,
    context: &Context,
    status: &ActionQueueStatus,
    news: &[Wish],
) -> Result<(), CallError> {
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    let api = Api::namespaced(context.client.clone(), namespace);
    if context.publish(STATUS, &api, queue, status, Over::Anything).await? {
        for wish in news.iter().filter(|wish| is_worth_an_event(wish)) {
            context.events.condition(queue, action(wish), wish, !wish.holds()).await;
        }
    }
    Ok(())
}

fn is_worth_an_event(wish: &Wish) -> bool {
    let on_its_way =
        [reasons::WAITING_FOR_PODS, reasons::WAITING_FOR_POOL, reasons::WAITING_FOR_KEYS];
    wish.kind() == types::READY && !on_its_way.contains(&wish.reason())
}

fn action(wish: &Wish) -> &'static str {
    match wish.reason() {
        reasons::AS_SPECIFIED => "StartQueue",
        reasons::AGENTS_DISCONNECTED => "ConnectAgents",
        _ => "ResolveReferences",
    }
}
