//! Node labels: which pool a node serves and which agent runs there. No finalizer is needed:
//! a label of a pool that is gone is seen for what it is, and taken away.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use rollwright_crds::ResourcePool;
use rollwright_crds::pool::DockerMode;
use serde_json::json;

use crate::agents::AgentMode;
use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised, named};
use crate::labels::{AGENT, GPU_POOL, POOL};
use crate::pool::{Kubelet, is_bound, queue_of, serves, serves_gpus};
use crate::stores::Stores;
use crate::watch::{Change, What};

/// How often a kubelet is asked for its configuration.
const LOOK: Duration = Duration::from_hours(1);
/// The same while it does not say.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The controller of node labels.
pub struct Nodes;

/// What can go wrong with a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A request to the API server failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Categorised for NodeError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
        }
    }
}

/// Our labels of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Labels<'a> {
    /// The CPU pool.
    pool: Option<&'a str>,
    /// The GPU pool of a queue.
    gpu_pool: Option<&'a str>,
    /// The agent.
    agent: Option<&'a str>,
}

/// What the labels should be. `unreadable` says of which pools nobody can tell what they are:
/// a node that serves one goes on.
fn wished<'a>(
    node: &'a Node,
    pools: &'a [Arc<ResourcePool>],
    unreadable: impl Fn(&str) -> bool,
) -> Labels<'a> {
    let now = present(node);
    if now.pool.is_some_and(&unreadable) || now.gpu_pool.is_some_and(&unreadable) {
        return now;
    }
    let bound = || pools.iter().map(|pool| &**pool).filter(|pool| is_bound(pool));
    let sandboxes = serves(node, bound());
    // One agent, which works for one queue, with the node's own Docker.
    let goes_with = |gpus: &&ResourcePool| {
        sandboxes.is_none_or(|of| !is_in_docker(of) && queue_of(of) == queue_of(gpus))
    };
    let gpus = serves_gpus(node, bound()).filter(goes_with);
    let mode = match (sandboxes, gpus) {
        (_, Some(_)) => Some(AgentMode::Gpu),
        (Some(of), None) if is_in_docker(of) => Some(AgentMode::Dind),
        (Some(_), None) => Some(AgentMode::Host),
        (None, None) => None,
    };
    Labels {
        pool: sandboxes.and_then(|pool| pool.metadata.name.as_deref()),
        gpu_pool: gpus.and_then(|pool| pool.metadata.name.as_deref()),
        agent: mode.map(AgentMode::as_str),
    }
}

fn is_in_docker(pool: &ResourcePool) -> bool {
    pool.spec.cpu.as_ref().is_some_and(|cpu| cpu.docker == DockerMode::Dind)
}

/// What they are.
fn present(node: &Node) -> Labels<'_> {
    let label = |key| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map(String::as_str)
    };
    Labels { pool: label(POOL), gpu_pool: label(GPU_POOL), agent: label(AGENT) }
}

impl Controller for Nodes {
    type Object = Node;
    type Error = NodeError;

    const NAME: &'static str = "node";

    fn store(stores: &Stores) -> &Store<Node> {
        &stores.nodes
    }

    fn affected(change: &Change<'_>, stores: &Stores) -> Vec<ObjectRef<Node>> {
        match change.what {
            What::Node(node) if !change.gone => vec![ObjectRef::from_obj(node)],
            What::Pool(pool) if pool.spec.quota.is_none() => {
                let pools = stores.pools.state();
                let unreadable = |pool: &str| stores.is_unreadable_pool(pool);
                those(&stores.nodes, |node| wished(node, &pools, unreadable) != present(node))
            }
            What::Everything => all(&stores.nodes),
            _ => Vec::new(),
        }
    }

    async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Result<Action, NodeError> {
        let pools = context.stores.pools.state();
        let stores = &context.stores;
        let labels = wished(&node, &pools, |pool| stores.is_unreadable_pool(pool));
        let Labels { pool, gpu_pool, agent } = labels;
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if labels != present(&node) {
            // A null takes a label away, whoever set it.
            let patch =
                json!({"metadata": {"labels": {POOL: pool, GPU_POOL: gpu_pool, AGENT: agent}}});
            let api = Api::<Node>::all(context.client.clone());
            let params = PatchParams::default();
            let patch = Patch::Merge(&patch);
            let request = api.patch_metadata(name, &params, &patch);
            let what = || named("Node", None, name);
            context.calls.call("patch", what, request).await?;
            tracing::info!(node = name, pool, gpu_pool, agent, "a node serves another pool");
        }
        if pool.is_none() || !context.read_kubelet {
            context.observed.kubelets.remove(&name.to_owned());
            return Ok(Action::await_change());
        }
        match kubelet(name, &context).await {
            Ok(kubelet) => {
                context.observed.kubelets.put(name.to_owned(), kubelet);
                Ok(Action::requeue(LOOK))
            }
            Err(error) => {
                tracing::warn!(node = name, error, "the kubelet's configuration is unknown");
                Ok(Action::requeue(LOOK_AGAIN))
            }
        }
    }
}

/// What a kubelet says of itself.
async fn kubelet(node: &str, context: &Context) -> Result<Kubelet, String> {
    let path = format!("/api/v1/nodes/{node}/proxy/configz");
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    let request = context.client.request_text(request);
    let what = || named("configuration of the kubelet on Node", None, node);
    let text = context.calls.call("get", what, request).await.map_err(|error| error.to_string())?;
    Kubelet::parse(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
