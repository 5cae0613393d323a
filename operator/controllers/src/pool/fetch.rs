//! Step one: what a pool depends on, from the caches alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::ObjectRef;
use rollwright_crds::ResourcePool;
use rollwright_crds::pool::PoolOwner;

use super::claims::{self, Ownership, QUEUE};
use super::nodes::{self, Requests, Size, compatible, is_ready, matches, selector};
use crate::context::Context;
use crate::labels;
use crate::observed::{Observed, QueueSnapshot};
use crate::owner;
use crate::stores::Stores;

/// What a pool depends on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Whose it is, and who else wants it.
    pub(super) ownership: Ownership,
    /// Nodes that match, are ready, and do not serve another CPU pool.
    pub(super) nodes: Vec<NodeUse>,
    /// Nodes that match and are not ready: what they hold for the pool they keep.
    pub(super) silent: BTreeSet<String>,
    /// Other pools of the same type that match nodes of this one, with how many.
    pub(super) overlaps: BTreeMap<String, u32>,
    /// Its reservation pods.
    pub(super) reservations: Vec<Arc<Pod>>,
    /// Names that reservations of others have: of a pool of the same name that is gone.
    pub(super) taken: BTreeSet<String>,
    /// What its queue said last.
    pub(super) snapshot: Option<Arc<QueueSnapshot>>,
}

/// A node and who uses it.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeUse {
    pub(super) name: String,
    pub(super) size: Size,
    /// All pods but our reservations.
    pub(super) used: Requests,
    /// An agent is among them.
    pub(super) agent: bool,
    /// Pods that are neither reservations nor of the node itself ask for CPU.
    pub(super) others: bool,
    pub(super) kubelet: Option<Arc<super::Kubelet>>,
}

pub(super) fn seen(pool: &ResourcePool, context: &Context) -> Seen {
    gather(pool, &context.stores, &context.observed, &context.settings.namespace)
}

/// `namespace` is that of the release.
pub(super) fn gather(
    pool: &ResourcePool,
    stores: &Stores,
    observed: &Observed,
    namespace: &str,
) -> Seen {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let incumbent = pool.status.as_ref().and_then(|status| status.bound_to.as_ref());
    let holders = match pool.spec.gpu {
        Some(_) => stores.index.read().holders(name).cloned().collect(),
        None => BTreeSet::new(),
    };
    let (queues, jobs) = (stores.queues.state(), stores.jobs.state());
    let claims = claims::claims(name, &pool.spec, &queues, &jobs, &holders);
    let stays = incumbent.is_some_and(|of: &PoolOwner| {
        let holds = || holders.contains(&(of.namespace.clone(), of.name.clone()));
        stores.malformed.contains(&of.kind, &of.namespace, &of.name)
            || (of.kind == claims::JOB && holds())
            || (of.kind == QUEUE && claims::runs_on(of, name, stores))
    });
    let ownership = claims::decide(claims, incumbent, stays);
    let snapshot = ownership
        .owner
        .as_ref()
        .filter(|owner| owner.kind == QUEUE)
        .and_then(|owner| observed.queues.get(&(owner.namespace.clone(), owner.name.clone())));
    let found = match selector(&pool.spec) {
        Some(selector) => {
            let bound = ownership.owner.is_some();
            nodes_of(pool, selector, bound, stores, observed, namespace)
        }
        None => Found::default(),
    };
    let uid = pool.metadata.uid.as_deref();
    let (reservations, others): (Vec<_>, Vec<_>) = reservations(stores, namespace)
        .into_iter()
        .partition(|pod| owner::is_controlled_by(&pod.metadata, uid));
    let taken = others.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
    let Found { nodes, silent, overlaps } = found;
    let nodes = nodes.into_values().collect();
    Seen { ownership, nodes, silent, overlaps, reservations, taken, snapshot }
}

/// The reservation pods of a release.
fn reservations(stores: &Stores, namespace: &str) -> Vec<Arc<Pod>> {
    let names: Vec<ObjectRef<Pod>> = {
        let index = stores.index.read();
        let ours = index.reservations().filter(|(of, _)| of == namespace);
        ours.map(|(of, name)| ObjectRef::new(name).within(of)).collect()
    };
    names.iter().filter_map(|pod| stores.pods.get(pod)).collect()
}

/// Nodes of a pool, by name.
#[derive(Default)]
struct Found {
    nodes: BTreeMap<String, NodeUse>,
    silent: BTreeSet<String>,
    overlaps: BTreeMap<String, u32>,
}

fn nodes_of(
    pool: &ResourcePool,
    selector: &BTreeMap<String, String>,
    bound: bool,
    stores: &Stores,
    observed: &Observed,
    namespace: &str,
) -> Found {
    // This pool as it is about to be, beside the others as they are.
    let rivals = rivals(pool, selector, stores);
    let mut overlaps = BTreeMap::new();
    let mut nodes: BTreeMap<String, NodeUse> = BTreeMap::new();
    let mut silent = BTreeSet::new();
    for node in stores.nodes.state_filter(|node| matches(selector, node)) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let on_node: Vec<&Arc<ResourcePool>> =
            rivals.iter().filter(|rival| matched(rival, &node)).collect();
        for rival in &on_node {
            *overlaps.entry(rival.metadata.name.clone().unwrap_or_default()).or_default() += 1;
        }
        let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(labels::POOL));
        let elsewhere = label.is_some_and(|pool| stores.is_unreadable_pool(pool));
        if bound && (elsewhere || !is_served(pool, &on_node, &node)) {
            continue;
        }
        if is_ready(&node) {
            let (size, kubelet) = (Size::of(&node), observed.kubelets.get(&name));
            nodes.insert(name.clone(), NodeUse { name, size, kubelet, ..NodeUse::default() });
        } else {
            silent.insert(name);
        }
    }
    let index = stores.index.read();
    for (name, node) in &mut nodes {
        for (pod, held) in index.on(name) {
            if !held.bound || (held.reserves && pod.0 == namespace) {
                continue;
            }
            node.used = node.used.plus(held.requests);
            node.agent |= held.agent && pod.0 == namespace;
            // A queue or gateway of ours disturbs sandboxes as much as anybody's pod.
            node.others |= !held.of_node && held.requests.milli > 0;
        }
    }
    Found { nodes, silent, overlaps }
}

/// Other pools of the same type that could match a node of this one.
fn rivals(
    pool: &ResourcePool,
    selector: &BTreeMap<String, String>,
    stores: &Stores,
) -> Vec<Arc<ResourcePool>> {
    stores.pools.state_filter(|other| {
        other.metadata.name != pool.metadata.name
            && other.spec.cpu.is_some() == pool.spec.cpu.is_some()
            && nodes::selector(&other.spec).is_some_and(|of| compatible(of, selector))
    })
}

fn matched(pool: &ResourcePool, node: &Node) -> bool {
    selector(&pool.spec).is_some_and(|selector| matches(selector, node))
}

/// Whether a node is this pool's rather than one of the rivals that match it and are bound.
fn is_served(pool: &ResourcePool, rivals: &[&Arc<ResourcePool>], node: &Node) -> bool {
    if pool.spec.cpu.is_none() || rivals.is_empty() {
        return true;
    }
    let bound = rivals.iter().map(|rival| &***rival).filter(|rival| super::is_bound(rival));
    nodes::serves(node, bound.chain([pool]))
        .is_some_and(|served| served.metadata.name == pool.metadata.name)
}
