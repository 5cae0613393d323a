//! Step three: the reservation pods of a pool. Pure.
//!
//! A reservation is a Guaranteed pod that asks for a node's cores and memory, or for its GPUs,
//! and does nothing: the scheduler then gives them to nobody else. Its cgroup holds the
//! sandboxes; the GPUs are shared by reward services, which Kubernetes' own counting of whole
//! devices would not allow.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, ResourceRequirements, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rollwright_crds::ByteSize;
use rollwright_crds::ResourcePool;
use rollwright_crds::pool::{CpuPool, DockerMode, GpuPool};

use super::claims::QUEUE;
use super::fetch::{NodeUse, Seen};
use super::nodes::{GPU, Requests, has_ended};
use super::validate::{Sort, Validated};
use crate::agents::{AgentMode, AgentRequests};
use crate::apply::{hash, hex};
use crate::hardening;
use crate::labels::{CONFIG_HASH, Component};
use crate::owner;
use crate::settings::Settings;

/// Less is not worth a reservation.
const LEAST_MEMORY: u64 = 64 << 20;
/// Memory is reserved in steps of a MiB.
const STEP: u64 = 1 << 20;

/// Cores of a reservation of GPUs, in thousandths: it does nothing.
const IDLE: &str = "10m";

/// What a node can give to sandboxes or to reward services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) cores: u32,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
}

impl Offer {
    fn holds(self, other: Self) -> bool {
        other.cores <= self.cores && other.memory <= self.memory && other.gpus <= self.gpus
    }
}

/// What other pods of a node ask for, its agent among them even before its pod is there: a
/// reservation that is made first would leave it no room, and it would put out other pods.
fn used(node: &NodeUse, mode: AgentMode, agents: &AgentRequests) -> Requests {
    if node.agent {
        return node.used;
    }
    let (milli, memory) = agents.of(mode);
    node.used.plus(Requests { milli, memory, gpus: 0 })
}

/// What a node can give when its other pods keep what they asked for, and at most what the pool
/// does not keep back (for them, among others); none when that is less than a core or
/// [`LEAST_MEMORY`].
fn offer(node: &NodeUse, cpu: &CpuPool, agents: &AgentRequests) -> Option<Offer> {
    let mode = match cpu.docker {
        DockerMode::Host => AgentMode::Host,
        DockerMode::Dind => AgentMode::Dind,
    };
    let used = used(node, mode, agents);
    let free = node.size.milli.saturating_sub(used.milli) / 1000;
    let ours = node.size.machine_cores.saturating_sub(cpu.reserved_cores);
    let cores = u32::try_from(free).unwrap_or(u32::MAX).min(ours);
    let kept = cpu.reserved_memory.map_or(0, ByteSize::bytes);
    let ours = node.size.machine_memory.saturating_sub(kept);
    let memory = node.size.memory.saturating_sub(used.memory).min(ours) / STEP * STEP;
    (cores > 0 && memory >= LEAST_MEMORY).then_some(Offer { cores, memory, gpus: 0 })
}

/// All GPUs of a node, with the memory that engines may hold; none when another pod has one of
/// them, as nobody can tell which, or when the memory is not there.
fn offer_of_gpus(node: &NodeUse, gpu: &GpuPool, agents: &AgentRequests) -> Option<Offer> {
    let used = used(node, AgentMode::Gpu, agents);
    let free = node.size.memory.saturating_sub(used.memory) / STEP * STEP;
    let memory = gpu.host_memory.map_or(free, |memory| memory.bytes().div_ceil(STEP) * STEP);
    let whole = node.size.gpus > 0 && used.gpus == 0;
    (whole && memory >= LEAST_MEMORY && memory <= free).then_some(Offer {
        cores: 0,
        memory,
        gpus: node.size.gpus,
    })
}

/// What is to change about the reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Pods to make.
    pub(super) make: Vec<Pod>,
    /// Names of pods to delete; some of them are made again when they are gone.
    pub(super) delete: Vec<String>,
    /// What each node gives, by pods that are there or are made.
    pub(super) offers: BTreeMap<String, Offer>,
    /// Nodes that have no room for a reservation.
    pub(super) full: BTreeSet<String>,
}

/// Compares what is there with what should be. A pod that is there stays, whatever other
/// pods come and go: sandboxes live in it. Only a change of what the pool keeps back, or its
/// own end, replaces it.
pub(super) fn reservations(
    pool: &ResourcePool,
    validated: &Validated<'_>,
    seen: &Seen,
    settings: &Settings,
) -> Reservations {
    let mut changes = Reservations::default();
    let agents = &settings.agent_requests;
    let (wanted, config) = match validated.sort {
        Sort::Cpu(cpu) => (seen.ownership.owner.is_some(), config_hash(cpu)),
        // The workers of jobs ask for their GPUs themselves.
        Sort::Gpu(gpu) => {
            let owner = seen.ownership.owner.as_ref();
            (owner.is_some_and(|owner| owner.kind == QUEUE), short_hash(&gpu.host_memory))
        }
        Sort::Quota => return changes,
    };
    let mut there: BTreeMap<&str, &Pod> = seen
        .reservations
        .iter()
        .map(|pod| (pod.metadata.name.as_deref().unwrap_or_default(), &**pod))
        .collect();
    for node in &seen.nodes {
        let name = pod_name(validated.name, &node.name);
        let pod = there.remove(name.as_str());
        let possible = match validated.sort {
            Sort::Cpu(cpu) => offer(node, cpu, agents),
            Sort::Gpu(gpu) => offer_of_gpus(node, gpu, agents),
            Sort::Quota => None,
        };
        match (pod, possible) {
            (Some(pod), _) if wanted && stands(pod, &config) && has_room(pod, possible) => {
                changes.offers.insert(node.name.clone(), held(pod));
                continue;
            }
            (Some(pod), _) if pod.metadata.deletion_timestamp.is_none() => {
                changes.delete.push(name.clone());
            }
            (None, Some(offer)) if wanted && !seen.taken.contains(&name) => {
                changes.make.push(build(pool, &name, &node.name, offer, &config, settings));
            }
            _ => {}
        }
        match possible {
            Some(offer) => drop(changes.offers.insert(node.name.clone(), offer)),
            None => drop(changes.full.insert(node.name.clone())),
        }
    }
    // A node that is not ready comes back, and its sandboxes live in the pod's cgroup.
    for node in seen.silent.iter().filter(|_| wanted) {
        there.remove(pod_name(validated.name, node).as_str());
    }
    // Of nodes that are gone or no longer belong to the pool.
    let strays = there.into_iter().filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none());
    changes.delete.extend(strays.map(|(name, _)| name.to_owned()));
    changes
}

fn stands(pod: &Pod, config: &str) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let built_for = annotations.and_then(|annotations| annotations.get(CONFIG_HASH));
    !has_ended(pod)
        && pod.metadata.deletion_timestamp.is_none()
        && built_for.is_some_and(|of| of == config)
}

/// Whether the scheduler has placed it, or may. Where other pods were quicker it would wait for
/// ever: it is made anew for what they left, since no sandbox lives in it yet.
fn has_room(pod: &Pod, possible: Option<Offer>) -> bool {
    let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    placed || possible.is_some_and(|offer| offer.holds(held(pod)))
}

/// What a reservation holds.
pub(crate) fn held(pod: &Pod) -> Offer {
    let requests = Requests::of(pod);
    let cores = u32::try_from(requests.milli / 1000).unwrap_or(u32::MAX);
    Offer { cores, memory: requests.memory, gpus: requests.gpus }
}

/// What of a pool's spec a reservation follows.
fn config_hash(cpu: &CpuPool) -> String {
    let parts = (cpu.reserved_cores, cpu.reserved_memory.map(ByteSize::bytes));
    short_hash(&parts)
}

fn short_hash<T: serde::Serialize>(of: &T) -> String {
    hex(&hash(of)[..4])
}

/// Names of nodes are longer than a pod's name may be beside the pool's.
pub(crate) fn pod_name(pool: &str, node: &str) -> String {
    format!("{pool}-reservation-{}", short_hash(&node))
}

fn build(
    pool: &ResourcePool,
    name: &str,
    node: &str,
    offer: Offer,
    config: &str,
    settings: &Settings,
) -> Pod {
    let cpu = if offer.gpus > 0 { IDLE.to_owned() } else { offer.cores.to_string() };
    let gpus = (offer.gpus > 0).then(|| (GPU.to_owned(), Quantity(offer.gpus.to_string())));
    let resources: BTreeMap<String, Quantity> = [
        ("cpu".to_owned(), Quantity(cpu)),
        ("memory".to_owned(), Quantity(format!("{}Mi", offer.memory / STEP))),
    ]
    .into_iter()
    .chain(gpus)
    .collect();
    let own = settings.reservation_image.is_none();
    let container = Container {
        name: "reservation".to_owned(),
        image: Some(settings.reservation_image.clone().unwrap_or_else(|| settings.image.clone())),
        image_pull_policy: Some(settings.image_pull_policy.clone()),
        args: own.then(|| vec!["pause".to_owned()]),
        resources: Some(ResourceRequirements {
            requests: Some(resources.clone()),
            limits: Some(resources),
            ..ResourceRequirements::default()
        }),
        security_context: Some(hardening::container()),
        ..Container::default()
    };
    let mut metadata =
        owner::metadata(pool, Component::Reservation, &settings.namespace, name.to_owned());
    metadata.annotations = Some([(CONFIG_HASH.to_owned(), config.to_owned())].into());
    Pod {
        metadata,
        spec: Some(PodSpec {
            affinity: Some(on_node(node)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            containers: vec![container],
            security_context: Some(hardening::pod()),
            priority_class_name: settings.reservation_priority_class.clone(),
            termination_grace_period_seconds: Some(5),
            // Dedicated nodes are tainted, and a reservation belongs to its node as a DaemonSet's
            // pod does.
            tolerations: Some(vec![Toleration {
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            }]),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// That node alone, by the scheduler: it checks that there is room, as `nodeName` would not.
fn on_node(node: &str) -> Affinity {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    let node = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(node), ..Affinity::default() }
}
