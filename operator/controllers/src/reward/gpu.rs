//! A model on GPUs: whether its queue can schedule it, and what the queue says of it. Pure.

use rollwright_crds::conditions::reasons;
use rollwright_crds::pool::GpuRole;
use rollwright_crds::reward::GpuReward;
use rollwright_crds::{ActionQueue, ResourcePool, RewardService};

use super::fetch::Seen;
use super::validate::{Obstacle, queue, spec_holds_together, unresolved};
use crate::observed::{GpuPoolSnapshot, ServiceSnapshot};
use crate::pool::allows;

/// Whether a queue is to have the service: it would refuse to start with one that does not fit.
pub(crate) fn fits(
    service: &RewardService,
    queue: Option<&ActionQueue>,
    pool: Option<&ResourcePool>,
) -> bool {
    let of = service.spec.gpu.as_ref();
    of.is_some_and(|of| {
        spec_holds_together(service).is_ok() && references(of, service, queue, pool).is_ok()
    })
}

/// Whether it can be called.
pub(super) fn validate(
    of: &GpuReward,
    service: &RewardService,
    seen: &Seen,
) -> Result<(), Obstacle> {
    references(of, service, seen.queue.as_deref(), seen.pool.as_deref())?;
    let waits = |reason, message| Obstacle { reason, message, resolved: true };
    let Some(snapshot) = &seen.snapshot else {
        let message = format!("ActionQueue \"{}\" does not say yet what it holds", of.queue);
        return Err(waits(reasons::WAITING_FOR_QUEUE, message));
    };
    let pool = snapshot.gpu_pool(&of.pool);
    let Some(told) = pool.and_then(|pool| in_pool(pool, service)) else {
        let message = format!("ActionQueue \"{}\" has not taken it over yet", of.queue);
        return Err(waits(reasons::WAITING_FOR_QUEUE, message));
    };
    if pool.is_none_or(|pool| pool.nodes == 0) {
        let message = format!("no agent offers GPUs of ResourcePool \"{}\"", of.pool);
        return Err(waits(reasons::AGENTS_DISCONNECTED, message));
    }
    if !told.trouble.is_empty() {
        return Err(waits(reasons::ENGINE_FAILING, told.trouble.clone()));
    }
    Ok(())
}

/// What its queue says of it.
pub(super) fn told<'a>(service: &RewardService, seen: &'a Seen) -> Option<&'a ServiceSnapshot> {
    let of = service.spec.gpu.as_ref()?;
    in_pool(seen.snapshot.as_ref()?.gpu_pool(&of.pool)?, service)
}

fn in_pool<'a>(pool: &'a GpuPoolSnapshot, service: &RewardService) -> Option<&'a ServiceSnapshot> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    pool.services.get(&format!("{namespace}.{name}"))
}

/// Whether what it names is there and large enough.
fn references(
    of: &GpuReward,
    service: &RewardService,
    found: Option<&ActionQueue>,
    pool: Option<&ResourcePool>,
) -> Result<(), Obstacle> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let queue = queue(&of.queue, found)?;
    let name = &of.pool;
    let Some(pool) = pool else {
        let message = format!("there is no ResourcePool \"{name}\"");
        return Err(unresolved(reasons::POOL_NOT_FOUND, message));
    };
    if !allows(&pool.spec, namespace) {
        let message = format!(
            "ResourcePool \"{name}\" does not allow namespace \"{namespace}\"; add it to spec.allowedNamespaces of the pool"
        );
        return Err(unresolved(reasons::NAMESPACE_NOT_ALLOWED, message));
    }
    let Some(gpu) = pool.spec.gpu.as_ref().filter(|gpu| gpu.hosts.contains(&GpuRole::Reward))
    else {
        let message = format!("ResourcePool \"{name}\" is not a gpu pool that hosts Reward");
        return Err(unresolved(reasons::POOL_TYPE_MISMATCH, message));
    };
    if !queue.spec.pools.contains(name) {
        let message = format!(
            "ActionQueue \"{}\" does not schedule ResourcePool \"{name}\"; add it to spec.pools of the queue",
            of.queue
        );
        return Err(unresolved(reasons::POOL_NOT_OF_QUEUE, message));
    }
    of.fits(gpu).map_err(|misfit| unresolved(misfit.reason(), misfit.to_string()))
}
