//! Step one: what a queue names, and what was made for it before.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use rollwright_crds::{ActionQueue, ResourcePool, RewardService};

use crate::context::Context;
use crate::error::CallError;
use crate::identity::Issuer;
use crate::observed::QueueSnapshot;
use crate::reward;
use crate::stores::Stores;

/// Names of what belongs to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The StatefulSet, Service, ConfigMap and NetworkPolicy.
    pub(crate) queue: String,
    /// The Secret of the authority.
    pub(crate) authority: String,
    /// The Secret of the queue's certificate.
    pub(crate) server: String,
    /// The Secret of the agents' certificate.
    pub(crate) agents: String,
    /// The Secret of the token of `/metrics`.
    pub(crate) metrics: String,
    /// The ConfigMap of the keys of tokens.
    pub(crate) keys: String,
}

impl Names {
    pub(crate) fn of(queue: &str) -> Self {
        let queue = format!("{queue}-queue");
        Self {
            authority: format!("{queue}-ca"),
            server: format!("{queue}-tls"),
            agents: format!("{queue}-agent"),
            metrics: format!("{queue}-metrics"),
            keys: format!("{queue}-keys"),
            queue,
        }
    }
}

/// What a queue depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The pools that it names and that exist.
    pub(super) pools: BTreeMap<String, Arc<ResourcePool>>,
    /// The models on GPUs whose calls it schedules, by name.
    pub(super) rewards: BTreeMap<String, Arc<RewardService>>,
    /// Keys and issuer of the API server.
    pub(super) issuer: Option<Arc<Issuer>>,
    /// The Secret of the release with the token of `/metrics`.
    pub(super) metrics_secret: String,
    /// Token of `/metrics`.
    pub(super) metrics_token: Option<Vec<u8>>,
    /// The Secrets of the authority and of its two certificates, as far as they are there.
    pub(super) authority: Option<Arc<Secret>>,
    pub(super) server: Option<Arc<Secret>>,
    pub(super) agents: Option<Arc<Secret>>,
    /// Pods of the StatefulSet that are ready; none when there is no StatefulSet.
    pub(super) ready_pods: Option<i32>,
    /// Its claims, which never change; none when there is no StatefulSet.
    pub(super) claims: Option<Vec<PersistentVolumeClaim>>,
    /// Whether all pods are of the newest revision.
    pub(super) rolled_out: bool,
    /// Nodes whose agents cannot be told of it.
    pub(super) left_out: u32,
    /// What it said last.
    pub(super) snapshot: Option<Arc<QueueSnapshot>>,
}

pub(super) async fn seen(queue: &ActionQueue, context: &Context) -> Result<Seen, CallError> {
    let stores = &context.stores;
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let names = Names::of(name);
    let pools = queue.spec.pools.iter();
    let set = stores
        .stateful_sets
        .get(&kube::runtime::reflector::ObjectRef::new(&names.queue).within(namespace));
    let status = set.as_ref().and_then(|set| set.status.as_ref());
    let generation = set.as_ref().and_then(|set| set.metadata.generation);
    Ok(Seen {
        pools: pools.filter_map(|name| Some((name.to_string(), stores.pool(name)?))).collect(),
        rewards: rewards(namespace, name, stores),
        issuer: context.issuer(),
        metrics_secret: context.settings.metrics_secret.clone(),
        metrics_token: context.metrics_token().await?,
        authority: context.secret(namespace, &names.authority).await?,
        server: context.secret(namespace, &names.server).await?,
        agents: context.secret(namespace, &names.agents).await?,
        claims: set.as_ref().map(|set| {
            let claims = set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.clone());
            claims.unwrap_or_default()
        }),
        ready_pods: set.as_ref().map(|_| status.and_then(|s| s.ready_replicas).unwrap_or(0)),
        rolled_out: status.is_some_and(|status| {
            status.observed_generation == generation
                && (status.update_revision.is_none()
                    || status.update_revision == status.current_revision)
        }),
        left_out: {
            let all = context.observed.left_out.get(&());
            all.and_then(|all| all.get(&format!("{namespace}.{name}")).copied()).unwrap_or(0)
        },
        snapshot: context.observed.queues.get(&(namespace.to_owned(), name.to_owned())),
    })
}

/// Those that would be refused are left out, with their conditions to say why: the others go on.
fn rewards(namespace: &str, queue: &str, stores: &Stores) -> BTreeMap<String, Arc<RewardService>> {
    let its = stores.rewards.state_filter(|service| {
        service.metadata.namespace.as_deref() == Some(namespace)
            && service.metadata.deletion_timestamp.is_none()
            && service.spec.gpu.as_ref().is_some_and(|gpu| gpu.queue.as_str() == queue)
    });
    let named = its.into_iter().filter_map(|of| Some((of.metadata.name.clone()?, of)));
    named
        .filter(|(_, service)| {
            let gpu = service.spec.gpu.as_ref();
            let pool = gpu.and_then(|gpu| stores.pool(&gpu.pool));
            reward::fits(service, stores.queue(namespace, queue).as_deref(), pool.as_deref())
        })
        .collect()
}

impl Seen {
    /// Reads the Secrets from the API server rather than the cache. One that lags would
    /// have certificates minted twice, and the first ones would no longer be trusted.
    pub(super) async fn with_fresh_secrets(
        mut self,
        queue: &ActionQueue,
        context: &Context,
    ) -> Result<Self, CallError> {
        let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
        let names = Names::of(queue.metadata.name.as_deref().unwrap_or_default());
        let all = [
            (&names.authority, &mut self.authority),
            (&names.server, &mut self.server),
            (&names.agents, &mut self.agents),
        ];
        for (name, secret) in all {
            *secret = context.fresh_secret(namespace, name).await?;
        }
        Ok(self)
    }
}
