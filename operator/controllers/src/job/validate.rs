//! From a spec and what it names to something that can be built: pure.

use std::collections::BTreeMap;

use rollwright_crds::conditions::reasons;
use rollwright_crds::pool::GpuRole;
use rollwright_crds::reward::RewardServiceSpec;
use rollwright_crds::{ActionQueue, Name, ResourcePool, RewardService, RolloutJob, RolloutJobSpec};

/// Longest name of a job: `NAME-worker-abcdefgh`, `NAME-gateway-metrics` and the revision of a
/// StatefulSet, `NAME-gateway-0123456789`, are names and label values of at most 63 characters.
const LONGEST_NAME: usize = 44;

/// What a job names, as far as it is there.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// `ResourcePool`s.
    pub pools: BTreeMap<Name, ResourcePool>,
    /// The queue that runs its tools, and those of its rewards, by namespace and name.
    pub queues: BTreeMap<(String, Name), ActionQueue>,
    /// `RewardService`s.
    pub rewards: BTreeMap<Name, RewardService>,
    /// The API server knows `LeaderWorkerSet`s.
    pub groups: bool,
}

/// What cannot be made because of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stops {
    /// Workers: those that are there go on behind the gateway.
    Workers,
    /// The gateway, too: one that is there stays as it is.
    All,
}

/// Something that stands in the way of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// One of `rollwright_crds::conditions::reasons`.
    pub reason: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
    /// What it stands in the way of.
    pub stops: Stops,
}

/// The pools that a spec names, each once.
pub fn named_pools(spec: &RolloutJobSpec) -> Vec<&Name> {
    let fixed = spec.allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
    let adaptive = spec.allocation.adaptive.iter().flat_map(|adaptive| &adaptive.pools);
    let apart = spec.disaggregation.iter();
    let apart = apart.flat_map(|apart| [&apart.prefill_pool, &apart.decode_pool]);
    let mut all: Vec<&Name> = fixed.map(|group| &group.pool).chain(adaptive).chain(apart).collect();
    all.sort();
    all.dedup();
    all
}

/// The queue that a reward's command runs on, or that schedules its calls.
pub fn queue_of(reward: &RewardServiceSpec) -> Option<&Name> {
    let sandbox = reward.sandbox.as_ref().map(|sandbox| &sandbox.queue);
    sandbox.or(reward.gpu.as_ref().map(|gpu| &gpu.queue))
}

/// Everything that is wrong; a job without problems can be built.
pub fn problems(job: &RolloutJob, named: &Named) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut say =
        |reason, message: String| found.push(Problem { reason, message, stops: Stops::All });
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    if !is_label(name) || name.len() > LONGEST_NAME {
        say(
            reasons::INVALID_SPEC,
            format!(
                "metadata.name `{name}` becomes part of the names of services and pods: make it \
                 at most {LONGEST_NAME} lower-case letters, digits and '-', a letter first"
            ),
        );
    }
    for violation in job.spec.validate() {
        say(reasons::INVALID_SPEC, violation.to_string());
    }
    for setting in job.spec.unavailable() {
        say(reasons::UNSUPPORTED, setting.to_string());
    }
    if let Some(queue) = &job.spec.action_queue {
        let of = queue.namespace.as_deref().unwrap_or(namespace);
        if !named.queues.contains_key(&(of.to_owned(), queue.name.clone())) {
            say(
                reasons::QUEUE_NOT_FOUND,
                format!("spec.actionQueue: there is no ActionQueue `{of}/{}`", queue.name),
            );
        }
    }
    for reference in &job.spec.reward_services {
        let reward = &reference.name;
        let Some(service) = named.rewards.get(reward) else {
            say(
                reasons::SERVICE_NOT_FOUND,
                format!("spec.rewardServices: there is no RewardService `{namespace}/{reward}`"),
            );
            continue;
        };
        let called = job
            .spec
            .action_queue
            .as_ref()
            .filter(|queue| queue.namespace.as_deref().unwrap_or(namespace) == namespace);
        if let Some(gpu) = &service.spec.gpu
            && called.map(|queue| &queue.name) != Some(&gpu.queue)
        {
            say(
                reasons::UNSUPPORTED,
                format!(
                    "RewardService `{reward}` is called through ActionQueue `{}`, and a gateway \
                     knows that of spec.actionQueue alone: name it there",
                    gpu.queue
                ),
            );
        }
        if let Some(queue) = queue_of(&service.spec)
            && !named.queues.contains_key(&(namespace.to_owned(), queue.clone()))
        {
            say(
                reasons::QUEUE_NOT_FOUND,
                format!(
                    "RewardService `{reward}` runs on ActionQueue `{namespace}/{queue}`, which is \
                     not there"
                ),
            );
        }
    }
    // Where affinities are found from the pools, the gateway has to know them all.
    let stops = if job.spec.auto_affinity { Stops::All } else { Stops::Workers };
    let mut say = |reason, message| found.push(Problem { reason, message, stops });
    for pool in named_pools(&job.spec) {
        match named.pools.get(pool) {
            None => say(
                reasons::POOL_NOT_FOUND,
                format!(
                    "there is no ResourcePool `{pool}`; workers that are there go on, and none \
                     is made"
                ),
            ),
            Some(found) => pool_problems(pool, found, namespace, &mut say),
        }
    }
    sizes(&job.spec, named, &mut say);
    found
}

/// The Secret with the job's API key is there and holds none.
pub(super) fn no_api_key(namespace: &str, job: &str) -> Problem {
    let (name, key) = (super::gateway::api_key_name(job), super::gateway::API_KEY);
    Problem {
        reason: reasons::SECRET_NOT_FOUND,
        message: format!(
            "Secret `{namespace}/{name}` has no `{key}`, or an empty one: put a key there, or \
             delete the Secret to have one made"
        ),
        stops: Stops::All,
    }
}

fn pool_problems(
    name: &Name,
    pool: &ResourcePool,
    namespace: &str,
    say: &mut impl FnMut(&'static str, String),
) {
    let Some(gpu) = &pool.spec.gpu else {
        say(
            reasons::POOL_TYPE_MISMATCH,
            format!("ResourcePool `{name}` has no `gpu`: name a pool of GPUs"),
        );
        return;
    };
    if !gpu.hosts.contains(&GpuRole::Generation) {
        say(
            reasons::POOL_TYPE_MISMATCH,
            format!(
                "ResourcePool `{name}` hosts no generation: add Generation to its spec.gpu.hosts"
            ),
        );
    }
    let allowed = &pool.spec.allowed_namespaces;
    if !allowed.is_empty() && !allowed.iter().any(|other| other.as_str() == namespace) {
        say(
            reasons::NAMESPACE_NOT_ALLOWED,
            format!(
                "ResourcePool `{name}` leaves namespace `{namespace}` out of allowedNamespaces"
            ),
        );
    }
    let owner = pool.status.as_ref().and_then(|status| status.bound_to.as_ref());
    if let Some(owner) = owner.filter(|owner| owner.kind != "RolloutJob") {
        say(
            reasons::OWNED_BY_ANOTHER,
            format!(
                "ResourcePool `{name}` belongs to {} `{}/{}`: two schedulers do not share GPUs",
                owner.kind, owner.namespace, owner.name
            ),
        );
    }
}

/// Degrees against the nodes of the pools.
fn sizes(spec: &RolloutJobSpec, named: &Named, say: &mut impl FnMut(&'static str, String)) {
    let fixed = spec.allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
    let fixed = fixed.map(|group| (&group.pool, group.degree));
    // The smallest degree is what is used until lengths are planned for.
    let adaptive = spec.allocation.adaptive.iter().flat_map(|adaptive| {
        let smallest = adaptive.degrees.iter().copied().min().unwrap_or(1);
        adaptive.pools.iter().map(move |pool| (pool, smallest))
    });
    for (pool, degree) in fixed.chain(adaptive) {
        let gpu = named.pools.get(pool).and_then(|found| found.spec.gpu.as_ref());
        let Some(each) = gpu.map(|gpu| gpu.gpus_per_node).filter(|each| degree > *each) else {
            continue;
        };
        if !named.groups {
            say(
                reasons::UNSUPPORTED,
                format!(
                    "a worker of degree {degree} is more than a node of pool `{pool}` has \
                     ({each}): install LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), or ask for \
                     at most {each}"
                ),
            );
        }
    }
    let adaptive = spec.allocation.adaptive.as_ref();
    if let (Some(adaptive), Some(_)) = (adaptive, &spec.disaggregation) {
        let smallest = adaptive.degrees.iter().copied().min().unwrap_or(1);
        let workers = (adaptive.gpus / smallest).min(adaptive.max_workers.unwrap_or(u32::MAX));
        if workers < 2 {
            say(
                reasons::INVALID_SPEC,
                "disaggregation takes at least 2 workers: raise spec.allocation.adaptive.gpus or \
                 maxWorkers"
                    .to_owned(),
            );
        }
    }
}

/// A name of a Service.
fn is_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(|last| *last != b'-')
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
}

#[cfg(test)]
mod tests;
