//! Cuts what the caches keep down to what somebody reads: 4,000 pods as the API server sends
//! them would be hundreds of megabytes.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{Container, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::labels::{MANAGED_BY, ROLLWRIGHT};

/// All but `managedFields`, which nobody reads.
pub(crate) fn any<K: Resource<DynamicType = ()>>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Labels, taints, whether pods are taken, capacity, allocatable and readiness.
pub(crate) fn node(node: &mut Node) {
    any(node);
    node.metadata.annotations = None;
    node.spec = node.spec.take().map(|spec| NodeSpec {
        taints: spec.taints,
        unschedulable: spec.unschedulable,
        ..NodeSpec::default()
    });
    node.status = node.status.take().map(|status| NodeStatus {
        allocatable: status.allocatable,
        capacity: status.capacity,
        conditions: status.conditions.map(|conditions| {
            let ready = conditions.into_iter().filter(|condition| condition.type_ == "Ready");
            // Heartbeats are no news.
            ready
                .map(|mut ready| {
                    ready.last_heartbeat_time = None;
                    ready
                })
                .collect()
        }),
        ..NodeStatus::default()
    });
}

/// Of others' pods: name, node, requests and phase. Of ours also labels, annotations and status.
pub(crate) fn pod(pod: &mut Pod) {
    any(pod);
    let ours = is_ours(&pod.metadata);
    if !ours {
        pod.metadata.labels = None;
        pod.metadata.annotations = None;
    }
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        node_name: spec.node_name,
        containers: spec.containers.into_iter().map(requests).collect(),
        init_containers: spec.init_containers.map(|all| all.into_iter().map(requests).collect()),
        overhead: spec.overhead,
        resources: spec.resources,
        ..PodSpec::default()
    });
    if !ours {
        pod.status = pod
            .status
            .take()
            .map(|status| PodStatus { phase: status.phase, ..PodStatus::default() });
    }
}

fn requests(container: Container) -> Container {
    Container {
        name: container.name,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    }
}

/// Metadata, status, and the claims, which are applied again as they are.
pub(crate) fn stateful_set(set: &mut StatefulSet) {
    any(set);
    set.spec = set.spec.take().map(|spec| StatefulSetSpec {
        volume_claim_templates: spec.volume_claim_templates,
        ..StatefulSetSpec::default()
    });
}

/// Metadata and status.
pub(crate) fn deployment(deployment: &mut Deployment) {
    any(deployment);
    deployment.spec = None;
}

/// Whether the controllers made it, by its label.
pub(crate) fn is_ours(meta: &ObjectMeta) -> bool {
    let managed_by = meta.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
    managed_by.is_some_and(|by| by == ROLLWRIGHT)
}
