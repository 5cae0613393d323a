//! From manifests to settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rollwright_core::buffer::{self, OnStale, Staleness};
use rollwright_core::ids::{Class, InvalidId, JobId, Task};
use rollwright_core::tokens::LengthCap;
use rollwright_core::weights::{InFlight, Strategy};
use rollwright_core::{reward, rollout, router, trajectory, weights};
use rollwright_crds::engine::EngineType;
use rollwright_crds::job::{self, WeightSyncStrategy};
use rollwright_crds::reward::Ask;
use rollwright_crds::rules::Unavailable;
use rollwright_crds::{ResourcePool, RewardService, RolloutJob};

use crate::config::{GatewayConfig, RewardConfig};
use crate::proxy::Limits;

/// Longest trajectory in tokens where neither job nor model says one.
const DEFAULT_CONTEXT: u32 = 131_072;
/// A trajectory whose driver shows no sign of life for so long is given up.
const IDLE_LIMIT: Duration = Duration::from_mins(30);
/// A worker that fails is tried again after so long at most: its requests wait for that.
const LONGEST_OPEN: Duration = Duration::from_secs(10);
/// How long ended groups are known, and how many.
const ENDED: (Duration, usize) = (Duration::from_hours(1), 10_000);
/// Time that a reward may take in all, tries and back-off included.
const REWARD_PATIENCE: Duration = Duration::from_hours(1);

/// Why manifests do not make a gateway.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A name that cannot be an id.
    #[error("RolloutJob `{job}`: {source}")]
    Name {
        /// The job.
        job: String,
        /// What is wrong with it.
        source: InvalidId,
    },
    /// A reward service that is named is missing.
    #[error(
        "RolloutJob `{job}`: spec.rewardServices names `{reward}`, but there is no such RewardService; there are: [{known}]"
    )]
    UnknownReward {
        /// The job.
        job: String,
        /// The missing service.
        reward: String,
        /// Those that are there.
        known: String,
    },
    /// Something that this version does not have.
    #[error("RolloutJob `{job}`: {source}")]
    Unavailable {
        /// The job.
        job: String,
        /// What it asks for.
        source: Unavailable,
    },
}

impl GatewayConfig {
    /// The settings of a job, without workers: those are the caller's to add.
    pub fn from_manifests(
        job: &RolloutJob,
        pools: &[ResourcePool],
        rewards: &[RewardService],
        state_dir: &Path,
    ) -> Result<Self, ManifestError> {
        let name = job.metadata.name.clone().unwrap_or_default();
        let spec = &job.spec;
        if let Some(source) = spec.unavailable().into_iter().next() {
            return Err(ManifestError::Unavailable { job: name, source });
        }
        let named = |source| ManifestError::Name { job: name.clone(), source };
        let rewards = found_rewards(&name, spec, rewards)?;
        let staleness = Staleness {
            bound: spec.rollout.staleness_bound,
            on_stale: match spec.rollout.on_stale {
                job::OnStale::Abort => OnStale::Abort,
                job::OnStale::Continue => OnStale::Continue,
            },
        };
        let rollout = rollout::Config {
            router: router::Config {
                affinity: affinity(spec, pools).map_err(named)?,
                breaker: router::Breaker { max: LONGEST_OPEN, ..router::Breaker::default() },
                // What a vLLM engine does follows from the request; SGLang's is started as
                // the one or the other.
                alone: spec.engine.kind == EngineType::Vllm,
                ..router::Config::default()
            },
            trajectory: trajectories(&spec.rollout, staleness),
            reward: scoring(spec, &rewards).map_err(named)?,
            buffer: buffered(&spec.rollout, staleness),
            weights: updates(&spec.rollout),
            cap: cap(spec),
        };
        let takes_priority = spec.engine.args.iter().any(|arg| {
            arg.contains("enable-priority-scheduling") || arg.contains("scheduling-policy")
        });
        Ok(Self {
            job: JobId::new(&name).map_err(named)?,
            namespace: None,
            model: spec.model.served_name.clone().unwrap_or_else(|| spec.model.path.clone()),
            dialect: (&spec.engine).into(),
            kind: spec.engine.kind,
            takes_priority,
            engine_key: None,
            workers: Vec::new(),
            workers_api: false,
            group_size: spec.rollout.group_size,
            rollout,
            rewards,
            queue: None,
            state_dir: state_dir.to_owned(),
            max_bucket: spec.rollout.weight_sync.bucket_size.bytes().saturating_mul(2),
            limits: Limits::default(),
            control: crate::engine::control::Limits::default(),
            watch: crate::workers::WatchConfig::default(),
        })
    }
}

fn found_rewards(
    name: &str,
    spec: &job::RolloutJobSpec,
    rewards: &[RewardService],
) -> Result<Vec<RewardConfig>, ManifestError> {
    let named = |of: &RewardService| of.metadata.name.clone().unwrap_or_default();
    let find = |wanted: &job::RewardRef| {
        let found = rewards.iter().find(|reward| named(reward) == wanted.name.as_str());
        let Some(found) = found else {
            return Err(ManifestError::UnknownReward {
                job: name.to_owned(),
                reward: wanted.name.to_string(),
                known: rewards.iter().map(named).collect::<Vec<_>>().join(", "),
            });
        };
        Ok(RewardConfig {
            name: wanted.name.to_string(),
            spec: found.spec.clone(),
            url: None,
            secret_file: None,
        })
    };
    spec.reward_services.iter().map(find).collect()
}

fn affinity(
    spec: &job::RolloutJobSpec,
    pools: &[ResourcePool],
) -> Result<router::Affinity, InvalidId> {
    if spec.auto_affinity {
        let mut classes = BTreeMap::new();
        for gpu in pools.iter().filter_map(|pool| pool.spec.gpu.as_ref()) {
            let profile = router::ClassProfile {
                tflops: gpu.profile.tflops,
                hbm_tbps: gpu.profile.hbm_tbps,
                hbm_gib: gpu.profile.hbm.bytes() as f64 / f64::from(1 << 30),
                cost_per_hour: gpu.profile.cost_per_hour,
                gpus: degree_of(spec),
            };
            classes.insert(Class::new(gpu.class.as_str())?, profile);
        }
        return Ok(router::Affinity::Auto(router::Auto { classes, ..router::Auto::default() }));
    }
    let mut tasks = BTreeMap::new();
    let mut default = Vec::new();
    for (task, names) in &spec.hardware_affinity {
        let classes: Vec<Class> =
            names.iter().map(|name| Class::new(name.as_str())).collect::<Result<_, _>>()?;
        if task == "default" {
            default = classes;
        } else {
            tasks.insert(Task::new(task)?, classes);
        }
    }
    Ok(router::Affinity::Declared { tasks, default })
}

/// GPUs of one worker: the smallest degree that the job may have.
fn degree_of(spec: &job::RolloutJobSpec) -> u32 {
    let fixed = spec.allocation.fixed.iter().flat_map(|fixed| &fixed.groups);
    let adaptive = spec.allocation.adaptive.iter().flat_map(|adaptive| &adaptive.degrees);
    fixed.map(|group| group.degree).chain(adaptive.copied()).min().unwrap_or(1)
}

fn trajectories(rollout: &job::Rollout, staleness: Staleness) -> trajectory::Config {
    let environments = environments(rollout);
    trajectory::Config {
        staleness,
        redundant: rollout.redundancy.environments,
        max_group: 4096,
        // Evaluations come on top of what trains.
        max_trajectories: environments.saturating_mul(4).max(4096),
        max_requests: 16,
        idle_limit: IDLE_LIMIT,
        ended_ttl: ENDED.0,
        max_ended: ENDED.1,
    }
}

/// Trajectories that run at once: the groups of a batch and the redundant ones.
fn environments(rollout: &job::Rollout) -> usize {
    let groups = rollout.batch_groups.saturating_add(rollout.redundancy.groups);
    let each = rollout.group_size.saturating_add(rollout.redundancy.environments);
    (groups as usize).saturating_mul(each as usize)
}

fn buffered(rollout: &job::Rollout, staleness: Staleness) -> buffer::Config {
    buffer::Config {
        batch_groups: rollout.batch_groups as usize,
        max_batch_groups: (rollout.batch_groups as usize).saturating_mul(16),
        group_size: rollout.group_size as usize,
        environments: environments(rollout),
        staleness,
        max_takers: 64,
    }
}

fn updates(rollout: &job::Rollout) -> weights::Config {
    let sync = &rollout.weight_sync;
    weights::Config {
        strategy: match sync.strategy {
            WeightSyncStrategy::Pause | WeightSyncStrategy::Store => Strategy::Pause,
            WeightSyncStrategy::Rolling => Strategy::Rolling { max_unavailable: 1 },
        },
        in_flight: match sync.in_flight {
            job::InFlight::Keep => InFlight::Keep,
            job::InFlight::Recompute => InFlight::Recompute,
            job::InFlight::Abort => InFlight::Abort,
        },
        deadline: sync.deadline.into(),
        evaluation_workers: rollout.evaluation_workers,
        ..weights::Config::default()
    }
}

fn cap(spec: &job::RolloutJobSpec) -> LengthCap {
    let length = spec.rollout.length_cap.as_ref();
    LengthCap {
        tokens: length
            .and_then(|cap| cap.tokens)
            .or(spec.model.max_tokens)
            .unwrap_or(DEFAULT_CONTEXT),
        soft_penalty_tokens: length.and_then(|cap| cap.soft_penalty_tokens),
    }
}

fn scoring(
    spec: &job::RolloutJobSpec,
    rewards: &[RewardConfig],
) -> Result<reward::Config, InvalidId> {
    let mut services = Vec::new();
    for (reference, reward) in spec.reward_services.iter().zip(rewards) {
        let (concurrency, timeout, tries) = match &reward.spec {
            of if of.serverless.is_some() => of.serverless.as_ref().map_or_else(
                || (1, Duration::ZERO, 1),
                |http| (http.concurrency as usize, http.timeout.into(), http.retries + 1),
            ),
            // Its own time-out comes first; an engine, or a sandbox, has to be made ready, too.
            _ => (256, REWARD_PATIENCE, 4),
        };
        let tasks = reference.tasks.iter().map(|task| Task::new(task));
        let teaches = reward.spec.gpu.as_ref().is_some_and(|gpu| gpu.ask == Ask::LogProbs);
        let gives = if teaches { reward::Gives::LogProbs } else { reward::Gives::Reward };
        services.push(reward::Service {
            gives,
            name: reward.name.clone(),
            tasks: tasks.collect::<Result<_, _>>()?,
            concurrency,
            timeout,
            tries,
            patience: REWARD_PATIENCE,
            backoff: reward::Backoff::default(),
            circuit: reward::Circuit::default(),
        });
    }
    Ok(reward::Config { services, max_scoring: 100_000, seed: rand::random() })
}
