//! Step four: the objects of a queue, made in the cluster.

use super::build::{Identity, QueueResources};
use crate::apply::Site;
use crate::context::Context;
use crate::error::CallError;
use crate::resources::{Applied, Prepared};

/// Field managers, one for each object.
const AUTHORITY: Site = Site("rollwright-queue-ca");
const SERVER: Site = Site("rollwright-queue-tls");
const AGENTS: Site = Site("rollwright-queue-agent");
const KEYS: Site = Site("rollwright-queue-keys");
const METRICS: Site = Site("rollwright-queue-metrics");
const CONFIG: Site = Site("rollwright-queue-config");
const SERVICE: Site = Site("rollwright-queue-service");
const NETWORK_POLICY: Site = Site("rollwright-queue-network-policy");
const STATEFUL_SET: Site = Site("rollwright-queue-statefulset");

impl Identity {
    /// Returns how many were written.
    pub(super) async fn apply(&self, context: &Context) -> Result<u32, CallError> {
        let Self { authority, server, agents, keys } = self;
        let mut written = 0;
        written += u32::from(context.apply(AUTHORITY, authority).await?);
        written += u32::from(context.apply(SERVER, server).await?);
        if context.apply(AGENTS, agents).await? {
            written += 1;
            context.agents_changed.notify_one();
        }
        if let Some(keys) = keys {
            written += u32::from(context.apply(KEYS, keys).await?);
        }
        Ok(written)
    }
}

impl QueueResources<Prepared> {
    /// What a pod mounts comes first, and the pod last.
    pub(super) async fn apply(
        self,
        context: &Context,
    ) -> Result<QueueResources<Applied>, CallError> {
        let Self {
            identity,
            metrics,
            config,
            service,
            network_policy,
            stateful_set,
            state: Prepared,
        } = self;
        let mut written = identity.apply(context).await?;
        written += u32::from(context.apply(METRICS, &metrics).await?);
        written += u32::from(context.apply(CONFIG, &config).await?);
        written += u32::from(context.apply(SERVICE, &service).await?);
        written += u32::from(context.apply(NETWORK_POLICY, &network_policy).await?);
        written += u32::from(context.apply(STATEFUL_SET, &stateful_set).await?);
        Ok(QueueResources {
            identity,
            metrics,
            config,
            service,
            network_policy,
            stateful_set,
            state: Applied { written },
        })
    }
}
