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

use crate::context::Context;
use crate::controller::{Controller, all, those};
use crate::error::{CallError, Categorised, named};
use crate::labels::{AGENT, POOL};
use crate::pool::{Kubelet, is_bound, serves};
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

/// Our labels of a node: the pool, and the agent.
type Labels<'a> = (Option<&'a str>, Option<&'a str>);

/// What the labels should be. `unreadable` says of which pools nobody can tell what they are:
/// a node that serves one goes on.
fn wished<'a>(
    node: &'a Node,
    pools: &'a [Arc<ResourcePool>],
    unreadable: impl Fn(&str) -> bool,
) -> Labels<'a> {
    if present(node).0.is_some_and(unreadable) {
        return present(node);
    }
    let bound = pools.iter().map(|pool| &**pool).filter(|pool| is_bound(pool));
    let Some(pool) = serves(node, bound) else { return (None, None) };
    let agent = pool.spec.cpu.as_ref().map(|cpu| match cpu.docker {
        DockerMode::Host => "host",
        DockerMode::Dind => "dind",
    });
    (pool.metadata.name.as_deref(), agent)
}

/// What they are.
fn present(node: &Node) -> Labels<'_> {
    let label = |key| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map(String::as_str)
    };
    (label(POOL), label(AGENT))
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
            What::Pool(pool) if pool.spec.cpu.is_some() => {
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
        let (pool, agent) = wished(&node, &pools, |pool| stores.is_unreadable_pool(pool));
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if (pool, agent) != present(&node) {
            // A null takes a label away, whoever set it.
            let patch = json!({"metadata": {"labels": {POOL: pool, AGENT: agent}}});
            let api = Api::<Node>::all(context.client.clone());
            let params = PatchParams::default();
            let patch = Patch::Merge(&patch);
            let request = api.patch_metadata(name, &params, &patch);
            let what = || named("Node", None, name);
            context.calls.call("patch", what, request).await?;
            tracing::info!(node = name, pool, agent, "a node serves another pool");
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
