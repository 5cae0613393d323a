//! Step two: whether what a reward service names is there and fits. Pure.

use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::pool::GpuRole;
use rollwright_crds::reward::{GpuReward, SandboxReward, ServerlessReward};
use rollwright_crds::{ActionQueue, RewardService};

use super::fetch::{SecretSeen, Seen};
use crate::pool::allows;

/// Why a reward service cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// One of `rollwright_crds::conditions::reasons`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// All that it names is there, and yet it cannot be used.
    pub(super) resolved: bool,
}

fn unresolved(reason: &'static str, message: String) -> Obstacle {
    Obstacle { reason, message, resolved: false }
}

/// `gpu`, `serverless` or `sandbox`.
pub(super) fn backend(service: &RewardService) -> Option<&'static str> {
    let spec = &service.spec;
    let gpu = spec.gpu.as_ref().map(|_| "gpu");
    let serverless = spec.serverless.as_ref().map(|_| "serverless");
    gpu.or(serverless).or(spec.sandbox.as_ref().map(|_| "sandbox"))
}

pub(super) fn validate(service: &RewardService, seen: &Seen) -> Result<(), Obstacle> {
    let violations = service.spec.validate();
    if !violations.is_empty() {
        let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
        return Err(unresolved(reasons::INVALID_SPEC, all.join("; ")));
    }
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &service.spec;
    spec.gpu.as_ref().map_or(Ok(()), |of| gpu(of, namespace, seen))?;
    spec.serverless.as_ref().map_or(Ok(()), |of| serverless(of, seen))?;
    spec.sandbox.as_ref().map_or(Ok(()), |of| sandbox(of, seen))
}

fn gpu(of: &GpuReward, namespace: &str, seen: &Seen) -> Result<(), Obstacle> {
    let queue = queue(&of.queue, seen)?;
    let name = &of.pool;
    let Some(pool) = &seen.pool else {
        let message = format!("there is no ResourcePool \"{name}\"");
        return Err(unresolved(reasons::POOL_NOT_FOUND, message));
    };
    if !allows(&pool.spec, namespace) {
        let message = format!(
            "ResourcePool \"{name}\" does not allow namespace \"{namespace}\"; add it to spec.allowedNamespaces of the pool"
        );
        return Err(unresolved(reasons::NAMESPACE_NOT_ALLOWED, message));
    }
    if !pool.spec.gpu.as_ref().is_some_and(|gpu| gpu.hosts.contains(&GpuRole::Reward)) {
        let message = format!("ResourcePool \"{name}\" is not a gpu pool that hosts Reward");
        return Err(unresolved(reasons::POOL_TYPE_MISMATCH, message));
    }
    if !queue.spec.pools.contains(name) {
        let message = format!(
            "ActionQueue \"{}\" does not schedule ResourcePool \"{name}\"; add it to spec.pools of the queue",
            of.queue
        );
        return Err(unresolved(reasons::POOL_NOT_FOUND, message));
    }
    Err(Obstacle {
        reason: reasons::UNSUPPORTED,
        message: "nothing starts models on GPUs for rewards yet; serve the model yourself and use \
                  spec.serverless with its address"
            .to_owned(),
        resolved: true,
    })
}

fn serverless(of: &ServerlessReward, seen: &Seen) -> Result<(), Obstacle> {
    let Some(key) = &of.auth_secret else { return Ok(()) };
    let message = match seen.secret {
        SecretSeen::Usable => return Ok(()),
        SecretSeen::Missing => format!("there is no Secret \"{}\" in this namespace", key.name),
        SecretSeen::WithoutKey => {
            format!("Secret \"{}\" has no value at \"{}\"", key.name, key.key)
        }
    };
    Err(unresolved(reasons::SECRET_NOT_FOUND, message))
}

fn sandbox(of: &SandboxReward, seen: &Seen) -> Result<(), Obstacle> {
    let queue = queue(&of.queue, seen)?;
    if !queue.spec.templates.iter().any(|template| template.name == of.template) {
        let message =
            format!("ActionQueue \"{}\" has no sandbox template \"{}\"", of.queue, of.template);
        return Err(unresolved(reasons::TEMPLATE_NOT_FOUND, message));
    }
    if !queue.spec.profiles.iter().any(|profile| profile.name == of.profile) {
        let message =
            format!("ActionQueue \"{}\" has no action profile \"{}\"", of.queue, of.profile);
        return Err(unresolved(reasons::PROFILE_NOT_FOUND, message));
    }
    if is_ready(queue) {
        return Ok(());
    }
    Err(Obstacle {
        reason: reasons::WAITING_FOR_QUEUE,
        message: format!("ActionQueue \"{}\" is not ready", of.queue),
        resolved: true,
    })
}

fn queue<'a>(name: &str, seen: &'a Seen) -> Result<&'a ActionQueue, Obstacle> {
    seen.queue.as_deref().ok_or_else(|| {
        let message = format!("there is no ActionQueue \"{name}\" in this namespace");
        unresolved(reasons::QUEUE_NOT_FOUND, message)
    })
}

fn is_ready(queue: &ActionQueue) -> bool {
    let conditions = queue.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|of| of.type_ == types::READY && of.status == "True")
}
