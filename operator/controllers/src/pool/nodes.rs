//! Nodes as a pool sees them, and which pool a node serves.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use rollwright_crds::{ResourcePool, ResourcePoolSpec};

use crate::labels::{self, COMPONENT, Component};
use crate::quantity::{milli, units};
use crate::trim::is_ours;

/// The extended resource of GPUs.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// The labels that a pool's nodes carry; none for a quota pool.
pub(crate) fn selector(spec: &ResourcePoolSpec) -> Option<&BTreeMap<String, String>> {
    let cpu = spec.cpu.as_ref().map(|cpu| &cpu.node_selector);
    cpu.or(spec.gpu.as_ref().map(|gpu| &gpu.node_selector))
}

/// Whether a node carries all labels of a selector.
pub(crate) fn matches(selector: &BTreeMap<String, String>, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// Whether some node could carry the labels of both.
pub(super) fn compatible(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> bool {
    a.iter().all(|(key, value)| b.get(key).is_none_or(|other| other == value))
}

/// Whether the kubelet says that it takes pods.
pub(super) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Among CPU pools that match a node and are bound, the one that it serves: the one that it
/// is labelled with, else the oldest, then the first by name. Its sandboxes stay where they are
/// when a pool comes along.
pub(crate) fn serves<'a>(
    node: &Node,
    pools: impl IntoIterator<Item = &'a ResourcePool>,
) -> Option<&'a ResourcePool> {
    let fits = |pool: &&ResourcePool| {
        let cpu = pool.spec.cpu.as_ref();
        cpu.is_some_and(|cpu| matches(&cpu.node_selector, node))
    };
    first(node, labels::POOL, pools.into_iter().filter(fits))
}

/// The same among GPU pools: of those that a queue owns.
pub(crate) fn serves_gpus<'a>(
    node: &Node,
    pools: impl IntoIterator<Item = &'a ResourcePool>,
) -> Option<&'a ResourcePool> {
    let fits = |pool: &&ResourcePool| {
        let gpu = pool.spec.gpu.as_ref();
        gpu.is_some_and(|gpu| matches(&gpu.node_selector, node)) && super::queue_of(pool).is_some()
    };
    first(node, labels::GPU_POOL, pools.into_iter().filter(fits))
}

/// The pool that a node is labelled with, else the oldest, then the first by name.
fn first<'a>(
    node: &Node,
    label: &str,
    pools: impl Iterator<Item = &'a ResourcePool>,
) -> Option<&'a ResourcePool> {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(label));
    pools.min_by_key(|pool| {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let created = pool.metadata.creation_timestamp.as_ref();
        let created = created.map_or(Timestamp::MAX, |time| time.0);
        (label.is_none_or(|label| label != name), created, name)
    })
}

/// What a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Thousandths of cores that pods may have.
    pub(crate) milli: u64,
    /// Bytes that pods may have.
    pub(crate) memory: u64,
    /// All cores of the machine.
    pub(crate) machine_cores: u32,
    /// All memory of the machine.
    pub(crate) machine_memory: u64,
    /// GPUs that pods may have.
    pub(crate) gpus: u32,
}

impl Size {
    pub(crate) fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let capacity = status.and_then(|status| status.capacity.as_ref());
        let read =
            |of: Option<&BTreeMap<String, Quantity>>, key, parse: fn(&Quantity) -> Option<u64>| {
                of.and_then(|of| of.get(key)).and_then(parse).unwrap_or(0)
            };
        let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            milli: read(allocatable, "cpu", milli),
            memory: read(allocatable, "memory", units),
            machine_cores: count(read(capacity, "cpu", units)),
            machine_memory: read(capacity, "memory", units),
            gpus: count(read(allocatable, GPU, units)),
        }
    }
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) milli: u64,
    pub(crate) memory: u64,
    pub(crate) gpus: u32,
}

impl Requests {
    /// Containers and sidecars together, or the largest init container if that is more, and
    /// overhead: as the scheduler counts.
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let mut sum = spec.containers.iter().fold(Self::default(), |sum, container| {
            sum.plus(Self::of_container(container.resources.as_ref()))
        });
        let mut before = Self::default();
        for init in spec.init_containers.iter().flatten() {
            let one = Self::of_container(init.resources.as_ref());
            if init.restart_policy.as_deref() == Some("Always") {
                sum = sum.plus(one);
            } else {
                before = before.max(one);
            }
        }
        let whole = Self::of_container(spec.resources.as_ref());
        let overhead = spec.overhead.as_ref();
        let overhead = Self::read(|key| overhead.and_then(|overhead| overhead.get(key)));
        sum.max(before).max(whole).plus(overhead)
    }

    fn of_container(resources: Option<&ResourceRequirements>) -> Self {
        let Some(resources) = resources else { return Self::default() };
        let (requests, limits) = (resources.requests.as_ref(), resources.limits.as_ref());
        Self::read(|key| {
            let requested = requests.and_then(|requests| requests.get(key));
            requested.or_else(|| limits.and_then(|limits| limits.get(key)))
        })
    }

    fn read<'a>(get: impl Fn(&str) -> Option<&'a Quantity>) -> Self {
        let gpus = get(GPU).and_then(units).unwrap_or(0);
        Self {
            milli: get("cpu").and_then(milli).unwrap_or(0),
            memory: get("memory").and_then(units).unwrap_or(0),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            milli: self.milli.saturating_add(other.milli),
            memory: self.memory.saturating_add(other.memory),
            gpus: self.gpus.saturating_add(other.gpus),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            milli: self.milli.max(other.milli),
            memory: self.memory.max(other.memory),
            gpus: self.gpus.max(other.gpus),
        }
    }
}

/// Whether a pod has ended and holds nothing any more.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether a pod belongs to the node itself: of a DaemonSet, or a static one.
pub(crate) fn is_of_node(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
}

/// Whether a pod is a reservation: those are in the namespace of the release.
pub(crate) fn is_reservation(pod: &Pod, namespace: &str) -> bool {
    let component = pod.metadata.labels.as_ref().and_then(|labels| labels.get(COMPONENT));
    is_ours(&pod.metadata)
        && pod.metadata.namespace.as_deref() == Some(namespace)
        && component.is_some_and(|of| of == Component::Reservation.as_str())
}
