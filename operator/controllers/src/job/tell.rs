//! Says what came of a pass: in the status, and by Events for what turned.

use kube::{Api, ResourceExt as _};
use rollwright_crds::RolloutJob;
use rollwright_crds::conditions::{reasons, types};

use super::converge::{Step, Steps};
use super::fleet::Stage;
use super::observe::{Clock, Seen, Trial};
use super::status::{self, Outcome};
use crate::apply::Site;
use crate::conditions::{self, Wish};
use crate::context::Context;
use crate::error::CallError;
use crate::status::Over;

pub(super) const STATUS: Site = Site("rollwright-job-status");

/// Writes the status where it says something new, and Events for what turned.
pub(super) async fn say(
    job: &RolloutJob,
    context: &Context,
    outcome: &Outcome<'_>,
    clock: Clock,
) -> Result<(), CallError> {
    let (status, wishes) = status::status(job, outcome, clock.now);
    let namespace = job.namespace().unwrap_or_default();
    let api = Api::namespaced(context.client.clone(), &namespace);
    if !context.publish(STATUS, &api, job, &status, Over::Anything).await? {
        return Ok(());
    }
    let old = job.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    for wish in conditions::changed(old, &wishes) {
        if let Some((action, bad)) = worth_an_event(wish, old.is_empty()) {
            context.events.condition(job, action, wish, bad).await;
        }
    }
    Ok(())
}

/// What is done in a turn of a condition, and whether that is bad news. That nothing is wrong
/// with a new job is none.
fn worth_an_event(wish: &Wish, first: bool) -> Option<(&'static str, bool)> {
    match (wish.kind(), wish.holds()) {
        (types::PROGRESSING, true) if wish.reason() == reasons::API_REFUSED => {
            Some(("MakeWorkers", true))
        }
        (types::AFFINITY_FALLBACK, true) => Some(("FallBack", true)),
        (types::CAPACITY_BELOW_MINIMUM, true) => Some(("ReplaceWorkers", true)),
        (types::RESOLVED, false) => Some(("ResolveReferences", true)),
        (types::SUSPENDED, true) => Some(("SuspendJob", false)),
        (types::READY, true) => Some(("ServeJob", false)),
        (types::AFFINITY_FALLBACK, false) if !first => Some(("ReturnToPreferredClass", false)),
        (types::RESOLVED, true) if !first => Some(("ResolveReferences", false)),
        (types::GATEWAY_REACHABLE, false) if !first => Some(("ReachGateway", true)),
        _ => None,
    }
}

/// Events for workers that are given up.
pub(super) async fn announce(job: &RolloutJob, context: &Context, seen: &[Seen], steps: &Steps) {
    for step in &steps.steps {
        let (Step::Drain(name) | Step::Delete(name)) = step else { continue };
        let given_up =
            |seen: &&Seen| seen.worker.name == *name && seen.worker.stage == Stage::Failing;
        let Some(seen) = seen.iter().find(given_up) else { continue };
        let trouble = match (&seen.trouble, seen.trial) {
            (Some(said), _) => said.as_str(),
            (None, Some(Trial::Unhealthy)) => "it does not serve the gateway",
            (None, _) => "it does not become ready",
        };
        let nodes = seen.worker.nodes.join(", ");
        let note = format!("worker {name} on {nodes} is given up: {trouble}");
        context.events.warning(job, "ReplaceWorker", "WorkerFailed", note).await;
    }
}
