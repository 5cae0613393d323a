//! ResourcePool: who owns it, what its nodes have, and the reservations that keep their cores.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use rollwright_crds::ResourcePool;
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::pool::{PoolOwner, ResourcePoolStatus};

use crate::apply::Site;
use crate::conditions::{self, Wish};
use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised};
use crate::labels::POOL;
use crate::owner;
use crate::status::Over;
use crate::stores::Stores;
use crate::watch::{Change, What};

mod build;
mod chunks;
mod claims;
mod dedication;
mod fetch;
mod nodes;
mod status;
#[cfg(test)]
mod tests;
mod validate;

use build::Reservations;
pub(crate) use build::{Offer, held, pod_name};
pub use claims::allows;
pub use dedication::Kubelet;
pub(crate) use nodes::{
    GPU, Requests, Size, has_ended, is_of_node, is_reservation, matches, serves, serves_gpus,
};
pub(crate) use status::is_running;

/// Field managers.
const RESERVATION: Site = Site("rollwright-pool-reservation");
const STATUS: Site = Site("rollwright-pool-status");
/// Pods made or deleted at one moment.
const AT_ONCE: usize = 16;
/// After a look at a cache that lags.
const AGAIN: Duration = Duration::from_secs(1);
/// How often what queues say of a pool is taken over.
const LOOK: Duration = Duration::from_secs(30);

/// The controller of ResourcePools.
pub struct Pools;

/// What can go wrong with a pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A request to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Categorised for PoolError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
        }
    }
}

/// Whether somebody owns the pool, as its status has it.
pub(crate) fn is_bound(pool: &ResourcePool) -> bool {
    pool.status.as_ref().is_some_and(|status| status.bound_to.is_some())
}

/// The queue that owns the pool, as its status has it.
pub(crate) fn queue_of(pool: &ResourcePool) -> Option<&PoolOwner> {
    let owner = pool.status.as_ref().and_then(|status| status.bound_to.as_ref());
    owner.filter(|owner| owner.kind == claims::QUEUE)
}

impl Controller for Pools {
    type Object = ResourcePool;
    type Error = PoolError;

    const NAME: &'static str = "resourcepool";
    const GATHER: Duration = Duration::from_secs(1);

    fn store(stores: &Stores) -> &Store<ResourcePool> {
        &stores.pools
    }

    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<ResourcePool>> {
        match change.what {
            What::Pool(pool) => {
                let mut affected = rivals_of(pool, stores);
                if !change.gone {
                    affected.push(ObjectRef::from_obj(pool));
                }
                affected
            }
            What::Queue(queue) => {
                let owns = |pool: &ResourcePool| is_owner(pool, claims::QUEUE, &queue.metadata);
                those(&stores.pools, |pool| {
                    let name = pool.metadata.name.as_deref().unwrap_or_default();
                    owns(pool) || queue.spec.pools.iter().any(|of| of.as_str() == name)
                })
            }
            What::Job(job) => those(&stores.pools, |pool| {
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                is_owner(pool, claims::JOB, &job.metadata) || claims::names(&job.spec, name)
            }),
            // A label may have been taken away: nobody can tell which pool it was in.
            What::Node(_) | What::Everything => all(&stores.pools),
            What::Pod(pod) => {
                let of = owner::of_kind(&pod.metadata, "ResourcePool").map(ObjectRef::new);
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let node = node.and_then(|node| stores.nodes.get(&ObjectRef::new(node)));
                let mut affected = node.map_or_else(Vec::new, |node| {
                    those(&stores.pools, |pool| {
                        nodes::selector(&pool.spec).is_some_and(|of| nodes::matches(of, &node))
                    })
                });
                // Workers are named by labels; the last of a job that goes leaves the pool.
                let worker = pod.metadata.labels.as_ref().and_then(|labels| labels.get(POOL));
                affected.extend(worker.map(|pool| ObjectRef::new(pool)));
                if let Some(queue) = claims::queue_of(&pod.metadata) {
                    affected.extend(of_queue(&pod.metadata, queue, stores));
                }
                affected.extend(of);
                affected
            }
            // A queue lets go of its pools.
            What::Owned("StatefulSet", meta) => {
                let queue = owner::of_kind(meta, "ActionQueue");
                queue.map_or_else(Vec::new, |queue| of_queue(meta, queue, stores))
            }
            What::PoolFigures(_) | What::Reward(_) | What::Owned(..) => Vec::new(),
        }
    }

    async fn reconcile(
        pool: Arc<ResourcePool>,
        context: Arc<Context>,
    ) -> Result<Action, PoolError> {
        match reconcile(&pool, &context).await {
            // Somebody wrote it since the cache saw it: what was decided may be wrong by now.
            Err(PoolError::Call(error)) if error.status() == Some(409) => {
                Ok(Action::requeue(AGAIN))
            }
            Err(PoolError::Call(error)) => {
                let api = Api::all(context.client.clone());
                context.tell_refused(STATUS, &api, &*pool, &error, Over::AsRead).await;
                Err(error.into())
            }
            done => done,
        }
    }
}

async fn reconcile(pool: &ResourcePool, context: &Context) -> Result<Action, PoolError> {
    let seen = fetch::seen(pool, context);
    let (figures, wished) = match validate::validate(pool) {
        Ok(validated) => {
            let changes = build::reservations(pool, &validated, &seen, &context.settings);
            apply(&changes, context).await?;
            let figures = status::figures(pool, &validated, &seen, &changes);
            (figures, status::conditions(&validated, &seen, &changes))
        }
        // What it held stays as it is until the spec is mended.
        Err(invalid) => {
            let before = pool.status.clone().unwrap_or_default();
            let observed_generation = pool.metadata.generation;
            let figures = ResourcePoolStatus { observed_generation, ..before };
            (figures, status::refused(&invalid))
        }
    };
    publish(pool, context, figures, wished).await?;
    // What queues and kubelets say is no event.
    let unknown = context.read_kubelet && seen.nodes.iter().any(|node| node.kubelet.is_none());
    let look = seen.snapshot.is_some() || (pool.spec.cpu.is_some() && unknown);
    let look = look || (pool.spec.gpu.is_some() && queue_of(pool).is_some());
    Ok(if look { Action::requeue(LOOK) } else { Action::await_change() })
}

/// Step four. A pool may have a thousand nodes: a few pods at a time.
async fn apply(changes: &Reservations, context: &Context) -> Result<(), CallError> {
    let namespace = &context.settings.namespace;
    stream::iter(&changes.make)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, async |pod| {
            context.apply(RESERVATION, pod).await.map(drop)
        })
        .await?;
    stream::iter(&changes.delete)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, async |name| context.delete::<Pod>(namespace, name).await)
        .await
}

async fn publish(
    pool: &ResourcePool,
    context: &Context,
    mut status: ResourcePoolStatus,
    wished: Vec<Wish>,
) -> Result<(), CallError> {
    let old = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let news: Vec<Wish> = conditions::changed(old, &wished).cloned().collect();
    status.conditions = conditions::merge(old, wished, pool.metadata.generation, context.now());
    write(pool, context, &status, &news).await
}

async fn write(
    pool: &ResourcePool,
    context: &Context,
    status: &ResourcePoolStatus,
    news: &[Wish],
) -> Result<(), CallError> {
    let api = Api::all(context.client.clone());
    // Whose the pool is follows from what the status said: it must still say so.
    if context.publish(STATUS, &api, pool, status, Over::AsRead).await? {
        for wish in news.iter().filter(|wish| is_worth_an_event(wish)) {
            let bad = wish.holds() != (wish.kind() == types::BOUND || wish.kind() == types::READY);
            context.events.condition(pool, action(wish), wish, bad).await;
        }
    }
    Ok(())
}

/// Conditions in their usual state, and pods on their way, are not.
fn is_worth_an_event(wish: &Wish) -> bool {
    match wish.kind() {
        types::READY => {
            !matches!(wish.reason(), reasons::WAITING_FOR_PODS | reasons::WAITING_FOR_QUEUE)
        }
        types::BOUND => true,
        _ => wish.holds(),
    }
}

fn action(wish: &Wish) -> &'static str {
    match wish.kind() {
        types::BOUND if wish.holds() => "BindPool",
        types::BOUND => "ReleasePool",
        types::POOL_ALREADY_BOUND => "RefuseClaim",
        types::OVERLAPS => "CompareSelectors",
        types::NODE_NOT_DEDICATED => "CheckNodes",
        _ => "PreparePool",
    }
}

/// Pools that may share nodes with this one.
fn rivals_of(pool: &ResourcePool, stores: &Stores) -> Vec<ObjectRef<ResourcePool>> {
    let Some(selector) = nodes::selector(&pool.spec) else { return Vec::new() };
    those(&stores.pools, |other| {
        other.metadata.name != pool.metadata.name
            && nodes::selector(&other.spec).is_some_and(|of| nodes::compatible(of, selector))
    })
}

/// The pools of the queue that an object of this namespace belongs to.
fn of_queue(
    meta: &kube::core::ObjectMeta,
    queue: &str,
    stores: &Stores,
) -> Vec<ObjectRef<ResourcePool>> {
    those(&stores.pools, |pool| {
        let owner = pool.status.as_ref().and_then(|status| status.bound_to.as_ref());
        owner.is_some_and(|owner| {
            owner.kind == claims::QUEUE
                && Some(&owner.namespace) == meta.namespace.as_ref()
                && owner.name == queue
        })
    })
}

fn is_owner(pool: &ResourcePool, kind: &str, meta: &kube::core::ObjectMeta) -> bool {
    let owner = pool.status.as_ref().and_then(|status| status.bound_to.as_ref());
    owner.is_some_and(|owner| {
        owner.kind == kind
            && Some(&owner.namespace) == meta.namespace.as_ref()
            && Some(&owner.name) == meta.name.as_ref()
    })
}
