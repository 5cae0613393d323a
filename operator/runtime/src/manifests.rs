//! The manifests that a role starts from, in the place of an API server.

use std::path::Path;

use anyhow::{Context as _, bail};
use kube::core::ObjectMeta;
use rollwright_crds::pool::CpuPool;
use rollwright_crds::{ActionQueue, Manifest, ResourcePool, RewardService, RolloutJob};
use rollwright_queue::{JobNames, QueueConfig};

/// One action queue and the pools that it names.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) queue: ActionQueue,
    pub(crate) pools: Vec<ResourcePool>,
    /// All reward services that are there.
    pub(crate) rewards: Vec<RewardService>,
}

impl Bound {
    /// Reads a directory and picks the queue called `name`, or its only one.
    pub(crate) fn read(dir: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        let manifests = rollwright_crds::parse::directory(dir)
            .with_context(|| format!("the manifests in `{}` are refused", dir.display()))?;
        let (mut queues, mut pools, mut rewards) = (Vec::new(), Vec::new(), Vec::new());
        for manifest in manifests {
            match manifest {
                Manifest::ActionQueue(queue) => queues.push(*queue),
                Manifest::ResourcePool(pool) => pools.push(*pool),
                Manifest::RewardService(reward) => rewards.push(*reward),
                // The gateway's: see [`Job`].
                Manifest::RolloutJob(_) => {}
            }
        }
        let found: Vec<String> = queues.iter().map(|q| name_of(&q.metadata)).collect();
        queues.retain(|queue| name.is_none_or(|name| name_of(&queue.metadata) == name));
        let queue = match (queues.pop(), queues.is_empty()) {
            (Some(queue), true) => queue,
            (None, _) => bail!(
                "no ActionQueue{} in `{}`; there: [{}]",
                name.map(|name| format!(" `{name}`")).unwrap_or_default(),
                dir.display(),
                found.join(", ")
            ),
            (Some(_), false) => {
                bail!("several ActionQueues: choose one with --queue: [{}]", found.join(", "))
            }
        };
        let named = |pool: &ResourcePool| {
            queue.spec.pools.iter().any(|name| name.to_string() == name_of(&pool.metadata))
        };
        pools.retain(named);
        Ok(Self { queue, pools, rewards })
    }

    /// The settings of the queue with its GPU pools, with its store in `dir`.
    pub(crate) fn config(&self, dir: &Path, names: JobNames) -> anyhow::Result<QueueConfig> {
        let mut config = QueueConfig::from_manifests(&self.queue, &self.pools, dir, names)?;
        config.add_rewards(&self.queue, &self.pools, &self.rewards, names)?;
        Ok(config)
    }

    /// The queue's one CPU pool, with its name.
    pub(crate) fn cpu_pool(&self) -> anyhow::Result<(String, &CpuPool)> {
        let mut cpu = self
            .pools
            .iter()
            .filter_map(|pool| pool.spec.cpu.as_ref().map(|cpu| (name_of(&pool.metadata), cpu)));
        match (cpu.next(), cpu.next()) {
            (Some(pool), None) => Ok(pool),
            (None, _) => bail!("the queue names no ResourcePool with `cpu`: add one"),
            (Some((one, _)), Some((two, _))) => {
                bail!("pools `{one}` and `{two}` both have `cpu`: one machine is one pool")
            }
        }
    }
}

/// One job and what it names.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) spec: RolloutJob,
    pub(crate) rewards: Vec<RewardService>,
    pub(crate) pools: Vec<ResourcePool>,
}

impl Job {
    /// Reads a directory and picks the job called `name`, or its only one.
    pub(crate) fn read(dir: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        let manifests = rollwright_crds::parse::directory(dir)
            .with_context(|| format!("the manifests in `{}` are refused", dir.display()))?;
        let (mut jobs, mut rewards, mut pools) = (Vec::new(), Vec::new(), Vec::new());
        for manifest in manifests {
            match manifest {
                Manifest::RolloutJob(job) => jobs.push(*job),
                Manifest::RewardService(reward) => rewards.push(*reward),
                Manifest::ResourcePool(pool) => pools.push(*pool),
                // The queue's: see [`Bound`].
                Manifest::ActionQueue(_) => {}
            }
        }
        let found: Vec<String> = jobs.iter().map(|job| name_of(&job.metadata)).collect();
        jobs.retain(|job| name.is_none_or(|name| name_of(&job.metadata) == name));
        match (jobs.pop(), jobs.is_empty()) {
            (Some(spec), true) => Ok(Self { spec, rewards, pools }),
            (None, _) => bail!(
                "no RolloutJob{} in `{}`; there: [{}]",
                name.map(|name| format!(" `{name}`")).unwrap_or_default(),
                dir.display(),
                found.join(", ")
            ),
            (Some(_), false) => {
                bail!("several RolloutJobs: choose one with --job: [{}]", found.join(", "))
            }
        }
    }
}

fn name_of(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}
