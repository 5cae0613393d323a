//! The manifests that a gateway reads at its start, cut down to what it acts on: a change of
//! anything else does not restart it.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use rollwright_crds::engine::{Engine, EngineType, Model};
use rollwright_crds::job::{Allocation, Disaggregation, Fixed, WorkerGroup};
use rollwright_crds::pool::{GpuPool, GpuProfile, GpuRole, ResourcePoolSpec};
use rollwright_crds::{ByteSize, Name, ResourcePool, RolloutJob, RolloutJobSpec, TimeSpan};
use serde::Serialize;

use super::Facts;
use crate::job::engine::{self, Place};
use crate::job::validate::named_pools;
use rollwright_core::router::Role;

/// Key of the manifests in the `ConfigMap`, and name of the file.
pub(super) const FILE: &str = "manifests.yaml";
/// The pool that stands for all.
const STAND_IN: &str = "rollwright-workers";

/// All documents as one file.
pub(super) fn documents(facts: &Facts<'_>) -> Result<String, serde_yaml::Error> {
    let mut file = String::new();
    append(&mut file, &job(facts)?)?;
    for reward in facts.rewards {
        let mut reward = reward.clone();
        reward.metadata = named(&reward.metadata);
        reward.status = None;
        append(&mut file, &reward)?;
    }
    let pools = pools(facts)?;
    for pool in &pools {
        append(&mut file, pool)?;
    }
    for queue in facts.queues {
        let mut queue = queue.clone();
        queue.metadata = named(&queue.metadata);
        queue.status = None;
        append(&mut file, &queue)?;
    }
    let known =
        |pool: &&ResourcePool| !pools.iter().any(|other| other.metadata.name == pool.metadata.name);
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

fn job(facts: &Facts<'_>) -> Result<RolloutJob, serde_yaml::Error> {
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
        allocation: stand_in(facts, allocation)?,
        disaggregation: match disaggregation {
            Some(apart) => Some(one_pool(facts, apart)?),
            None => None,
        },
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
    Ok(job)
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
        env: BTreeMap::new(),
        secret_env: BTreeMap::new(),
        quantization: None,
        ..engine.clone()
    }
}

/// The pools that affinities are found from. Where they are declared, by class, one pool stands
/// for all: workers may then move between pools and degrees without a restart.
fn pools(facts: &Facts<'_>) -> Result<Vec<ResourcePool>, serde_yaml::Error> {
    if facts.spec.auto_affinity {
        return Ok(facts.pools.iter().map(profile_only).collect());
    }
    let gpu = GpuPool {
        node_selector: BTreeMap::new(),
        class: stand_in_name()?,
        profile: GpuProfile {
            tflops: 1.0,
            hbm: ByteSize::mib(1),
            hbm_tbps: 1.0,
            cost_per_hour: 0.0,
        },
        gpus_per_node: 8,
        host_memory: None,
        hosts: vec![GpuRole::Generation],
    };
    let spec =
        ResourcePoolSpec { cpu: None, gpu: Some(gpu), quota: None, allowed_namespaces: Vec::new() };
    Ok(vec![ResourcePool::new(STAND_IN, spec)])
}

/// The smallest degree on each pool: what affinities are found from. How many workers there are,
/// the gateway is told while it runs.
fn stand_in(facts: &Facts<'_>, allocation: &Allocation) -> Result<Allocation, serde_yaml::Error> {
    let (degree, names) = if facts.spec.auto_affinity {
        let fixed = allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
        let adaptive = allocation.adaptive.iter().flat_map(|adaptive| &adaptive.degrees);
        let smallest = fixed.map(|group| group.degree).chain(adaptive.copied()).min();
        let names = named_pools(facts.spec).into_iter().cloned().collect();
        (smallest.unwrap_or(1), names)
    } else {
        (1, vec![stand_in_name()?])
    };
    let group = |pool| WorkerGroup { pool, degree, workers: 1 };
    Ok(Allocation {
        fixed: Some(Fixed { groups: names.into_iter().map(group).collect() }),
        adaptive: None,
        min_serving_percent: 0,
        drain_timeout: TimeSpan::secs(1),
    })
}

fn one_pool(
    facts: &Facts<'_>,
    apart: &Disaggregation,
) -> Result<Disaggregation, serde_yaml::Error> {
    if facts.spec.auto_affinity {
        return Ok(apart.clone());
    }
    Ok(Disaggregation {
        prefill_pool: stand_in_name()?,
        decode_pool: stand_in_name()?,
        ratio: "1:1".to_owned(),
    })
}

fn stand_in_name() -> Result<Name, serde_yaml::Error> {
    serde_yaml::from_str(STAND_IN)
}

/// A pool without what the gateway does not act on.
fn profile_only(pool: &ResourcePool) -> ResourcePool {
    let mut spec = pool.spec.clone();
    if let Some(gpu) = &mut spec.gpu {
        gpu.node_selector.clear();
    }
    ResourcePool { metadata: named(&pool.metadata), spec, status: None }
}
