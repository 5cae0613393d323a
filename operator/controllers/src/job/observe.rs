//! From pods, nodes and what the gateway says to workers and room: pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use k8s_openapi::jiff::Timestamp;
use rollwright_crds::pool::GpuPool;

use super::fleet::{Kind, Stage, Worker};
use super::worker::{CLASS, DRAINING, NODES, TEMPLATE};
use crate::gateway_client::WorkerState;
use crate::labels;
use rollwright_core::router::Role;

/// Restarts after which a worker that does not come up is removed; with the kubelet's growing
/// waits (10 s, doubled up to 5 min) that is after some five minutes.
pub const MOST_RESTARTS: i32 = 5;

/// The kubelet's words for a container that is on its way.
const PREPARING_CONTAINER: &str = "ContainerCreating";
const PREPARING_POD: &str = "PodInitializing";

/// What the gateway said, or that it said nothing.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Its workers by name; absent where it did not answer.
    pub workers: Option<BTreeMap<String, WorkerState>>,
}

/// What is asked of a worker's life beside its pod.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time.
    pub now: Timestamp,
    /// How long a worker may take over what it has in flight.
    pub drain: Duration,
}

/// A worker and what the gateway is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// As the plan sees it.
    pub worker: Worker,
    /// Class of its GPUs.
    pub class: String,
    /// Where its engine listens, once it has an address.
    pub ip: Option<String>,
    /// Its engine has been up since its process began: the gateway is to know it.
    pub started: bool,
    /// Why it does not come up, in the kubelet's or the scheduler's words.
    pub trouble: Option<String>,
    /// What keeps it from serving, if that is bad enough to give it up in the end.
    pub trial: Option<Trial>,
    /// It failed for good, by what its node or its own program did.
    pub failed: bool,
    /// Policy version that it holds.
    pub version: Option<i64>,
}

/// A state that is only borne for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// Its node takes no new pods, and it is not on it yet.
    Closed,
    /// The scheduler does not let it on its node.
    Refused,
    /// Its container does not begin: no image, no such secret.
    NotCreated,
    /// Its container is being prepared.
    Preparing,
    /// Its engine answers the kubelet, and not the gateway.
    Unhealthy,
}

impl Trial {
    /// How long it is borne.
    pub(super) fn patience(self) -> Duration {
        match self {
            Self::Closed => Duration::ZERO,
            Self::Refused | Self::NotCreated | Self::Unhealthy => Duration::from_mins(5),
            // Images of engines are large.
            Self::Preparing => Duration::from_hours(1),
        }
    }
}

/// The worker that a pod is, or leads. `None` where its labels are not a worker's. `node` finds a
/// node of the cluster.
pub fn worker(
    pod: &Pod,
    name: &str,
    template: impl Fn(&Kind) -> String,
    node: impl Fn(&str) -> Option<Arc<KubeNode>>,
    heard: &Heard,
    clock: Clock,
) -> Option<Seen> {
    let kind = kind_of(pod)?;
    let places = nodes_of(pod);
    let said = heard.workers.as_ref().and_then(|workers| workers.get(name));
    let kubelet = pod.status.as_ref();
    let ready = kubelet.and_then(|status| status.conditions.as_ref()).is_some_and(|conditions| {
        conditions.iter().any(|of| of.type_ == "Ready" && of.status == "True")
    });
    let ip = kubelet.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty());
    let draining = draining_since(pod);
    let phase = kubelet.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let lost = !places.is_empty() && !places.iter().any(|place| node(place).is_some());
    let stage = if pod.metadata.deletion_timestamp.is_some() {
        Stage::Leaving
    } else if matches!(phase, "Failed" | "Succeeded") || lost {
        Stage::Ended
    } else if draining.is_some() {
        Stage::Draining
    } else if !ready && restarts(pod) >= MOST_RESTARTS {
        Stage::Failing
    } else if ready && (heard.workers.is_none() || said.is_some_and(serves)) {
        Stage::Serving
    } else {
        Stage::Starting
    };
    let heard_now = heard.workers.is_some();
    let idle = match draining {
        Some(since) => {
            let over = clock.now.duration_since(since).unsigned_abs() >= clock.drain;
            let drained =
                said.is_none_or(|worker| worker.state == "drained" && worker.in_flight == 0);
            over || (heard_now && drained) || ip.is_none()
        }
        None => ip.is_none() || (heard_now && said.is_none()),
    };
    let labels = pod.metadata.labels.as_ref();
    let current = labels.and_then(|all| all.get(TEMPLATE)) == Some(&template(&kind));
    let worker = Worker { name: name.to_owned(), kind, nodes: places, stage, current, idle };
    let trouble = if ready { None } else { trouble(pod) };
    let trial = match (stage, ready) {
        (Stage::Starting, true) => said.and_then(unhealthy),
        (Stage::Starting, false) => trial(pod, &worker.nodes, node),
        _ => None,
    };
    let failed = stage == Stage::Failing || phase == "Failed";
    let version = said.and_then(|worker| worker.version);
    Some(Seen {
        worker,
        class: annotation(pod, CLASS).to_owned(),
        ip,
        started: started(pod),
        trouble,
        trial,
        failed,
        version,
    })
}

/// States in which a worker is counted on, an update of its weights included.
pub(super) fn serves(state: &WorkerState) -> bool {
    matches!(
        state.state.as_str(),
        "serving" | "updating" | "pulling" | "suspended" | "reserved" | "ready" | "held"
    )
}

fn unhealthy(state: &WorkerState) -> Option<Trial> {
    let states = ["unhealthy", "circuit_open", "probing", "out"];
    states.contains(&state.state.as_str()).then_some(Trial::Unhealthy)
}

fn trial(
    pod: &Pod,
    places: &[String],
    node: impl Fn(&str) -> Option<Arc<KubeNode>>,
) -> Option<Trial> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let refused = conditions.into_iter().find(|of| of.type_ == "PodScheduled");
    if let Some(refused) = refused.filter(|of| of.status == "False") {
        // It waits for leave of a queue of Kubernetes' own; that is no fault.
        if refused.reason.as_deref() == Some("SchedulingGated") {
            return None;
        }
        let closed = |place: &String| node(place).is_some_and(|node| !is_open(&node));
        return Some(if places.iter().any(closed) { Trial::Closed } else { Trial::Refused });
    }
    let containers = status.container_statuses.iter().flatten();
    let mut waiting = containers.filter_map(|of| of.state.as_ref()?.waiting.as_ref());
    match waiting.find_map(|of| of.reason.as_deref())? {
        PREPARING_CONTAINER | PREPARING_POD => Some(Trial::Preparing),
        // Restarts are counted.
        "CrashLoopBackOff" => None,
        _ => Some(Trial::NotCreated),
    }
}

fn kind_of(pod: &Pod) -> Option<Kind> {
    let labels = pod.metadata.labels.as_ref()?;
    Some(Kind {
        pool: labels.get(labels::POOL)?.parse().ok()?,
        role: Role::parse(labels.get(labels::ROLE)?)?,
        degree: labels.get(labels::DEGREE)?.parse().ok()?,
    })
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> &'a str {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(key)).map(String::as_str).unwrap_or_default()
}

/// The nodes that a worker's pod is for.
pub fn nodes_of(pod: &Pod) -> Vec<String> {
    let nodes = annotation(pod, NODES);
    nodes.split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect()
}

/// Since when it is drained; a time that cannot be read is the beginning of time.
pub fn draining_since(pod: &Pod) -> Option<Timestamp> {
    let since = pod.metadata.annotations.as_ref()?.get(DRAINING)?;
    Some(since.parse().unwrap_or(Timestamp::UNIX_EPOCH))
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).max().unwrap_or(0)
}

fn started(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.into_iter().any(|status| status.started == Some(true))
}

fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    for container in status.container_statuses.iter().flatten() {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let Some(reason) = waiting.and_then(|waiting| waiting.reason.as_deref()) else { continue };
        if !matches!(reason, PREPARING_CONTAINER | PREPARING_POD) {
            let message = waiting.and_then(|waiting| waiting.message.as_deref());
            return Some(match message {
                Some(message) => format!("{reason}: {message}"),
                None => reason.to_owned(),
            });
        }
    }
    let scheduled = status.conditions.iter().flatten().find(|of| of.type_ == "PodScheduled")?;
    let refused = scheduled.status == "False";
    refused.then(|| scheduled.message.clone().or_else(|| scheduled.reason.clone())).flatten()
}

/// Whether a node is one of a pool's, by its labels.
pub fn selects(pool: &GpuPool, node: &KubeNode) -> bool {
    let labels = node.metadata.labels.as_ref();
    let has =
        |(key, value): (&String, &String)| labels.and_then(|labels| labels.get(key)) == Some(value);
    pool.node_selector.iter().all(has)
}

/// Whether a node is ready, and open to new pods.
pub(crate) fn is_open(node: &KubeNode) -> bool {
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|of| of.type_ == "Ready" && of.status == "True");
    ready && !unschedulable && node.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests;
