//! What several manifests must say together.

use std::collections::{BTreeMap, BTreeSet};

use super::{Check, Violation};
use crate::manifest::Manifest;
use crate::{ActionQueue, ResourcePool, RewardService, RolloutJob};

/// Checks that everything a set of manifests refers to is in the set and of the right
/// sort, that no object is there twice and that no pool has two queues. Each violation
/// comes with the index of the manifest that it belongs to.
pub fn references(manifests: &[Manifest]) -> Vec<(usize, Violation)> {
    let set = Set::of(manifests);
    let mut all = Vec::new();
    let mut identities = BTreeSet::new();
    let mut bound: BTreeMap<&str, &str> = BTreeMap::new();
    for (index, manifest) in manifests.iter().enumerate() {
        let mut found = Vec::new();
        let identity = (manifest.kind(), manifest.namespace(), manifest.name());
        if !identities.insert(identity) {
            Check::new("metadata.name", &mut found)
                .fail(format!("{manifest} is there twice; each must be different"));
        }
        let mut spec = Check::new("spec", &mut found);
        match manifest {
            Manifest::ResourcePool(_) => {}
            Manifest::ActionQueue(queue) => {
                set.queue(queue, manifest.namespace(), &mut spec);
                for (at, pool) in queue.spec.pools.iter().enumerate() {
                    if let Some(owner) = bound.insert(pool, manifest.name()) {
                        spec.item("pools", at).fail(format!(
                            "ResourcePool \"{pool}\" is bound to ActionQueue \"{owner}\" already; a pool has one owner"
                        ));
                    }
                }
            }
            Manifest::RewardService(service) => {
                set.reward(service, manifest.namespace(), &mut spec);
            }
            Manifest::RolloutJob(job) => set.job(job, manifest.namespace(), &mut spec),
        }
        all.extend(found.into_iter().map(|violation| (index, violation)));
    }
    all
}

type ByName<'a, T> = BTreeMap<(&'a str, &'a str), &'a T>;

/// The objects by namespace and name.
struct Set<'a> {
    pools: ByName<'a, ResourcePool>,
    queues: ByName<'a, ActionQueue>,
    rewards: ByName<'a, RewardService>,
}

impl<'a> Set<'a> {
    fn of(manifests: &'a [Manifest]) -> Self {
        let mut set =
            Self { pools: BTreeMap::new(), queues: BTreeMap::new(), rewards: BTreeMap::new() };
        for manifest in manifests {
            let key = (manifest.namespace(), manifest.name());
            match manifest {
                Manifest::ResourcePool(pool) => drop(set.pools.insert(key, pool)),
                Manifest::ActionQueue(queue) => drop(set.queues.insert(key, queue)),
                Manifest::RewardService(reward) => drop(set.rewards.insert(key, reward)),
                Manifest::RolloutJob(_) => {}
            }
        }
        set
    }

    /// The pool of that name, if the namespace may use it.
    fn pool(&self, name: &str, namespace: &str, check: &mut Check<'_>) -> Option<&'a ResourcePool> {
        let Some(pool) = self.pools.get(&("", name)) else {
            check.fail(missing("ResourcePool", name, self.pools.keys().map(|(_, name)| *name)));
            return None;
        };
        let allowed = &pool.spec.allowed_namespaces;
        check.require(
            allowed.is_empty() || allowed.iter().any(|allowed| allowed.as_str() == namespace),
            &format!("ResourcePool \"{name}\" does not allow namespace \"{namespace}\"; add it to spec.allowedNamespaces of the pool"),
        );
        Some(pool)
    }

    fn gpu_pool(&self, name: &str, namespace: &str, check: &mut Check<'_>) {
        if let Some(pool) = self.pool(name, namespace, check) {
            check.require(
                pool.spec.gpu.is_some(),
                &format!(
                    "ResourcePool \"{name}\" is not a gpu pool, and a gpu pool is needed here"
                ),
            );
        }
    }

    fn find_queue(
        &self,
        name: &str,
        namespace: &str,
        check: &mut Check<'_>,
    ) -> Option<&'a ActionQueue> {
        let queue = self.queues.get(&(namespace, name)).copied();
        if queue.is_none() {
            check.fail(missing_in(namespace, "ActionQueue", name, &self.queues));
        }
        queue
    }

    fn queue(&self, queue: &ActionQueue, namespace: &str, spec: &mut Check<'_>) {
        let mut limits: BTreeMap<&str, &str> = BTreeMap::new();
        for (index, name) in queue.spec.pools.iter().enumerate() {
            let mut at = spec.item("pools", index);
            let Some(pool) = self.pool(name, namespace, &mut at) else { continue };
            for limit in pool.spec.quota.iter().flat_map(|quota| &quota.limits) {
                if let Some(other) = limits.insert(&limit.name, name) {
                    at.fail(format!(
                        "limit \"{}\" is in pool \"{other}\" and in pool \"{name}\"; a queue's limits need names of their own",
                        limit.name
                    ));
                }
            }
        }
        for (index, profile) in queue.spec.profiles.iter().enumerate() {
            for name in profile.quota.keys().filter(|name| !limits.contains_key(name.as_str())) {
                let message = missing("limit", name, limits.keys().copied());
                spec.item("profiles", index).field("quota").field(name).fail(message);
            }
        }
    }

    fn reward(&self, service: &RewardService, namespace: &str, spec: &mut Check<'_>) {
        if let Some(gpu) = &service.spec.gpu {
            let mut at = spec.field("gpu");
            self.gpu_pool(&gpu.pool, namespace, &mut at.field("pool"));
            if let Some(queue) = self.find_queue(&gpu.queue, namespace, &mut at.field("queue")) {
                at.field("pool").require(
                    queue.spec.pools.contains(&gpu.pool),
                    &format!(
                        "ActionQueue \"{}\" does not schedule ResourcePool \"{}\"; add it to spec.pools of the queue",
                        gpu.queue, gpu.pool
                    ),
                );
            }
        }
        let Some(sandbox) = &service.spec.sandbox else { return };
        let mut at = spec.field("sandbox");
        let Some(queue) = self.find_queue(&sandbox.queue, namespace, &mut at.field("queue")) else {
            return;
        };
        let templates = || queue.spec.templates.iter().map(|template| template.name.as_str());
        if !templates().any(|name| name == sandbox.template.as_str()) {
            at.field("template").fail(missing("template", &sandbox.template, templates()));
        }
        let profiles = || queue.spec.profiles.iter().map(|profile| profile.name.as_str());
        if !profiles().any(|name| name == sandbox.profile.as_str()) {
            at.field("profile").fail(missing("profile", &sandbox.profile, profiles()));
        }
    }

    fn job(&self, job: &RolloutJob, namespace: &str, spec: &mut Check<'_>) {
        let mut allocation = spec.field("allocation");
        if let Some(fixed) = &job.spec.allocation.fixed {
            let mut at = allocation.field("fixed");
            for (index, group) in fixed.groups.iter().enumerate() {
                let mut at = at.item("groups", index);
                self.gpu_pool(&group.pool, namespace, &mut at.field("pool"));
            }
        }
        if let Some(adaptive) = &job.spec.allocation.adaptive {
            let mut at = allocation.field("adaptive");
            for (index, pool) in adaptive.pools.iter().enumerate() {
                self.gpu_pool(pool, namespace, &mut at.item("pools", index));
            }
        }
        if let Some(split) = &job.spec.disaggregation {
            let mut at = spec.field("disaggregation");
            self.gpu_pool(&split.prefill_pool, namespace, &mut at.field("prefillPool"));
            self.gpu_pool(&split.decode_pool, namespace, &mut at.field("decodePool"));
        }
        if let Some(queue) = &job.spec.action_queue {
            let namespace = queue.namespace.as_deref().unwrap_or(namespace);
            self.find_queue(&queue.name, namespace, &mut spec.field("actionQueue").field("name"));
        }
        for (index, reward) in job.spec.reward_services.iter().enumerate() {
            if !self.rewards.contains_key(&(namespace, reward.name.as_str())) {
                let message = missing_in(namespace, "RewardService", &reward.name, &self.rewards);
                spec.item("rewardServices", index).field("name").fail(message);
            }
        }
    }
}

fn missing<'a>(what: &str, name: &str, there: impl Iterator<Item = &'a str>) -> String {
    let there: Vec<String> = there.map(|name| format!("\"{name}\"")).collect();
    if there.is_empty() {
        format!("there is no {what} \"{name}\", nor any other {what}")
    } else {
        format!("there is no {what} \"{name}\"; there is {}", there.join(", "))
    }
}

/// As [`missing`], of a namespace: what is there in others alone is told.
fn missing_in<T>(namespace: &str, what: &str, name: &str, there: &ByName<'_, T>) -> String {
    let of_name = there.keys().filter(|(_, of)| *of == name);
    let elsewhere: Vec<String> = of_name.map(|(of, _)| format!("\"{of}\"")).collect();
    let here = || there.keys().filter(|(of, _)| *of == namespace).map(|(_, name)| *name);
    if !elsewhere.is_empty() {
        format!(
            "there is no {what} \"{name}\" in namespace \"{namespace}\"; there is one in namespace {}",
            elsewhere.join(", ")
        )
    } else if here().next().is_none() && !there.is_empty() {
        format!("there is no {what} \"{name}\" in namespace \"{namespace}\", nor any other {what}")
    } else {
        missing(what, name, here())
    }
}
