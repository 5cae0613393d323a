//! A worker over several nodes, as a `LeaderWorkerSet` of one group: pure.
//!
//! Field names as in `leaderworkerset.x-k8s.io/v1`; the API is not ours and need not be
//! installed, so the object is built as JSON.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

use super::plan::Placement;
use super::worker::{Part, Template};

/// Group and version that have to be installed.
pub(super) const GROUP_VERSION: &str = "leaderworkerset.x-k8s.io/v1";
/// On its pods: the set's name.
const SET: &str = "leaderworkerset.sigs.k8s.io/name";
/// On its pods: which of the group; 0 leads.
const INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// The kind.
pub(super) fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet");
    ApiResource::from_gvk(&kind)
}

/// A worker over the nodes of `placement`.
pub(super) fn build(
    template: &Template<'_>,
    name: &str,
    placement: &Placement,
) -> Result<DynamicObject, serde_json::Error> {
    let nodes = placement.nodes.len();
    let leader = template.pod_template(placement, Part::Leader(nodes));
    let follower = template.pod_template(placement, Part::Follower(nodes));
    serde_json::from_value(json!({
        "apiVersion": GROUP_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": name,
            "namespace": template.namespace,
            "labels": template.labels_of(&placement.kind),
            "annotations": template.annotations_of(placement),
            "ownerReferences": [template.owner],
        },
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": nodes,
                // One of them alone is of no use.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": follower,
            },
        },
    }))
}

/// The set that a pod belongs to, and whether it leads.
pub(crate) fn set_of(meta: &ObjectMeta) -> Option<(&str, bool)> {
    let labels = meta.labels.as_ref()?;
    let leads = labels.get(INDEX).is_some_and(|index| index == "0");
    Some((labels.get(SET)?, leads))
}

/// What is known of a set whose first pod is not there yet.
pub(super) fn as_pod(set: &DynamicObject) -> Pod {
    Pod { metadata: set.metadata.clone(), ..Pod::default() }
}
