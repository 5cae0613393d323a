//! What a job's reconciliation looks at: from the caches, and for worker sets from the API
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use rollwright_crds::{ActionQueue, Name, ResourcePool, RewardService, RolloutJob};

use super::fleet::{Nodes, Pool};
use super::observe::{self, nodes_of_pool};
use super::validate::{Named, named_pools, queue_of};
use super::{gateway, lws};
use crate::context::Context;
use crate::error::{CallError, named};
use crate::labels::{self, Component};
use crate::pool::{Requests, has_ended};

/// What a job's reconciliation looks at.
pub(super) struct Fetched {
    /// What the job names.
    pub(super) named: Named,
    /// All nodes of the cluster.
    pub(super) cluster: BTreeMap<String, Arc<KubeNode>>,
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
    /// Its API key, once there is one.
    pub(super) api_key: Option<Vec<u8>>,
}

/// Gathers it.
pub(super) async fn fetch(job: &RolloutJob, context: &Context) -> Result<Fetched, CallError> {
    let namespace = job.namespace().unwrap_or_default();
    let name = job.name_any();
    let mut named = named_objects(job, context, &namespace);
    let mut sets = Vec::new();
    let every = context.stores.pods.state();
    let ours = |pod: &Pod| is_part(pod, &namespace, &name, Component::Worker);
    let in_set = |pod: &Arc<Pod>| ours(pod) && lws::set_of(pod).is_some();
    if wants_sets(job, &named) || every.iter().any(in_set) {
        named.groups = knows_sets(context).await?;
        if named.groups {
            sets = list_sets(context, &namespace, &name).await?;
        }
    }
    let nodes = context.stores.nodes.state();
    let cluster: BTreeMap<String, Arc<KubeNode>> =
        nodes.into_iter().map(|node| (node.name_any(), node)).collect();
    let mut all = Nodes::new();
    let mut pools = BTreeMap::new();
    for (pool, object) in &named.pools {
        let Some(gpu) = &object.spec.gpu else { continue };
        // A node in two pools counts once: for the first by name.
        for (name, node) in nodes_of_pool(pool, gpu, &cluster) {
            all.entry(name).or_insert(node);
        }
        let settings =
            Pool { class: gpu.class.clone(), gpus_per_node: gpu.gpus_per_node, promised: 0 };
        pools.insert(pool.clone(), settings);
    }
    promise(&mut pools, job, &context.stores.jobs.state(), &every);
    let key = context.secret(&namespace, &gateway::api_key_name(&name)).await?;
    // That of a job of the same name before this one is on its way out.
    let key = key.filter(|secret| !is_of_another(&secret.metadata, job));
    let api_key = key.and_then(|secret| {
        let key = secret.data.as_ref()?.get(gateway::API_KEY)?;
        Some(key.0.clone()).filter(|key| !key.is_empty())
    });
    let gateway = every
        .iter()
        .filter(|pod| is_part(pod, &namespace, &name, Component::Gateway))
        .find_map(|pod| address(pod));
    let pods = every.into_iter().filter(|pod| ours(pod)).collect();
    Ok(Fetched { named, cluster, pods, sets, nodes: all, pools, gateway, api_key })
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

/// A pod of the job's, by its labels.
pub(super) fn is_part(pod: &Pod, namespace: &str, job: &str, component: Component) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let is = |key: &str, value: &str| {
        labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
    };
    pod.metadata.namespace.as_deref() == Some(namespace)
        && is(labels::COMPONENT, component.as_str())
        && is(labels::INSTANCE, job)
}

/// Books what others hold: where they run, or where workers of other jobs are to run.
pub(super) fn take<'a>(nodes: &mut Nodes, others: impl Iterator<Item = &'a Arc<Pod>>) {
    for pod in others.filter(|pod| !has_ended(pod)) {
        let gpus = Requests::of(pod).gpus;
        if gpus == 0 {
            continue;
        }
        let place = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let planned = observe::nodes_of(pod);
        let place = place.or_else(|| planned.first().filter(|_| planned.len() == 1).cloned());
        if let Some(node) = place.and_then(|place| nodes.get_mut(&place)) {
            node.taken = node.taken.saturating_add(gpus);
        }
    }
}

/// Books what jobs before this one still wait for: those of higher priority, then the older.
fn promise(
    pools: &mut BTreeMap<Name, Pool>,
    job: &RolloutJob,
    jobs: &[Arc<RolloutJob>],
    pods: &[Arc<Pod>],
) {
    let rank = |job: &RolloutJob| {
        let created = job.metadata.creation_timestamp.clone().map(|time| time.0);
        (std::cmp::Reverse(job.spec.priority), created, job.namespace(), job.name_any())
    };
    let own = rank(job);
    let before = jobs.iter().filter(|other| rank(other) < own && !other.spec.suspend);
    for other in before {
        let Some(status) = &other.status else { continue };
        if status.workers.iter().all(|of| of.ready >= of.wanted) {
            continue;
        }
        let mut missing: BTreeMap<&str, u32> = BTreeMap::new();
        for count in status.workers.iter().filter(|of| pools.contains_key(of.pool.as_str())) {
            *missing.entry(&count.pool).or_default() += count.wanted * count.degree;
        }
        if missing.is_empty() {
            continue;
        }
        let namespace = other.namespace().unwrap_or_default();
        let name = other.name_any();
        for pod in pods.iter().filter(|pod| is_part(pod, &namespace, &name, Component::Worker)) {
            let pool = pod.metadata.labels.as_ref().and_then(|labels| labels.get(labels::POOL));
            if let Some(missing) = pool.and_then(|pool| missing.get_mut(pool.as_str())) {
                *missing = missing.saturating_sub(Requests::of(pod).gpus);
            }
        }
        for (pool, gpus) in missing {
            if let Some(pool) = pools.get_mut(pool) {
                pool.promised = pool.promised.saturating_add(gpus);
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
