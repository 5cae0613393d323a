//! Who owns a pool. One claimant at a time: an ActionQueue, or the generation of RolloutJobs
//! together. Whoever has it keeps it; else the oldest claimant gets it, then the first by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use rollwright_crds::pool::{GpuRole, PoolOwner};
use rollwright_crds::{ActionQueue, ResourcePoolSpec, RolloutJob, RolloutJobSpec};

use super::nodes::has_ended;
use crate::labels::{self, Component};
use crate::queue::Names;
use crate::stores::Stores;

/// One object that names the pool and may have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) owner: PoolOwner,
    pub(super) created: Timestamp,
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ownership {
    /// Whose the pool is.
    pub(super) owner: Option<PoolOwner>,
    /// Who wants it beside the owner, in order.
    pub(super) refused: Vec<PoolOwner>,
}

/// Kinds of owners, as they stand in `boundTo`.
pub(super) const QUEUE: &str = "ActionQueue";
pub(super) const JOB: &str = "RolloutJob";

/// Whether a queue runs on the pool, or will when its pod comes up again, whatever its spec says
/// now: one that cannot be built goes on as it was, and one that is gone takes its time to end.
pub(super) fn runs_on(queue: &PoolOwner, pool: &str, stores: &Stores) -> bool {
    let names = |meta: &ObjectMeta| {
        let pools = meta.annotations.as_ref().and_then(|all| all.get(labels::POOLS));
        pools.is_some_and(|pools| pools.split(',').any(|of| of == pool))
    };
    let set = ObjectRef::new(&Names::of(&queue.name).queue).within(&queue.namespace);
    if stores.stateful_sets.get(&set).is_some_and(|set| names(&set.metadata)) {
        return true;
    }
    let pods = stores.pods.state_filter(|pod| {
        pod.metadata.namespace.as_ref() == Some(&queue.namespace)
            && queue_of(&pod.metadata) == Some(&queue.name)
            && !has_ended(pod)
            && names(&pod.metadata)
    });
    !pods.is_empty()
}

/// The queue that a pod is of, by its labels.
pub(super) fn queue_of(meta: &ObjectMeta) -> Option<&String> {
    let labels = meta.labels.as_ref()?;
    let is_queue = labels.get(labels::COMPONENT).is_some_and(|of| of == Component::Queue.as_str());
    labels.get(labels::INSTANCE).filter(|_| is_queue)
}

/// All claims to the pool called `pool`. Beside the jobs that name it, those whose workers are
/// still in it (`holders`) have one: who drains his workers has their GPUs.
pub(super) fn claims(
    pool: &str,
    spec: &ResourcePoolSpec,
    queues: &[Arc<ActionQueue>],
    jobs: &[Arc<RolloutJob>],
    holders: &BTreeSet<(String, String)>,
) -> Vec<Claim> {
    let holds = |meta: &ObjectMeta| {
        let key = meta.namespace.clone().zip(meta.name.clone());
        key.is_some_and(|key| holders.contains(&key))
    };
    let hosts = |role| spec.gpu.as_ref().is_none_or(|gpu| gpu.hosts.contains(&role));
    let mut claims = Vec::new();
    if hosts(GpuRole::Reward) {
        let named = queues.iter().filter(|queue| queue.spec.pools.iter().any(|of| **of == *pool));
        let named = named.filter(|queue| queue.metadata.deletion_timestamp.is_none());
        claims.extend(named.filter_map(|queue| claim(QUEUE, &queue.metadata, spec)));
    }
    if spec.gpu.is_some() {
        let named = jobs.iter().filter(|job| {
            let wants = !job.spec.suspend
                && job.metadata.deletion_timestamp.is_none()
                && hosts(GpuRole::Generation)
                && names(&job.spec, pool);
            wants || holds(&job.metadata)
        });
        claims.extend(named.filter_map(|job| claim(JOB, &job.metadata, spec)));
    }
    claims
}

fn claim(kind: &str, meta: &ObjectMeta, pool: &ResourcePoolSpec) -> Option<Claim> {
    let namespace = meta.namespace.clone()?;
    if !allows(pool, &namespace) {
        return None;
    }
    let owner = PoolOwner { kind: kind.to_owned(), namespace, name: meta.name.clone()? };
    let created = meta.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
    Some(Claim { owner, created })
}

/// Whether a pool may be used from a namespace.
pub fn allows(pool: &ResourcePoolSpec, namespace: &str) -> bool {
    let allowed = &pool.allowed_namespaces;
    allowed.is_empty() || allowed.iter().any(|allowed| allowed.as_str() == namespace)
}

/// Whether a job's workers may be in the pool.
pub(super) fn names(job: &RolloutJobSpec, pool: &str) -> bool {
    let fixed = job.allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
    let adaptive = job.allocation.adaptive.iter().flat_map(|adaptive| &adaptive.pools);
    let split =
        job.disaggregation.iter().flat_map(|split| [&split.prefill_pool, &split.decode_pool]);
    fixed.map(|group| &group.pool).chain(adaptive).chain(split).any(|name| name.as_str() == pool)
}

/// Decides. `incumbent` is the owner so far; it keeps the pool while it claims it, or while
/// it exists and nobody can read what it claims, or while it has workers there or runs on it
/// (`stays`).
pub(super) fn decide(
    mut claims: Vec<Claim>,
    incumbent: Option<&PoolOwner>,
    stays: bool,
) -> Ownership {
    claims.sort_by(|a, b| key(a).cmp(&key(b)));
    let owners: Vec<PoolOwner> = claims.into_iter().map(|claim| claim.owner).collect();
    let kept = incumbent.filter(|incumbent| stays || owners.contains(incumbent));
    // A job that ends leaves the pool to the other jobs, not to a queue.
    let heir = incumbent.filter(|incumbent| incumbent.kind == JOB);
    let heir = heir.and_then(|_| owners.iter().find(|owner| owner.kind == JOB));
    let owner = kept.or(heir).or(owners.first()).cloned();
    let shares = |other: &PoolOwner| {
        owner
            .as_ref()
            .is_some_and(|owner| owner == other || (owner.kind == JOB && other.kind == JOB))
    };
    let refused = owners.iter().filter(|other| !shares(other)).cloned().collect();
    Ownership { owner, refused }
}

fn key(claim: &Claim) -> (Timestamp, &str, &str, &str) {
    let PoolOwner { kind, namespace, name } = &claim.owner;
    (claim.created, kind, namespace, name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(kind: &str, name: &str, created: i64) -> Claim {
        let owner =
            PoolOwner { kind: kind.to_owned(), namespace: "n".to_owned(), name: name.to_owned() };
        Claim { owner, created: Timestamp::from_second(created).unwrap() }
    }

    #[test]
    fn the_oldest_claim_wins_then_the_name() {
        let ownership = decide(
            vec![claim(QUEUE, "b", 1), claim(QUEUE, "a", 1), claim(QUEUE, "c", 0)],
            None,
            false,
        );
        assert_eq!(ownership.owner, Some(claim(QUEUE, "c", 0).owner));
        assert_eq!(
            ownership.refused.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn jobs_share_a_pool_and_inherit_it() {
        let (one, two, queue) = (claim(JOB, "one", 1), claim(JOB, "two", 3), claim(QUEUE, "q", 2));
        let ownership = decide(vec![one.clone(), two.clone(), queue.clone()], None, false);
        assert_eq!(ownership.owner.as_ref(), Some(&one.owner));
        assert_eq!(ownership.refused, std::slice::from_ref(&queue.owner));
        let after = decide(vec![two.clone(), queue.clone()], ownership.owner.as_ref(), false);
        assert_eq!(after.owner, Some(two.owner));
    }

    #[test]
    fn an_owner_that_cannot_be_read_keeps_its_pool() {
        let old = claim(QUEUE, "old", 0).owner;
        let new = claim(QUEUE, "new", 1);
        let ownership = decide(vec![new.clone()], Some(&old), true);
        assert_eq!(
            ownership,
            Ownership { owner: Some(old.clone()), refused: vec![new.owner.clone()] }
        );
        assert_eq!(decide(vec![new.clone()], Some(&old), false).owner, Some(new.owner));
    }

    proptest! {
        /// The order in which claims are seen does not count, and deciding again changes nothing.
        #[test]
        fn a_decision_is_stable(
            all in proptest::collection::vec((any::<bool>(), 0..4_u8, 0..3_i64), 0..6),
            turn in 0..6_usize,
        ) {
            let mut claims: Vec<Claim> = all
                .iter()
                .map(|(job, name, at)| claim(if *job { JOB } else { QUEUE }, &name.to_string(), *at))
                .collect();
            claims.sort_by(|a, b| key(a).cmp(&key(b)));
            claims.dedup_by(|a, b| a.owner == b.owner);
            let first = decide(claims.clone(), None, false);
            let middle = turn.min(claims.len());
            claims.rotate_left(middle);
            prop_assert_eq!(&decide(claims.clone(), None, false), &first);
            let again = decide(claims.clone(), first.owner.as_ref(), false);
            prop_assert_eq!(&again, &first);
            prop_assert_eq!(first.owner.is_none(), claims.is_empty());
            // A newcomer takes nothing from an owner.
            claims.push(claim(QUEUE, "newcomer", -1));
            let newcomer = claims[claims.len() - 1].owner.clone();
            let expected = first.owner.clone().unwrap_or(newcomer);
            prop_assert_eq!(decide(claims, first.owner.as_ref(), false).owner, Some(expected));
        }
    }
}
