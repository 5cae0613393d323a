//! From `RewardService`s with `gpu` to settings.

use std::collections::BTreeMap;
use std::time::Duration;

use rollwright_auth::Namespace;
use rollwright_core::gpu::{Degree, Footprint, InvalidDegree, Limits, Service};
use rollwright_core::ids::{InvalidId, JobId};
use rollwright_crds::engine::EngineType;
use rollwright_crds::pool::GpuRole;
use rollwright_crds::reward::{EvictBackend, GpuReward, Misfit};
use rollwright_crds::{ActionQueue, ByteSize, ResourcePool, RewardService};
use rollwright_proto::v1 as pb;

use super::config::{GpuPool, GpuService};
use crate::config::QueueConfig;
use crate::manifest::JobNames;

/// What an engine moves in a second, until it is measured.
const EXPECTED_BANDWIDTH: u64 = 20 << 30;
/// What starting an engine takes, until it is measured.
const EXPECTED_LAUNCH: Duration = Duration::from_mins(1);
/// The image of an engine that is a process of its node; `args` are its whole command line.
const PROCESS: &str = "process";
/// Calls that wait or run at most: the bytes of their bodies are bounded beside that.
const MOST_CALLS: usize = 20_000;

/// Why `RewardService`s do not make a GPU pool.
#[derive(Debug, thiserror::Error)]
pub enum GpuManifestError {
    /// Its pool is none of the queue's.
    #[error(
        "RewardService `{service}`: spec.gpu.pool is `{pool}`, but queue `{queue}` has no such pool with `gpu` that hosts Reward; it has: [{known}]"
    )]
    UnknownPool {
        /// The service.
        service: String,
        /// The queue.
        queue: String,
        /// The pool that is missing.
        pool: String,
        /// Those that are there.
        known: String,
    },
    /// Its pool can never hold it: refused here as the controllers refuse it on a cluster.
    #[error("RewardService `{service}`: {}: spec.gpu.{}: {misfit}", .misfit.reason(), .misfit.field())]
    DoesNotFit {
        /// The service.
        service: String,
        /// Why, and what would be right.
        misfit: Misfit,
    },
    /// A degree is none.
    #[error("RewardService `{service}`: spec.gpu.degrees: {source}")]
    Degree {
        /// The service.
        service: String,
        /// Why.
        source: InvalidDegree,
    },
    /// A degree has no footprint.
    #[error("RewardService `{service}`: spec.gpu.footprints has no entry for degree {degree}")]
    NoFootprint {
        /// The service.
        service: String,
        /// The degree.
        degree: u32,
    },
    /// A name is no name.
    #[error("RewardService `{service}`: {source}")]
    Name {
        /// The service.
        service: String,
        /// Why.
        source: InvalidId,
    },
    /// Services of namespaces, and none is said.
    #[error(
        "RewardService `{service}`: metadata.namespace is needed where jobs are told apart by theirs"
    )]
    NoNamespace {
        /// The service.
        service: String,
    },
}

impl QueueConfig {
    /// Adds the GPU pools of `queue` and the `services` that name it. Others are left out.
    pub fn add_rewards(
        &mut self,
        queue: &ActionQueue,
        pools: &[ResourcePool],
        services: &[RewardService],
        names: JobNames,
    ) -> Result<(), GpuManifestError> {
        self.namespaced = names == JobNames::Namespaced;
        let max_calls = (queue.spec.limits.max_waiting as usize).min(MOST_CALLS);
        let of_queue = pools.iter().filter_map(|pool| {
            let name = pool.metadata.name.clone()?;
            let gpu = pool.spec.gpu.as_ref().filter(|gpu| gpu.hosts.contains(&GpuRole::Reward))?;
            queue.spec.pools.iter().any(|of| name == of.as_str()).then_some((name, gpu))
        });
        let mut made: BTreeMap<_, _> = of_queue
            .map(|(name, gpu)| {
                let pool = GpuPool { name: name.clone(), services: Vec::new(), max_calls };
                (name, (pool, gpu))
            })
            .collect();
        for service in services {
            let Some(gpu) = service.spec.gpu.as_ref().filter(|gpu| gpu.queue.as_str() == self.name)
            else {
                continue;
            };
            let id = id(service, queue, names)?;
            let known = made.keys().cloned().collect::<Vec<_>>().join(", ");
            let (pool, size) = made.get_mut(gpu.pool.as_str()).ok_or_else(|| {
                let (service, queue) = (id.clone(), self.name.clone());
                GpuManifestError::UnknownPool { service, queue, pool: gpu.pool.to_string(), known }
            })?;
            gpu.fits(size).map_err(|misfit| {
                let service = id.clone();
                GpuManifestError::DoesNotFit { service, misfit }
            })?;
            pool.services.push(read(&id, gpu)?);
        }
        self.gpu_pools = made.into_values().map(|(pool, _)| pool).collect();
        Ok(())
    }
}

/// What a service is called at the queue.
fn id(
    service: &RewardService,
    queue: &ActionQueue,
    names: JobNames,
) -> Result<String, GpuManifestError> {
    let name = service.metadata.name.clone().unwrap_or_default();
    let id = if names == JobNames::Plain {
        name.clone()
    } else {
        let own = service.metadata.namespace.as_deref();
        let namespace = own.or(queue.metadata.namespace.as_deref());
        let namespace = namespace.and_then(|namespace| Namespace::new(namespace).ok());
        let missing = || GpuManifestError::NoNamespace { service: name.clone() };
        namespace.ok_or_else(missing)?.qualify(&name)
    };
    JobId::new(&id).map_err(|source| GpuManifestError::Name { service: name, source })?;
    Ok(id)
}

fn read(id: &str, gpu: &GpuReward) -> Result<GpuService, GpuManifestError> {
    let mut degrees = BTreeMap::new();
    for gpus in &gpu.degrees {
        let degree = Degree::new(*gpus)
            .map_err(|source| GpuManifestError::Degree { service: id.to_owned(), source })?;
        let footprint = gpu.footprints.iter().find(|of| of.degree == *gpus);
        let footprint = footprint.ok_or_else(|| GpuManifestError::NoFootprint {
            service: id.to_owned(),
            degree: *gpus,
        })?;
        let device = footprint.device.bytes();
        let moving = Duration::from_secs_f64(device as f64 / EXPECTED_BANDWIDTH as f64);
        let expected = Limits {
            launch: EXPECTED_LAUNCH + moving,
            wake: Duration::from_millis(500) + moving,
            evict: Duration::from_secs(1),
            stop: Duration::from_secs(5),
        };
        let residue = footprint.residue.map_or(0, ByteSize::bytes);
        let host = footprint.host.map_or(0, ByteSize::bytes);
        degrees.insert(degree, Footprint { device, residue, host, expected });
    }
    let core = Service {
        name: id.to_owned(),
        batch: gpu.batch as usize,
        pinned: gpu.pinned as usize,
        degrees,
        limits: Limits {
            launch: gpu.limits.launch.duration(),
            wake: gpu.limits.wake.duration(),
            evict: gpu.limits.evict.duration(),
            stop: gpu.limits.stop.duration(),
        },
        timeout: gpu.timeout.duration(),
    };
    Ok(GpuService { engine: engine(id, gpu), core, timeout: gpu.timeout.duration() })
}

fn engine(id: &str, gpu: &GpuReward) -> pb::EngineSpec {
    use pb::engine_spec::{Engine, Evict};
    let kind = match gpu.engine.kind {
        EngineType::Vllm => Engine::Vllm,
        EngineType::SGLang => Engine::Sglang,
        EngineType::OpenAI => Engine::Other,
    };
    let evict = match gpu.evict {
        EvictBackend::EngineSleep => Evict::EngineSleep,
        EvictBackend::HostPinned => Evict::HostPinned,
        EvictBackend::CudaCheckpoint => Evict::CudaCheckpoint,
    };
    let probe = gpu.probe.as_ref();
    let served_name = gpu.model.served_name.clone().unwrap_or_else(|| gpu.model.path.clone());
    pb::EngineSpec {
        service: id.to_owned(),
        engine: kind.into(),
        image: Some(&gpu.engine.image)
            .filter(|image| *image != PROCESS)
            .cloned()
            .unwrap_or_default(),
        args: gpu.engine.args.clone(),
        env: gpu.engine.env.clone().into_iter().collect(),
        model: gpu.model.path.clone(),
        served_name,
        degree: 0,
        evict: evict.into(),
        probe: probe.map(|of| pb::EngineProbe { path: of.path.clone(), body: of.body.clone() }),
        footprint: None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rollwright_crds::manifest::Manifest;
    use rollwright_crds::parse;

    use super::*;

    /// What a service of degrees 1 and 4 is refused for in a pool with these fields more.
    fn refused(pool: &str, hbm: &str) -> Option<String> {
        let head = "apiVersion: rollwright.dev/v1alpha1";
        let text = format!(
            "{head}
kind: ResourcePool
metadata: {{name: judges}}
spec: {{gpu: {{class: h20, profile: {{tflops: 1, hbm: {hbm}, hbmTbps: 1}}, {pool}}}}}
---
{head}
kind: ActionQueue
metadata: {{name: q}}
spec: {{pools: [judges]}}
---
{head}
kind: RewardService
metadata: {{name: judge}}
spec:
  gpu:
    {{queue: q, pool: judges, ask: Pooling, model: {{path: m}}, engine: {{type: vLLM, image: i}}, degrees: [1, 4],
      footprints: [{{degree: 1, device: 48Gi, host: 50Gi}}, {{degree: 4, device: 16Gi}}]}}
"
        );
        let (mut pools, mut services, mut queue) = (Vec::new(), Vec::new(), None);
        for manifest in parse::documents("test.yaml", &text).unwrap() {
            match manifest {
                Manifest::ResourcePool(pool) => pools.push(*pool),
                Manifest::RewardService(service) => services.push(*service),
                Manifest::ActionQueue(found) => queue = Some(*found),
                Manifest::RolloutJob(_) => {}
            }
        }
        let mut config = QueueConfig::new("q".to_owned(), Path::new("/nowhere"));
        let made = config.add_rewards(&queue.unwrap(), &pools, &services, JobNames::Plain);
        assert_eq!(config.gpu_pools.len(), usize::from(made.is_ok()));
        made.err().map(|error| error.to_string())
    }

    #[test]
    fn a_service_that_its_pool_can_never_hold_is_refused() {
        let large = "gpusPerNode: 4, hostMemory: 50Gi";
        assert_eq!(refused(large, "48Gi"), None);
        // Without `hostMemory` the nodes decide.
        assert_eq!(refused("gpusPerNode: 4", "48Gi"), None);
        for (pool, hbm, begins, ends) in [
            (
                "gpusPerNode: 2",
                "48Gi",
                "RewardService `judge`: DegreeTooLarge: spec.gpu.degrees: degree 4 is more GPUs than a node of ResourcePool \"judges\" has (2)",
                "leave out the degrees above gpusPerNode of the pool",
            ),
            (
                large,
                "47Gi",
                "RewardService `judge`: MemoryTooSmall: spec.gpu.footprints: at degree 1 its device memory is 48Gi, and a GPU of ResourcePool \"judges\" has 47Gi (profile.hbm)",
                "use a larger degree, which needs less on each GPU, or another pool",
            ),
            (
                "gpusPerNode: 4, hostMemory: 49Gi",
                "48Gi",
                "RewardService `judge`: MemoryTooSmall: spec.gpu.footprints: at degree 1 its memory of the node is 50Gi, and a node of ResourcePool \"judges\" has 49Gi (hostMemory)",
                "raise hostMemory of the pool, or use another pool",
            ),
        ] {
            let says = refused(pool, hbm).unwrap();
            assert!(says.starts_with(begins) && says.ends_with(ends), "{says}");
        }
    }
}
