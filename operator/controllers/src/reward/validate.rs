//! Step two: whether what a reward service names is there and fits. Pure.

use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::reward::{SandboxReward, ServerlessReward};
use rollwright_crds::{ActionQueue, RewardService};

use super::fetch::{SecretSeen, Seen};
use super::gpu;

/// Why a reward service cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// One of `rollwright_crds::conditions::reasons`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// All that it names is there, and yet it cannot be used.
    pub(super) resolved: bool,
}

pub(super) fn unresolved(reason: &'static str, message: String) -> Obstacle {
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
    spec_holds_together(service)?;
    let spec = &service.spec;
    spec.gpu.as_ref().map_or(Ok(()), |of| gpu::validate(of, service, seen))?;
    spec.serverless.as_ref().map_or(Ok(()), |of| serverless(of, seen))?;
    spec.sandbox.as_ref().map_or(Ok(()), |of| sandbox(of, seen))
}

pub(super) fn spec_holds_together(service: &RewardService) -> Result<(), Obstacle> {
    let violations = service.spec.validate();
    if violations.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
    Err(unresolved(reasons::INVALID_SPEC, all.join("; ")))
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
    let queue = queue(&of.queue, seen.queue.as_deref())?;
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

pub(super) fn queue<'a>(
    name: &str,
    found: Option<&'a ActionQueue>,
) -> Result<&'a ActionQueue, Obstacle> {
    found.ok_or_else(|| {
        let message = format!("there is no ActionQueue \"{name}\" in this namespace");
        unresolved(reasons::QUEUE_NOT_FOUND, message)
    })
}

fn is_ready(queue: &ActionQueue) -> bool {
    let conditions = queue.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|of| of.type_ == types::READY && of.status == "True")
}
