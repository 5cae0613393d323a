//! Makes what was built, and takes the steps of the plan.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::converge::Step;
use super::fetch::Fetched;
use super::gateway::{Identity, Objects};
use super::plan::Placement;
use super::worker::{DRAINING, Template};
use super::{JobError, gateway, lws};
use crate::apply::{Made, Site};
use crate::context::Context;
use crate::error::{CallError, named};
use crate::index::Booking;
use crate::labels::{self, Component};
use crate::owner::is_controlled_by;
use crate::stores::Stores;

const GATEWAY: Site = Site("rollwright-job-gateway");
const WORKER: Site = Site("rollwright-job-worker");
/// On a gateway's pod: when its keys were written last.
const HANDED_OVER: &str = "rollwright.dev/keys-written";
/// Workers made at one moment.
const AT_ONCE: usize = 8;

/// No cache shows claims.
impl Made for PersistentVolumeClaim {
    fn live(_: &Stores, _: &str, _: &str) -> Option<String> {
        Self::revision(&ObjectMeta::default())
    }

    fn revision(_: &ObjectMeta) -> Option<String> {
        Some("made".to_owned())
    }
}

/// Applies what a gateway reads while it runs. `runs` says that a pod of it does.
pub(super) async fn identity(
    context: &Context,
    identity: &Identity,
    runs: bool,
) -> Result<(), CallError> {
    let Identity { config, keys, metrics } = identity;
    let mut news = context.apply(GATEWAY, config).await?;
    news |= context.apply(GATEWAY, keys).await?;
    if let Some(metrics) = metrics {
        context.apply(GATEWAY, metrics).await?;
    }
    if news && runs {
        hand_over(context, &keys.metadata).await?;
    }
    Ok(())
}

/// Has the kubelet look at what the gateway mounts: it does so once a minute, and when the pod
/// changes.
async fn hand_over(context: &Context, keys: &ObjectMeta) -> Result<(), CallError> {
    let namespace = keys.namespace.as_deref().unwrap_or_default();
    let job = keys.labels.as_ref().and_then(|labels| labels.get(labels::INSTANCE));
    let pod = format!("{}-0", gateway::name(job.map_or("", String::as_str)));
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({"metadata": {"annotations": {HANDED_OVER: context.now().to_string()}}});
    let what = || named("Pod", Some(namespace), &pod);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    match context.calls.call("patch", what, api.patch_metadata(&pod, &params, &patch)).await {
        Ok(_) => Ok(()),
        // A new one reads it at its start.
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Applies a gateway's objects. `runs` says that a pod of it runs.
pub(super) async fn gateway(
    context: &Context,
    owner: &OwnerReference,
    objects: &Objects,
    runs: bool,
) -> Result<(), CallError> {
    let Objects { claim, config, service, fence, stateful_set } = objects;
    // No cache shows claims, but a pod that runs has its own. Where none does, the claim may be
    // what it waits for: somebody deleted it with a node's disk.
    if let Some(claim) = claim.as_ref().filter(|_| !runs) {
        context.memory.forget("PersistentVolumeClaim", &claim.metadata);
        match context.apply(GATEWAY, claim).await {
            // It was made from other settings; a claim cannot change.
            Err(error) if error.status() == Some(422) => {
                tracing::debug!(%error, "a claim stays as it was made");
            }
            done => drop(done?),
        }
    }
    context.apply(GATEWAY, config).await?;
    context.apply(GATEWAY, service).await?;
    // Before there is a worker, only the gateway may reach it.
    context.apply(GATEWAY, fence).await?;
    if !leaves(context, owner, &stateful_set.metadata).await? {
        context.apply(GATEWAY, stateful_set).await?;
    }
    Ok(())
}

/// Whether there is the Deployment that an earlier version made of a gateway: it is deleted, and
/// is there until its pods have ended. A second gateway beside them would be one too many.
async fn leaves(
    context: &Context,
    owner: &OwnerReference,
    meta: &ObjectMeta,
) -> Result<bool, CallError> {
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let former = context.stores.deployments.get(&ObjectRef::new(name).within(namespace));
    let Some(former) = former.filter(|of| is_controlled_by(&of.metadata, Some(&owner.uid))) else {
        return Ok(false);
    };
    if former.metadata.deletion_timestamp.is_some() {
        return Ok(true);
    }
    let api = Api::<Deployment>::namespaced(context.client.clone(), namespace);
    let what = || named("Deployment", Some(namespace), name);
    let params = DeleteParams::foreground();
    match context.calls.call("delete", what, api.delete(name, &params)).await {
        Ok(_) => Ok(true),
        // The cache will show it.
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes the Secret with the API key, if nobody has. Returns the key that there is: the user may
/// have changed the Secret, and the labels by which the cache sees it. None where it is empty.
pub(super) async fn api_key(
    context: &Context,
    secret: &Secret,
) -> Result<Option<Vec<u8>>, CallError> {
    let namespace = secret.namespace().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let what = || named("Secret", Some(&namespace), &secret.name_any());
    match context.calls.call("create", what, api.create(&PostParams::default(), secret)).await {
        Ok(made) => {
            let key = key_of(&made);
            context.stores.secrets.wrote(made);
            Ok(key)
        }
        Err(error) if error.status() == Some(409) => {
            let name = secret.name_any();
            context.stores.secrets.forget(&namespace, &name);
            let found = context.calls.call("get", what, api.get(&name)).await?;
            Ok(key_of(&found))
        }
        Err(error) => Err(error),
    }
}

/// The key that a Secret holds, if it holds one.
pub(super) fn key_of(secret: &Secret) -> Option<Vec<u8>> {
    let key = secret.data.as_ref()?.get(gateway::API_KEY)?;
    Some(key.0.clone()).filter(|key| !key.is_empty())
}

/// The workers to make, with their names, and the GPUs that are booked for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Make<'a> {
    pub(super) workers: &'a [(String, Placement)],
    pub(super) booking: Option<&'a Booking>,
}

/// Takes the steps.
pub(super) async fn steps(
    context: &Context,
    template: &Template<'_>,
    fetched: &Fetched,
    make: Make<'_>,
    steps: &[Step],
) -> Result<(), JobError> {
    if let Some(booking) = make.booking {
        up_to_date(context, template, fetched).await?;
        create_all(context, template, make.workers, booking).await?;
    }
    for step in steps {
        match step {
            Step::Create(_) => {}
            Step::Drain(name) => drain(context, template.namespace, name, fetched).await?,
            Step::Delete(name) => delete(context, template.namespace, name, fetched).await?,
        }
    }
    Ok(())
}

/// Makes workers, and returns the first failure. After one no more is begun, and what is on its way
/// comes to its end: what became of it is known then.
async fn create_all(
    context: &Context,
    template: &Template<'_>,
    workers: &[(String, Placement)],
    booking: &Booking,
) -> Result<(), JobError> {
    let failed = Mutex::new(None);
    let failed = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    stream::iter(workers)
        .for_each_concurrent(AT_ONCE, async |(name, placement)| {
            if failed().is_some() {
                return;
            }
            booking.sent(name, Instant::now());
            if let Err(error) = create(context, template, name, placement).await {
                if matches!(&error, JobError::Call(error) if error.is_answered_no()) {
                    booking.refused(name);
                }
                failed().get_or_insert(error);
            }
        })
        .await;
    failed().take().map_or(Ok(()), Err)
}

/// The cache may not show yet what an earlier pass made: then nothing is made in this one.
async fn up_to_date(
    context: &Context,
    template: &Template<'_>,
    fetched: &Fetched,
) -> Result<(), JobError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), template.namespace);
    let selector = format!(
        "{}={},{}={}",
        labels::COMPONENT,
        Component::Worker.as_str(),
        labels::INSTANCE,
        template.job
    );
    let what = || named("Pods of", Some(template.namespace), template.job);
    let params = ListParams::default().labels(&selector);
    let live = context.calls.call("list", what, api.list_metadata(&params)).await?;
    let ours =
        |pod: &&PartialObjectMeta<Pod>| fetched.is_worker(&pod.metadata, &template.owner.uid);
    let live = live.items.iter().filter(ours).map(kube::ResourceExt::name_any);
    let mut live: Vec<String> = live.collect();
    let mut seen: Vec<String> = fetched.pods.iter().map(|pod| pod.name_any()).collect();
    live.sort();
    seen.sort();
    if live == seen { Ok(()) } else { Err(JobError::CacheLags) }
}

async fn create(
    context: &Context,
    template: &Template<'_>,
    name: &str,
    placement: &Placement,
) -> Result<(), JobError> {
    if placement.nodes.len() == 1 {
        context.apply(WORKER, &template.pod(name, placement)).await?;
        return Ok(());
    }
    let set = lws::build(template, name, placement)?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), template.namespace, &lws::resource());
    let what = || named("LeaderWorkerSet", Some(template.namespace), name);
    context.calls.call("create", what, api.create(&PostParams::default(), &set)).await?;
    Ok(())
}

/// Notes on the pod that answers for the worker since when it is drained.
async fn drain(
    context: &Context,
    namespace: &str,
    name: &str,
    fetched: &Fetched,
) -> Result<(), CallError> {
    let leads = |pod: &&std::sync::Arc<Pod>| lws::set_of(&pod.metadata) == Some((name, true));
    let leader = fetched.pods.iter().find(leads).map(|pod| pod.name_any());
    let pod = leader.unwrap_or_else(|| name.to_owned());
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({"metadata": {"annotations": {DRAINING: context.now().to_string()}}});
    let patch = Patch::Merge(&patch);
    let params = PatchParams::default();
    let what = || named("Pod", Some(namespace), &pod);
    let request = api.patch_metadata(&pod, &params, &patch);
    match context.calls.call("patch", what, request).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn delete(
    context: &Context,
    namespace: &str,
    name: &str,
    fetched: &Fetched,
) -> Result<(), CallError> {
    if !fetched.sets.iter().any(|set| set.name_any() == name) {
        return context.delete::<Pod>(namespace, name).await;
    }
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &lws::resource());
    let what = || named("LeaderWorkerSet", Some(namespace), name);
    let params = DeleteParams::background();
    match context.calls.call("delete", what, api.delete(name, &params)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// A new API key: 256 random bits.
pub(super) fn new_key() -> Vec<u8> {
    let bits: [u8; 32] = rand::random();
    bits.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// The Secret with a new API key for a job.
pub(super) fn new_api_key(template: &Template<'_>) -> Secret {
    gateway::api_key(template.namespace, template.job, template.owner, new_key())
}
