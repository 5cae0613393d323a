//! The Secret by which agents learn which queue to dial, as whom, and what of the node is
//! theirs. One for the release, made of all queues, pools and nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::runtime::reflector::ObjectRef;
use rollwright_crds::ResourcePool;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::apply::Site;
use crate::call;
use crate::context::Context;
use crate::error::{CallError, Categorised};
use crate::owner;
use crate::pool::{is_bound, is_reservation, is_running, pod_name, queue_of, serves, serves_gpus};
use crate::queue::Names;
use crate::watch::{Change, Listener, What};

mod build;
#[cfg(test)]
mod tests;

use build::{Entry, Links, MOST, SECRET, Served, Told, pool_labels};

const LINKS: Site = Site("rollwright-agent-links");
/// Its name in metrics and for back-off.
const NAME: &str = "agent-links";
/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// No watch tells of certificates: they are looked for this often.
const LOOK: Duration = Duration::from_mins(1);

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
enum LinksError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("cannot write an entry: {0}")]
    Entry(#[from] serde_json::Error),
}

impl Categorised for LinksError {
    fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
            Self::Entry(_) => "EntryNotWritten",
        }
    }
}

/// watches --something that links depend on changed--> [`run`].
pub(crate) fn listener(changed: Arc<Notify>, namespace: String) -> Listener {
    Box::new(move |change: &Change<'_>| {
        let concerns = match change.what {
            What::Pool(pool) => pool.spec.quota.is_none(),
            What::Node(_) | What::Everything => true,
            What::Pod(pod) => is_reservation(pod, &namespace),
            What::PoolFigures(_)
            | What::Owned(..)
            | What::Job(_)
            | What::Queue(_)
            | What::Reward(_) => false,
        };
        if concerns {
            changed.notify_one();
        }
    })
}

/// Keeps the Secret until `stop`.
pub(crate) async fn run(context: Arc<Context>, changed: Arc<Notify>, stop: CancellationToken) {
    loop {
        let begun = Instant::now();
        let (result, outside) = call::timed(Box::pin(reconcile(&context))).await;
        context.metrics.reconciled(NAME, begun.elapsed(), outside);
        let wait = match result {
            Ok(()) => {
                context.backoffs.clear(NAME);
                LOOK
            }
            Err(error) => {
                let wait = context.backoffs.failed(NAME);
                context.metrics.failed(NAME, error.category());
                tracing::warn!(%error, again_in_s = wait.as_secs(), "agents are not told of changes");
                wait
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = changed.notified(), if result_is_quiet(wait) => tokio::time::sleep(GATHER).await,
        }
    }
}

/// After a failure changes wait for the back-off like everything else.
fn result_is_quiet(wait: Duration) -> bool {
    wait == LOOK
}

async fn reconcile(context: &Context) -> Result<(), LinksError> {
    let stores = &context.stores;
    let namespace = &context.settings.namespace;
    let before = context.secret(namespace, SECRET).await?;
    let before = before.as_deref();
    let nodes = stores.nodes.state().into_iter();
    let told: Vec<Told> = nodes.filter_map(|node| told(node, context, before)).collect();
    let mut identities = BTreeMap::new();
    for queue in build::queues(&told, before) {
        if let Some(secret) = identity(context, &queue).await? {
            identities.insert(queue, secret);
        }
    }
    let identity = |queue: &str| identities.get(queue).cloned();
    let Links { secret, left_out } = build::links(namespace, &told, identity, before, MOST)?;
    if !left_out.is_empty() {
        tracing::warn!(?left_out, "the Secret of the agents is full: nodes are not told of queues");
    }
    context.observed.left_out.put((), left_out);
    context.apply(LINKS, &secret).await?;
    Ok(())
}

/// The Secret of the certificate of a queue's agents. Where it may not be read, as while roles
/// are changed, agents keep what they have.
async fn identity(context: &Context, queue: &str) -> Result<Option<Arc<Secret>>, CallError> {
    let Some((namespace, name)) = queue.split_once('.') else { return Ok(None) };
    match context.secret(namespace, &Names::of(name).agents).await {
        Err(error) if error.is_refusal() => {
            tracing::warn!(%error, "agents keep the certificate that they have");
            Ok(None)
        }
        read => read,
    }
}

/// What is known of a node that serves a pool.
fn told(node: Arc<Node>, context: &Context, before: Option<&Secret>) -> Option<Told> {
    let stores = &context.stores;
    let name = node.metadata.name.clone().unwrap_or_default();
    let labels = pool_labels(&node);
    if labels.into_iter().flatten().any(|label| stores.is_unreadable_pool(label)) {
        return Some(Told::AsBefore(name));
    }
    let (cpu, gpu) = match labels {
        // Somebody took the label away, and it comes back.
        [None, None] => {
            let Entry { pool, .. } = build::entry_before(before, &name)?;
            let serves = |pool: &Arc<ResourcePool>| {
                let pool = || [&**pool];
                serves(&node, pool()).or(serves_gpus(&node, pool())).is_some()
            };
            let pool = stores.pool(&pool).filter(|pool| is_bound(pool) && serves(pool))?;
            if pool.spec.cpu.is_some() { (Some(pool), None) } else { (None, Some(pool)) }
        }
        labels => labels.map(|label| label.and_then(|label| stores.pool(label))).into(),
    };
    let reservation = |pool: &ResourcePool| {
        let pod = pod_name(pool.metadata.name.as_deref().unwrap_or_default(), &name);
        let pod = stores.pods.get(&ObjectRef::new(&pod).within(&context.settings.namespace))?;
        let uid = pool.metadata.uid.as_deref();
        (is_running(&pod) && owner::is_controlled_by(&pod.metadata, uid)).then_some(pod)
    };
    let pool = cpu.clone().or_else(|| gpu.clone())?;
    let owner = queue_of(&pool)?.clone();
    let beside = gpu.filter(|gpu| cpu.is_some() && queue_of(gpu) == Some(&owner));
    Some(Told::Served(Served {
        reservation: reservation(&pool),
        gpus: beside.map(|gpu| {
            let held = reservation(&gpu);
            (gpu, held)
        }),
        node,
        pool,
        owner,
    }))
}
