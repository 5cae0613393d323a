//! Step one: what a reward service names.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rollwright_crds::{ActionQueue, ResourcePool, RewardService};

use crate::context::Context;
use crate::error::{CallError, named};
use crate::observed::QueueSnapshot;

/// What a reward service depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The queue that it names, if it is there.
    pub(super) queue: Option<Arc<ActionQueue>>,
    /// The pool that it names, if it is there.
    pub(super) pool: Option<Arc<ResourcePool>>,
    /// What that queue said last.
    pub(super) snapshot: Option<Arc<QueueSnapshot>>,
    /// Whether the Secret that it names is there, and with that key.
    pub(super) secret: SecretSeen,
}

/// What was seen of a Secret; never its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SecretSeen {
    /// There is none.
    #[default]
    Missing,
    /// It has no such key, or an empty one.
    WithoutKey,
    /// It is there.
    Usable,
}

pub(super) async fn seen(service: &RewardService, context: &Context) -> Result<Seen, CallError> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &service.spec;
    let queue = spec.gpu.as_ref().map(|gpu| &gpu.queue);
    let queue = queue.or(spec.sandbox.as_ref().map(|sandbox| &sandbox.queue));
    let named_secret = spec.serverless.as_ref().and_then(|of| of.auth_secret.as_ref());
    let secret = match named_secret {
        None => SecretSeen::Missing,
        Some(key) => {
            let api = Api::<Secret>::namespaced(context.client.clone(), namespace);
            let what = || named("Secret", Some(namespace), &key.name);
            let found = context.calls.call("get", what, api.get_opt(&key.name)).await?;
            found.map_or(SecretSeen::Missing, |secret| {
                let value = secret.data.as_ref().and_then(|data| data.get(&key.key));
                let usable = value.is_some_and(|value| !value.0.is_empty());
                if usable { SecretSeen::Usable } else { SecretSeen::WithoutKey }
            })
        }
    };
    let snapshot = queue
        .and_then(|queue| context.observed.queues.get(&(namespace.to_owned(), queue.to_string())));
    Ok(Seen {
        snapshot,
        queue: queue.and_then(|queue| context.stores.queue(namespace, queue)),
        pool: spec.gpu.as_ref().and_then(|gpu| context.stores.pool(&gpu.pool)),
        secret,
    })
}
