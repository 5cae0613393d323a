//! Step five: how a queue stands. Pure.

use rollwright_crds::ActionQueue;
use rollwright_crds::conditions::{reasons, types};
use rollwright_crds::queue::ActionQueueStatus;

use super::build::{CALLERS, QueueResources};
use super::fetch::{Names, Seen};
use super::validate::Obstacle;
use crate::conditions::Wish;
use crate::observed::QueueSnapshot;
use crate::resources::Applied;

/// Where callers find a queue.
pub(super) fn endpoint(namespace: &str, name: &str) -> String {
    format!("{}.{namespace}.svc:{CALLERS}", Names::of(name).queue)
}

/// Everything but the conditions.
pub(super) fn figures(queue: &ActionQueue, seen: &Seen) -> ActionQueueStatus {
    let before = queue.status.as_ref();
    let snapshot = seen.snapshot.as_deref();
    ActionQueueStatus {
        observed_generation: queue.metadata.generation,
        endpoint: before.and_then(|status| status.endpoint.clone()),
        agents: snapshot.map_or(0, QueueSnapshot::agents),
        waiting: snapshot.map_or(0, |snapshot| snapshot.waiting),
        running: snapshot.map_or(0, |snapshot| snapshot.running),
        trajectories: snapshot.map_or(0, |snapshot| snapshot.trajectories),
        conditions: Vec::new(),
    }
}

/// The conditions of a queue that cannot be built as it is. What was built before runs on.
pub(super) fn blocked(obstacle: &Obstacle, seen: &Seen) -> Vec<Wish> {
    let Obstacle { reason, message } = obstacle;
    let waits = matches!(*reason, reasons::WAITING_FOR_POOL | reasons::WAITING_FOR_KEYS);
    let serves = seen.ready_pods.is_some_and(|pods| pods > 0);
    let note = if serves { "; it goes on as it was before" } else { "" };
    vec![
        Wish::is_false(types::READY, reason, format!("{message}{note}")),
        Wish::is_false(types::RESOLVED, reason, message.clone()),
        if waits {
            Wish::is_true(types::PROGRESSING, reason, message.clone())
        } else {
            Wish::is_false(types::PROGRESSING, reason, "")
        },
    ]
}

/// The conditions of one that is built. `nodes` is how many nodes its CPU pools have.
pub(super) fn conditions(_applied: &QueueResources<Applied>, seen: &Seen, nodes: u32) -> Vec<Wish> {
    let up = seen.ready_pods.is_some_and(|pods| pods > 0);
    let agents = agents(seen, up, nodes);
    let ready = if !up {
        let message = "the queue's pod is not ready; `kubectl describe pod` and its log say why";
        Wish::is_false(types::READY, reasons::WAITING_FOR_PODS, message)
    } else if !agents.holds() && agents.reason() == reasons::AGENTS_DISCONNECTED {
        Wish::is_false(types::READY, reasons::AGENTS_DISCONNECTED, agents.message())
    } else {
        Wish::is_true(types::READY, reasons::AS_SPECIFIED, "")
    };
    let progressing = if up && seen.rolled_out {
        Wish::is_false(types::PROGRESSING, reasons::AS_SPECIFIED, "")
    } else {
        Wish::is_true(types::PROGRESSING, reasons::WAITING_FOR_PODS, "the pod is on its way")
    };
    vec![ready, Wish::is_true(types::RESOLVED, reasons::AS_SPECIFIED, ""), progressing, agents]
}

fn agents(seen: &Seen, up: bool, nodes: u32) -> Wish {
    let kind = types::AGENTS_CONNECTED;
    if nodes == 0 {
        return Wish::is_true(kind, reasons::AS_SPECIFIED, "its pools have no CPU nodes");
    }
    if seen.left_out > 0 {
        let message = format!(
            "the agents of {} nodes cannot be told of it: the Secret `rollwright-agent-links` of \
             the release is full; give some pools to a release in another cluster",
            seen.left_out
        );
        return Wish::is_false(kind, reasons::LINKS_FULL, message);
    }
    match &seen.snapshot {
        Some(snapshot) if snapshot.agents_with_cores() == 0 => {
            let message = format!("none of the {nodes} nodes has its agent connected");
            Wish::is_false(kind, reasons::AGENTS_DISCONNECTED, message)
        }
        Some(snapshot) if snapshot.agents_with_cores() < nodes => {
            let message = format!("{} of {nodes} nodes have", snapshot.agents_with_cores());
            Wish::is_true(kind, reasons::WAITING_FOR_PODS, message)
        }
        Some(_) => Wish::is_true(kind, reasons::AS_SPECIFIED, ""),
        None if up => Wish::unknown(
            kind,
            reasons::UNREACHABLE,
            "the queue does not say what it holds; the controllers' log says why",
        ),
        None => Wish::unknown(kind, reasons::WAITING_FOR_PODS, "the queue is not up"),
    }
}
