//! The nodes of each GPU pool, kept up to date node by node: pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use rollwright_crds::ResourcePool;

use crate::job::observe::is_open;
use crate::pool::{Size, matches};

/// A node of a GPU pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuNode {
    /// GPUs that pods may have.
    pub(crate) gpus: u32,
    /// Ready, and open to new pods.
    pub(crate) open: bool,
}

impl GpuNode {
    /// None where a node has no GPUs.
    fn of(node: &Node) -> Option<Self> {
        let gpus = Size::of(node).gpus;
        (gpus > 0).then(|| Self { gpus, open: is_open(node) })
    }
}

/// The nodes of all GPU pools.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GpuNodes(HashMap<String, OfPool>);

#[derive(Debug, PartialEq, Eq)]
struct OfPool {
    selector: BTreeMap<String, String>,
    nodes: BTreeMap<String, GpuNode>,
}

impl OfPool {
    fn note(&mut self, node: &Node) {
        let found = GpuNode::of(node).filter(|_| matches(&self.selector, node));
        match found {
            Some(found) => self.nodes.insert(node.name_any(), found),
            None => self.nodes.remove(&node.name_any()),
        };
    }
}

impl GpuNodes {
    pub(super) fn of(&self, pool: &str) -> Option<&BTreeMap<String, GpuNode>> {
        self.0.get(pool).map(|pool| &pool.nodes)
    }

    pub(super) fn note(&mut self, node: &Node) {
        for pool in self.0.values_mut() {
            pool.note(node);
        }
    }

    pub(super) fn forget(&mut self, node: &str) {
        for pool in self.0.values_mut() {
            pool.nodes.remove(node);
        }
    }

    /// A pool that is new, or says something else; `all` are the nodes there are.
    pub(super) fn note_pool(&mut self, pool: &ResourcePool, all: impl FnOnce() -> Vec<Arc<Node>>) {
        let name = pool.name_any();
        let Some(gpu) = &pool.spec.gpu else { return self.forget_pool(&name) };
        let selector = gpu.node_selector.clone();
        if self.0.get(&name).is_some_and(|known| known.selector == selector) {
            return;
        }
        let mut found = OfPool { selector, nodes: BTreeMap::new() };
        for node in all() {
            found.note(&node);
        }
        self.0.insert(name, found);
    }

    pub(super) fn forget_pool(&mut self, pool: &str) {
        self.0.remove(pool);
    }
}

#[cfg(test)]
pub(super) mod tests;
