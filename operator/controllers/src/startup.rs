//! Opens the caches: one watch a kind.

use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, Client};
use rollwright_crds::ResourcePool;
use tokio::task::JoinSet;

use crate::labels::OURS;
use crate::metrics::Metrics;
use crate::stores::Stores;
use crate::trim;
use crate::watch::{Listeners, Watch, What, equal, same_meta, same_version};

/// The writing ends of all caches.
pub(crate) struct Watches {
    pub(crate) pools: Writer<ResourcePool>,
    pub(crate) jobs: Writer<rollwright_crds::RolloutJob>,
    pub(crate) queues: Writer<rollwright_crds::ActionQueue>,
    pub(crate) rewards: Writer<rollwright_crds::RewardService>,
    pub(crate) nodes: Writer<k8s_openapi::api::core::v1::Node>,
    pub(crate) pods: Writer<k8s_openapi::api::core::v1::Pod>,
    pub(crate) stateful_sets: Writer<k8s_openapi::api::apps::v1::StatefulSet>,
    pub(crate) deployments: Writer<k8s_openapi::api::apps::v1::Deployment>,
    services: Writer<kube::core::PartialObjectMeta<k8s_openapi::api::core::v1::Service>>,
    config_maps: Writer<kube::core::PartialObjectMeta<k8s_openapi::api::core::v1::ConfigMap>>,
    network_policies:
        Writer<kube::core::PartialObjectMeta<k8s_openapi::api::networking::v1::NetworkPolicy>>,
}

impl Watches {
    /// Empty caches.
    pub(crate) fn open() -> (Self, Stores) {
        let watches = Self {
            pools: Writer::default(),
            jobs: Writer::default(),
            queues: Writer::default(),
            rewards: Writer::default(),
            nodes: Writer::default(),
            pods: Writer::default(),
            stateful_sets: Writer::default(),
            deployments: Writer::default(),
            services: Writer::default(),
            config_maps: Writer::default(),
            network_policies: Writer::default(),
        };
        let stores = Stores {
            pools: watches.pools.as_reader(),
            jobs: watches.jobs.as_reader(),
            queues: watches.queues.as_reader(),
            rewards: watches.rewards.as_reader(),
            nodes: watches.nodes.as_reader(),
            pods: watches.pods.as_reader(),
            stateful_sets: watches.stateful_sets.as_reader(),
            deployments: watches.deployments.as_reader(),
            services: watches.services.as_reader(),
            config_maps: watches.config_maps.as_reader(),
            network_policies: watches.network_policies.as_reader(),
            secrets: crate::secrets::Secrets::default(),
            malformed: crate::malformed::Malformed::default(),
            index: crate::index::Index::default(),
        };
        (watches, stores)
    }

    /// Fills the caches from now on.
    pub(crate) fn run(
        self,
        client: &Client,
        stores: &Stores,
        metrics: &Arc<Metrics>,
        listeners: &Listeners,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        macro_rules! guarded {
            ($writer:ident, $same:path, $what:expr) => {
                let watch =
                    Watch { writer: self.$writer, trim: trim::any, same: $same, what: $what };
                let malformed = stores.malformed.clone();
                tasks.spawn(watch.run_guarded(
                    client.clone(),
                    malformed,
                    Arc::clone(metrics),
                    listeners.clone(),
                ));
            };
        }
        guarded!(pools, equal, pool_change);
        guarded!(jobs, crate::job::asks_the_same, |_, job| What::Job(job));
        guarded!(queues, equal, |_, queue| What::Queue(queue));
        guarded!(rewards, equal, |_, reward| What::Reward(reward));
        macro_rules! plain {
            ($writer:ident, $trim:path, $same:path, $config:expr, $what:expr) => {
                let watch = Watch { writer: self.$writer, trim: $trim, same: $same, what: $what };
                tasks.spawn(watch.run(Api::all(client.clone()), $config, listeners.clone()));
            };
        }
        let every = watcher::Config::default;
        let ours = || watcher::Config::default().labels(OURS);
        plain!(nodes, trim::node, equal, every(), |_, node| What::Node(node));
        plain!(pods, trim::pod, equal, every(), |_, pod| What::Pod(pod));
        plain!(stateful_sets, trim::stateful_set, equal, ours(), |_, set| What::Owned(
            "StatefulSet",
            &set.metadata
        ));
        plain!(deployments, trim::deployment, equal, ours(), |_, deployment| What::Owned(
            "Deployment",
            &deployment.metadata
        ));
        plain!(services, trim::any, same_version, ours(), |_, service| What::Owned(
            "Service",
            &service.metadata
        ));
        plain!(config_maps, trim::any, same_version, ours(), |_, map| What::Owned(
            "ConfigMap",
            &map.metadata
        ));
        plain!(network_policies, trim::any, same_version, ours(), |_, policy| What::Owned(
            "NetworkPolicy",
            &policy.metadata
        ));
        tasks
    }
}

/// What changed of a pool: others read whose it is, and seldom its figures.
fn pool_change<'a>(before: Option<&ResourcePool>, pool: &'a ResourcePool) -> What<'a> {
    let owner = |pool: &ResourcePool| pool.status.as_ref().and_then(|of| of.bound_to.clone());
    let figures = before.is_some_and(|before| {
        before.spec == pool.spec && same_meta(before, pool) && owner(before) == owner(pool)
    });
    if figures { What::PoolFigures(pool) } else { What::Pool(pool) }
}

/// Waits until every cache was filled once; an error when its watch is no more.
pub(crate) async fn filled(
    stores: &Stores,
) -> Result<(), kube::runtime::reflector::store::WriterDropped> {
    stores.pools.wait_until_ready().await?;
    stores.jobs.wait_until_ready().await?;
    stores.queues.wait_until_ready().await?;
    stores.rewards.wait_until_ready().await?;
    stores.nodes.wait_until_ready().await?;
    stores.pods.wait_until_ready().await?;
    stores.stateful_sets.wait_until_ready().await?;
    stores.deployments.wait_until_ready().await?;
    stores.services.wait_until_ready().await?;
    stores.config_maps.wait_until_ready().await?;
    stores.network_policies.wait_until_ready().await
}
