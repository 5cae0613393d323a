//! The manifests that a gateway reads at its start, cut down to what it acts on: a change of
//! anything else does not restart it.

use kube::core::ObjectMeta;
use rollwright_crds::engine::{Engine, EngineType, Model};
use rollwright_crds::job::{Adaptive, Allocation, Fixed};
use rollwright_crds::pool::{GpuPool, ResourcePoolSpec};
use rollwright_crds::{ResourcePool, RolloutJob, RolloutJobSpec};
use serde::Serialize;

use super::Facts;
use crate::job::engine::{self, Place};
use crate::job::fleet::Role;

/// Key of the manifests in the `ConfigMap`, and name of the file.
pub(super) const FILE: &str = "manifests.yaml";

/// All documents as one file.
pub(super) fn documents(facts: &Facts<'_>) -> Result<String, serde_yaml::Error> {
    let mut file = String::new();
    append(&mut file, &job(facts))?;
    for reward in facts.rewards {
        let mut reward = reward.clone();
        reward.metadata = named(&reward.metadata);
        reward.status = None;
        append(&mut file, &reward)?;
    }
    for pool in facts.pools {
        append(&mut file, &gpu_pool(pool))?;
    }
    for queue in facts.queues {
        let mut queue = queue.clone();
        queue.metadata = named(&queue.metadata);
        queue.status = None;
        append(&mut file, &queue)?;
    }
    let known = |pool: &&ResourcePool| {
        !facts.pools.iter().any(|other| other.metadata.name == pool.metadata.name)
    };
    for pool in facts.queue_pools.iter().filter(known) {
        let mut pool = pool.clone();
        pool.metadata = named(&pool.metadata);
        pool.status = None;
        append(&mut file, &pool)?;
    }
    Ok(file)
}

fn append<T: Serialize>(file: &mut String, document: &T) -> Result<(), serde_yaml::Error> {
    if !file.is_empty() {
        file.push_str("---\n");
    }
    file.push_str(&serde_yaml::to_string(document)?);
    Ok(())
}

fn named(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        ..ObjectMeta::default()
    }
}

fn job(facts: &Facts<'_>) -> RolloutJob {
    // Without `..`: a new field is either read by the gateway or cut here.
    let RolloutJobSpec {
        model,
        engine,
        allocation,
        disaggregation,
        hardware_affinity,
        auto_affinity,
        rollout,
        action_queue: _,
        reward_services,
        priority: _,
        suspend: _,
    } = facts.spec;
    let spec = RolloutJobSpec {
        model: Model { volume: None, ..model.clone() },
        engine: engine_read(model, engine),
        allocation: degrees_only(allocation),
        disaggregation: disaggregation.clone(),
        hardware_affinity: hardware_affinity.clone(),
        auto_affinity: *auto_affinity,
        rollout: rollout.clone(),
        // Where it is, is said on the command line.
        action_queue: None,
        reward_services: reward_services.clone(),
        priority: 0,
        suspend: false,
    };
    let mut job = RolloutJob::new(facts.job, spec);
    job.metadata.namespace = Some(facts.namespace.to_owned());
    job
}

/// Dialect and reload path, and the arguments: they tell whether priorities are taken.
fn engine_read(model: &Model, engine: &Engine) -> Engine {
    let place = Place { degree: 1, role: Role::Mixed, nodes: 1, leads: true };
    let mut args = engine::command_line(model, engine, place).args;
    if engine.kind == EngineType::OpenAI {
        args.clone_from(&engine.args);
    }
    args.retain(|arg| arg.contains("scheduling"));
    Engine {
        args,
        image: "started-by-the-controllers".into(),
        env: std::collections::BTreeMap::new(),
        secret_env: std::collections::BTreeMap::new(),
        quantization: None,
        ..engine.clone()
    }
}

/// Its pools and degrees; how many workers there are, the gateway is told while it runs.
fn degrees_only(allocation: &Allocation) -> Allocation {
    let fixed = allocation.fixed.as_ref().map(|fixed| {
        let mut groups = fixed.groups.clone();
        for group in &mut groups {
            group.workers = 1;
        }
        Fixed { groups }
    });
    let adaptive = allocation.adaptive.as_ref().map(|adaptive| Adaptive {
        gpus: adaptive.degrees.iter().copied().max().unwrap_or(1),
        max_workers: None,
        ..adaptive.clone()
    });
    Allocation {
        fixed,
        adaptive,
        min_serving_percent: 0,
        drain_timeout: rollwright_crds::TimeSpan::secs(1),
    }
}

/// Class and profile: what affinities are decided by.
fn gpu_pool(pool: &ResourcePool) -> ResourcePool {
    let gpu = pool
        .spec
        .gpu
        .as_ref()
        .map(|gpu| GpuPool { node_selector: std::collections::BTreeMap::new(), ..gpu.clone() });
    let spec = ResourcePoolSpec {
        cpu: pool.spec.cpu.clone(),
        gpu,
        quota: pool.spec.quota.clone(),
        allowed_namespaces: pool.spec.allowed_namespaces.clone(),
    };
    ResourcePool { metadata: named(&pool.metadata), spec, status: None }
}
