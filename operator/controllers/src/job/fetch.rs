//! What a job's reconciliation looks at: from the caches, and for worker sets from the API
//! server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use rollwright_crds::{ActionQueue, Name, ResourcePool, RewardService, RolloutJob};

use super::fleet::{Node, Nodes, Pool, Trust};
use super::validate::{Named, named_pools, queue_of};
use super::{gateway, lws};
use crate::context::Context;
use crate::error::{CallError, named};
use crate::index::{GpuNode, Index};
use crate::labels::{self, Component};
use crate::owner::is_controlled_by;

/// How old a job's API key may be: the user may have put another one there.
const KEY_BELIEVED: Duration = Duration::from_secs(30);

/// What a job's reconciliation looks at.
pub(super) struct Fetched {
    /// What the job names.
    pub(super) named: Named,
    /// Names of all pods that are labelled as the job's.
    pub(super) labelled: Vec<String>,
    /// The job's worker pods.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The job's workers over several nodes.
    pub(super) sets: Vec<DynamicObject>,
    /// Nodes of its pools, without what others hold on them.
    pub(super) nodes: Nodes,
    /// Its pools, with what is promised to jobs before it.
    pub(super) pools: BTreeMap<Name, Pool>,
    /// Where its gateway listens, once it runs.
    pub(super) gateway: Option<String>,
    /// Its gateway was made, and is there.
    pub(super) has_gateway: bool,
    /// Its API key, once there is one.
    pub(super) api_key: Option<Vec<u8>>,
}

impl Fetched {
    /// Whether a pod is a worker of the job, or a part of one.
    pub(super) fn is_worker(&self, meta: &ObjectMeta, owner: &str) -> bool {
        is_worker(meta, owner, &self.sets)
    }
}

/// Gathers it.
pub(super) async fn fetch(job: &RolloutJob, context: &Context) -> Result<Fetched, CallError> {
    let namespace = job.namespace().unwrap_or_default();
    let name = job.name_any();
    let mut named = named_objects(job, context, &namespace);
    let uid = job.uid().unwrap_or_default();
    let mut sets = Vec::new();
    let index = &context.stores.index;
    let own = index.pods_of(&(namespace.clone(), name.clone()));
    let labelled = own.iter().filter_map(|pod| {
        let reference = ObjectRef::new(pod).within(&namespace);
        context.stores.pods.get(&reference)
    });
    let labelled: Vec<Arc<Pod>> = labelled.collect();
    if wants_sets(job, &named) || labelled.iter().any(|pod| lws::set_of(&pod.metadata).is_some()) {
        named.groups = knows_sets(context).await?;
        if named.groups {
            sets = list_sets(context, &namespace, &name).await?;
            sets.retain(|set| is_controlled_by(&set.metadata, Some(&uid)));
        }
    }
    let mut all = Nodes::new();
    let mut pools = BTreeMap::new();
    for (pool, object) in &named.pools {
        let Some(gpu) = &object.spec.gpu else { continue };
        // A node in two pools counts once: for the first by name.
        for (name, GpuNode { gpus, open }) in index.nodes_of(pool) {
            let trust = Trust::Good;
            all.entry(name).or_insert(Node { pool: pool.clone(), gpus, taken: 0, open, trust });
        }
        let settings =
            Pool { class: gpu.class.clone(), gpus_per_node: gpu.gpus_per_node, promised: 0 };
        pools.insert(pool.clone(), settings);
    }
    let waiting = context.stores.jobs.state_filter(waits);
    promise(&mut pools, job, &waiting, index);
    let key = gateway::api_key_name(&name);
    let key = context.secret_of_age(&namespace, &key, KEY_BELIEVED).await?;
    // That of a job of the same name before this one is on its way out.
    let key = key.filter(|secret| !is_of_another(&secret.metadata, job));
    let api_key = key.and_then(|secret| {
        let key = secret.data.as_ref()?.get(gateway::API_KEY)?;
        Some(key.0.clone()).filter(|key| !key.is_empty())
    });
    let reference = ObjectRef::new(&gateway::name(&name)).within(&namespace);
    let set = context.stores.stateful_sets.get(&reference);
    let set = set.filter(|set| is_controlled_by(&set.metadata, Some(&uid)));
    let set_uid = set.and_then(|set| set.metadata.uid.clone());
    let gateway = set_uid.as_ref().and_then(|set| {
        let ours = |pod: &&Arc<Pod>| is_controlled_by(&pod.metadata, Some(set));
        labelled.iter().filter(ours).find_map(|pod| address(pod))
    });
    let has_gateway = set_uid.is_some();
    let ours = |pod: &Arc<Pod>| is_worker(&pod.metadata, &uid, &sets);
    let pods = labelled.into_iter().filter(ours).collect();
    Ok(Fetched {
        named,
        labelled: own,
        pods,
        sets,
        nodes: all,
        pools,
        gateway,
        has_gateway,
        api_key,
    })
}

/// A worker's pod is the job's own, or that of one of its sets; those make their pods themselves.
fn is_worker(meta: &ObjectMeta, uid: &str, sets: &[DynamicObject]) -> bool {
    let component = meta.labels.as_ref().and_then(|labels| labels.get(labels::COMPONENT));
    component.is_some_and(|of| of == Component::Worker.as_str())
        && match lws::set_of(meta) {
            None => is_controlled_by(meta, Some(uid)),
            Some((of, _)) => sets.iter().any(|set| set.metadata.name.as_deref() == Some(of)),
        }
}

/// Whether it belongs to a job, and not to this one.
fn is_of_another(meta: &ObjectMeta, job: &RolloutJob) -> bool {
    let mut owners = meta.owner_references.iter().flatten().filter(|of| of.kind == "RolloutJob");
    owners.next().is_some_and(|owner| Some(&owner.uid) != job.metadata.uid.as_ref())
}

fn named_objects(job: &RolloutJob, context: &Context, namespace: &str) -> Named {
    let stores = &context.stores;
    let mut named = Named::default();
    for pool in named_pools(&job.spec) {
        if let Some(found) = stores.pool(pool) {
            named.pools.insert(pool.clone(), ResourcePool::clone(&found));
        }
    }
    let mut queue = |of: &str, name: &Name| {
        if let Some(found) = stores.queue(of, name) {
            named.queues.insert((of.to_owned(), name.clone()), ActionQueue::clone(&found));
        }
    };
    if let Some(wanted) = &job.spec.action_queue {
        queue(wanted.namespace.as_deref().unwrap_or(namespace), &wanted.name);
    }
    for reference in &job.spec.reward_services {
        let Some(found) = stores.reward(namespace, &reference.name) else { continue };
        if let Some(wanted) = queue_of(&found.spec) {
            queue(namespace, wanted);
        }
        named.rewards.insert(reference.name.clone(), (*found).clone());
    }
    named
}

/// Some degree is, or was at the last look, more than a node of its pool has.
fn wants_sets(job: &RolloutJob, named: &Named) -> bool {
    let fixed = job.spec.allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
    let fixed = fixed.map(|group| group.degree);
    let adaptive = job.spec.allocation.adaptive.iter().flat_map(|of| of.degrees.iter().copied());
    let before = job.status.iter().flat_map(|status| &status.workers).map(|count| count.degree);
    let largest = fixed.chain(adaptive).chain(before).max().unwrap_or(1);
    let nodes = named.pools.values().filter_map(|pool| pool.spec.gpu.as_ref());
    nodes.map(|gpu| gpu.gpus_per_node).min().is_some_and(|each| largest > each)
}

async fn knows_sets(context: &Context) -> Result<bool, CallError> {
    let what = || format!("API {}", lws::GROUP_VERSION);
    let request = context.client.list_api_group_resources(lws::GROUP_VERSION);
    match context.calls.call("get", what, request).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

async fn list_sets(
    context: &Context,
    namespace: &str,
    job: &str,
) -> Result<Vec<DynamicObject>, CallError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &lws::resource());
    let params = ListParams::default().labels(&format!("{}={job}", labels::JOB));
    let what = || named("LeaderWorkerSets of", Some(namespace), job);
    Ok(context.calls.call("list", what, api.list(&params)).await?.items)
}

/// Whether a job wants more workers than it has.
fn waits(job: &RolloutJob) -> bool {
    let workers = job.status.iter().flat_map(|status| &status.workers);
    !job.spec.suspend && workers.into_iter().any(|of| of.ready < of.wanted)
}

/// Counts what jobs before this one still wait for: those of higher priority, then the older.
/// `waiting` are the jobs that do.
fn promise(
    pools: &mut BTreeMap<Name, Pool>,
    job: &RolloutJob,
    waiting: &[Arc<RolloutJob>],
    index: &Index,
) {
    fn rank(job: &RolloutJob) -> impl Ord + '_ {
        let meta = &job.metadata;
        let created = meta.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(job.spec.priority), created, &meta.namespace, &meta.name)
    }
    for other in waiting.iter().filter(|other| rank(other) < rank(job)) {
        let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
        let workers = other.status.iter().flat_map(|status| &status.workers);
        for count in workers.filter(|of| pools.contains_key(of.pool.as_str())) {
            *wanted.entry(&count.pool).or_default() += count.wanted * count.degree;
        }
        let key = (other.namespace().unwrap_or_default(), other.name_any());
        for (pool, gpus) in wanted {
            let held = index.gpus_of(&key, pool);
            if let Some(pool) = pools.get_mut(pool) {
                pool.promised = pool.promised.saturating_add(gpus.saturating_sub(held));
            }
        }
    }
}

/// What the gateway reads of the objects that the job names.
pub(super) fn documents(
    job: &RolloutJob,
    fetched: &Fetched,
    context: &Context,
) -> (Vec<ResourcePool>, Vec<RewardService>, Vec<ActionQueue>, Vec<ResourcePool>) {
    let named = &fetched.named;
    let namespace = job.namespace().unwrap_or_default();
    let wanted = named.rewards.values().filter_map(|reward| queue_of(&reward.spec));
    let wanted = wanted.map(|queue| (namespace.clone(), queue.clone()));
    let queues: BTreeMap<_, _> = wanted
        .filter_map(|key| named.queues.get(&key).cloned().map(|queue| (key, queue)))
        .collect();
    let pools: BTreeMap<_, _> = queues
        .values()
        .flat_map(|queue| &queue.spec.pools)
        .filter_map(|name| Some((name.clone(), context.stores.pool(name)?)))
        .collect();
    (
        named.pools.values().cloned().collect(),
        named.rewards.values().cloned().collect(),
        queues.into_values().collect(),
        pools.into_values().map(|pool| ResourcePool::clone(&pool)).collect(),
    )
}

/// Where a gateway's pod listens: it runs, and is not on its way out.
fn address(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let runs = status.phase.as_deref() == Some("Running");
    let stays = pod.metadata.deletion_timestamp.is_none();
    let ip = status.pod_ip.as_deref().filter(|ip| runs && stays && !ip.is_empty())?;
    // An IPv6 address stands in brackets.
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    Some(format!("{host}:{}", gateway::PORT))
}

#[cfg(test)]
mod tests;
