//! Step two: whether a queue can be built from what it names. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use rollwright_crds::conditions::reasons;
use rollwright_crds::pool::{GpuRole, PoolOwner};
use rollwright_crds::{ActionQueue, ResourcePool, RewardService};

use super::fetch::Seen;
use crate::identity::Issuer;
use crate::pool::allows;

/// Longest name: the StatefulSet adds `-queue`, and a hash of 11 to a label of 63.
const LONGEST_NAME: usize = 46;

/// A queue that can be built.
#[derive(Clone, Debug)]
pub(super) struct Validated<'a> {
    pub(super) queue: &'a ActionQueue,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The pools that are its own, in the order of their names.
    pub(super) pools: Vec<&'a ResourcePool>,
    /// The models on GPUs whose calls it schedules, in the order of their names.
    pub(super) rewards: Vec<&'a RewardService>,
    pub(super) issuer: &'a Issuer,
    pub(super) metrics_token: &'a [u8],
    /// Those of the StatefulSet that is there.
    pub(super) claims: Option<&'a [PersistentVolumeClaim]>,
}

/// Why a queue cannot be built, or not as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// One of `rollwright_crds::conditions::reasons`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Obstacle {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

pub(super) fn validate<'a>(
    queue: &'a ActionQueue,
    seen: &'a Seen,
) -> Result<Validated<'a>, Obstacle> {
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    service_name(name)?;
    let violations = queue.spec.validate();
    if !violations.is_empty() {
        let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
        return Err(Obstacle::new(reasons::INVALID_SPEC, all.join("; ")));
    }
    // Its process would refuse to start.
    if let Some(unavailable) = queue.spec.unavailable() {
        return Err(Obstacle::new(reasons::UNSUPPORTED, unavailable.to_string()));
    }
    let owner = PoolOwner {
        kind: "ActionQueue".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    for pool in &queue.spec.pools {
        usable(pool, &owner, &seen.pools)?;
    }
    let pools: Vec<&ResourcePool> = seen.pools.values().map(|pool| &**pool).collect();
    quotas(queue, &pools)?;
    let Some(issuer) = seen.issuer.as_deref() else {
        let message = "the API server has not yet told the keys of its tokens";
        return Err(Obstacle::new(reasons::WAITING_FOR_KEYS, message));
    };
    let Some(metrics_token) = seen.metrics_token.as_deref() else {
        let message = format!(
            "the release has no Secret \"{}\" with a key token, without which metrics would be open \
             to all",
            seen.metrics_secret
        );
        return Err(Obstacle::new(reasons::SECRET_NOT_FOUND, message));
    };
    let claims = seen.claims.as_deref();
    let rewards = seen.rewards.values().map(|service| &**service).collect();
    Ok(Validated { queue, namespace, name, pools, rewards, issuer, metrics_token, claims })
}

/// Names of Services are stricter than names of custom resources.
fn service_name(name: &str) -> Result<(), Obstacle> {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if begins && name.bytes().all(letters) && name.len() <= LONGEST_NAME {
        return Ok(());
    }
    let message = format!(
        "\"{name}\" cannot be the name of a Service; a queue's name has at most {LONGEST_NAME} \
         lower-case letters, digits and '-', a letter first, for example \"tools\""
    );
    Err(Obstacle::new(reasons::INVALID_SPEC, message))
}

/// Whether a pool exists, may be used from here, is of a right type, and is the queue's.
fn usable(
    name: &str,
    owner: &PoolOwner,
    pools: &BTreeMap<String, Arc<ResourcePool>>,
) -> Result<(), Obstacle> {
    let Some(pool) = pools.get(name) else {
        let message = format!("there is no ResourcePool \"{name}\"");
        return Err(Obstacle::new(reasons::POOL_NOT_FOUND, message));
    };
    if !allows(&pool.spec, &owner.namespace) {
        let message = format!(
            "ResourcePool \"{name}\" does not allow namespace \"{}\"; add it to spec.allowedNamespaces of the pool",
            owner.namespace
        );
        return Err(Obstacle::new(reasons::NAMESPACE_NOT_ALLOWED, message));
    }
    if pool.spec.gpu.as_ref().is_some_and(|gpu| !gpu.hosts.contains(&GpuRole::Reward)) {
        let message = format!(
            "ResourcePool \"{name}\" hosts no rewards; add Reward to spec.gpu.hosts of the pool"
        );
        return Err(Obstacle::new(reasons::POOL_TYPE_MISMATCH, message));
    }
    match pool.status.as_ref().and_then(|status| status.bound_to.as_ref()) {
        Some(bound) if bound == owner => Ok(()),
        Some(bound) => {
            let PoolOwner { kind, namespace, name: other } = bound;
            let message = format!(
                "ResourcePool \"{name}\" is bound to {kind} {namespace}/{other}; a pool has one owner"
            );
            Err(Obstacle::new(reasons::OWNED_BY_ANOTHER, message))
        }
        None => {
            let message = format!("ResourcePool \"{name}\" is not bound yet");
            Err(Obstacle::new(reasons::WAITING_FOR_POOL, message))
        }
    }
}

/// Each limit is in one pool, and each that a profile names is in some pool.
fn quotas(queue: &ActionQueue, pools: &[&ResourcePool]) -> Result<(), Obstacle> {
    let ambiguous = |message: String| Obstacle::new(reasons::QUOTA_AMBIGUOUS, message);
    let mut limits: BTreeMap<&str, &str> = BTreeMap::new();
    for pool in pools {
        let of = pool.metadata.name.as_deref().unwrap_or_default();
        for limit in pool.spec.quota.iter().flat_map(|quota| &quota.limits) {
            if let Some(other) = limits.insert(&limit.name, of) {
                return Err(ambiguous(format!(
                    "limit \"{}\" is in pool \"{other}\" and in pool \"{of}\"; a queue's limits need names of their own",
                    limit.name
                )));
            }
        }
    }
    for profile in &queue.spec.profiles {
        if let Some(name) = profile.quota.keys().find(|name| !limits.contains_key(name.as_str())) {
            return Err(ambiguous(format!(
                "profile \"{}\" uses limit \"{name}\", which no pool of the queue has",
                profile.name
            )));
        }
    }
    Ok(())
}
