//! What the controllers see of the cluster: one shared cache a kind, each object cut down to
//! what somebody reads.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use rollwright_crds::{ActionQueue, ResourcePool, RewardService, RolloutJob};
use std::sync::Arc;

use crate::index::Index;
use crate::malformed::Malformed;
use crate::secrets::Secrets;

/// Readers of the caches. They lag behind the API server and never call it.
#[derive(Clone, Debug)]
pub struct Stores {
    /// All ResourcePools.
    pub pools: Store<ResourcePool>,
    /// All RolloutJobs.
    pub jobs: Store<RolloutJob>,
    /// All ActionQueues.
    pub queues: Store<ActionQueue>,
    /// All RewardServices.
    pub rewards: Store<RewardService>,
    /// All nodes: labels, taints, `unschedulable`, capacity, allocatable, readiness.
    pub nodes: Store<Node>,
    /// All pods. Of others': node, owner, requests and phase. Of ours also labels, annotations
    /// and status.
    pub pods: Store<Pod>,
    /// Our StatefulSets: metadata and status.
    pub stateful_sets: Store<StatefulSet>,
    /// Our Deployments: metadata and status.
    pub deployments: Store<Deployment>,
    /// Our Services: metadata.
    pub services: Store<PartialObjectMeta<Service>>,
    /// Our ConfigMaps: metadata.
    pub config_maps: Store<PartialObjectMeta<ConfigMap>>,
    /// Our NetworkPolicies: metadata.
    pub network_policies: Store<PartialObjectMeta<NetworkPolicy>>,
    /// Secrets by name, as they were when somebody asked: no watch.
    pub secrets: Secrets,
    /// Custom resources that do not parse.
    pub malformed: Malformed,
    /// Pods and nodes by what is asked of them, and the books of GPUs.
    pub index: Index,
}

impl Stores {
    /// A pool by its name.
    pub fn pool(&self, name: &str) -> Option<Arc<ResourcePool>> {
        self.pools.get(&ObjectRef::new(name))
    }

    /// Whether there is such a pool that does not parse, and no version of it is known: nobody
    /// can tell what it says, so what it has stays as it is.
    pub fn is_unreadable_pool(&self, name: &str) -> bool {
        self.malformed.contains("ResourcePool", "", name) && self.pool(name).is_none()
    }

    /// A queue by its namespace and name.
    pub fn queue(&self, namespace: &str, name: &str) -> Option<Arc<ActionQueue>> {
        self.queues.get(&ObjectRef::new(name).within(namespace))
    }

    /// A reward service by its namespace and name.
    pub fn reward(&self, namespace: &str, name: &str) -> Option<Arc<RewardService>> {
        self.rewards.get(&ObjectRef::new(name).within(namespace))
    }
}

/// Reference to any object by its metadata.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectRef<K> {
    ObjectRef::from_obj(object)
}
