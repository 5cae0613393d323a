//! From manifests to settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rollwright_auth::Namespace;
use rollwright_core::ids::{InvalidId, JobId, QuotaName};
use rollwright_core::profile::Prior;
use rollwright_core::queue::{Config as CoreConfig, Policy};
use rollwright_core::quota::{QuotaLimit, Rate};
use rollwright_core::resources::{InvalidUnits, UnitChoice, Units};
use rollwright_crds::pool::{DockerMode, NumaPolicy};
use rollwright_crds::queue::{
    ActionProfile, ExecMode, JobShare, Ordering, PolicyType, SandboxTemplate, Unavailable,
};
use rollwright_crds::{ActionQueue, ByteSize, CommandLine, ResourcePool, TimeSpan};
use rollwright_proto::v1 as pb;

use crate::config::{DEFAULT_PROFILE, Profile, QueueConfig, Template};

/// Why manifests do not make a queue.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A pool that is named is missing.
    #[error(
        "ActionQueue `{queue}`: spec.pools names `{pool}`, but there is no such ResourcePool; there are: [{known}]"
    )]
    UnknownPool {
        /// The queue.
        queue: String,
        /// The missing pool.
        pool: String,
        /// The pools that are there.
        known: String,
    },
    /// A policy that this version does not have.
    #[error("ActionQueue `{queue}`: {what}")]
    Unavailable {
        /// The queue.
        queue: String,
        /// The setting, and what to say instead.
        what: Unavailable,
    },
    /// A number that is missing or out of range.
    #[error(
        "ActionQueue `{queue}`: spec.policy.{field} must be given with this type, from 1 to 4096"
    )]
    PolicyNumber {
        /// The queue.
        queue: String,
        /// The field below `spec.policy`.
        field: &'static str,
    },
    /// Two pools define the same quota.
    #[error(
        "ActionQueue `{queue}`: quota `{quota}` is defined by more than one of its pools: rename one"
    )]
    DuplicateQuota {
        /// The queue.
        queue: String,
        /// The quota.
        quota: String,
    },
    /// A profile needs a quota that no pool has.
    #[error(
        "ActionQueue `{queue}`: profile `{profile}` needs quota `{quota}`, which none of its pools defines"
    )]
    UnknownQuota {
        /// The queue.
        queue: String,
        /// The profile.
        profile: String,
        /// The quota.
        quota: String,
    },
    /// A profile's units are no units.
    #[error("ActionQueue `{queue}`: cpuUnits of profile `{profile}`: {source}")]
    Units {
        /// The queue.
        queue: String,
        /// The profile.
        profile: String,
        /// Why.
        source: InvalidUnits,
    },
    /// Jobs of namespaces, and no namespace to take those for that name none.
    #[error(
        "ActionQueue `{queue}`: metadata.namespace is needed where jobs are told apart by theirs"
    )]
    NoNamespace {
        /// The queue.
        queue: String,
    },
    /// A name is no name.
    #[error("ActionQueue `{queue}`: {source}")]
    Name {
        /// The queue.
        queue: String,
        /// Why.
        source: InvalidId,
    },
}

/// What jobs are called at the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobNames {
    /// By their names: one tenant, such as one machine.
    Plain,
    /// `<namespace>.<name>`: a cluster.
    Namespaced,
}

impl QueueConfig {
    /// Settings of `queue`, with its store in `store_dir`. `pools` may hold others
    /// than the queue's.
    pub fn from_manifests(
        queue: &ActionQueue,
        pools: &[ResourcePool],
        store_dir: &Path,
        jobs: JobNames,
    ) -> Result<Self, ManifestError> {
        let name = queue.metadata.name.clone().unwrap_or_default();
        let invalid = |source| ManifestError::Name { queue: name.clone(), source };
        let spec = &queue.spec;
        let mut config = Self::new(name.clone(), store_dir);
        let mut weights = BTreeMap::new();
        for share in &spec.jobs {
            let id = job_id(queue, share, jobs)?;
            weights.insert(JobId::new(&id).map_err(invalid)?, share.weight);
        }
        config.core = CoreConfig {
            policy: policy(queue, &name)?,
            quotas: quotas(&name, queue, pools)?,
            weights,
            shared_cores: shared_cores(queue, pools),
            max_waiting: spec.limits.max_waiting as usize,
            max_trajectories: spec.limits.max_trajectories as usize,
            ..CoreConfig::default()
        };
        let named = |pool: &&ResourcePool| {
            let pool = pool.metadata.name.as_deref();
            spec.pools.iter().any(|name| pool == Some(name.as_str()))
        };
        let nodes = pools.iter().filter(named).filter(|pool| pool.spec.cpu.is_some());
        config.pools = nodes.clone().filter_map(|pool| pool.metadata.name.clone()).collect();
        let idle = without_effect(queue, nodes);
        if !idle.is_empty() {
            let fields = idle.join(", ");
            tracing::warn!(queue = name, fields, "these settings have no effect in this version");
        }
        for template in &spec.templates {
            config.templates.insert(template.name.to_string(), sandbox(template));
        }
        for declared in &spec.profiles {
            let profile = profile(&name, declared, &config.core)?;
            config.profiles.insert(declared.name.to_string(), profile);
        }
        config.profiles.entry(DEFAULT_PROFILE.to_owned()).or_default();
        config.keep_for = spec.results.keep_for.duration();
        config.max_buffered_bytes =
            usize::try_from(spec.limits.max_buffered_bytes.bytes()).unwrap_or(usize::MAX);
        Ok(config)
    }
}

/// What a job is called here.
fn job_id(queue: &ActionQueue, share: &JobShare, jobs: JobNames) -> Result<String, ManifestError> {
    if jobs == JobNames::Plain {
        return Ok(share.name.to_string());
    }
    let own = queue.metadata.namespace.as_deref();
    let namespace = Some(share.namespace.as_str()).filter(|name| !name.is_empty()).or(own);
    let namespace = namespace.and_then(|name| Namespace::new(name).ok());
    let namespace = namespace.ok_or_else(|| ManifestError::NoNamespace {
        queue: queue.metadata.name.clone().unwrap_or_default(),
    })?;
    Ok(namespace.qualify(&share.name))
}

fn policy(of: &ActionQueue, queue: &str) -> Result<Policy, ManifestError> {
    let number = |field, value: Option<u32>| {
        let value = value.and_then(|value| u16::try_from(value).ok());
        let wrong = || ManifestError::PolicyNumber { queue: queue.to_owned(), field };
        value.filter(|value| (1..=4096).contains(value)).ok_or_else(wrong)
    };
    if let Some(what) = of.spec.unavailable() {
        return Err(ManifestError::Unavailable { queue: queue.to_owned(), what });
    }
    let spec = &of.spec.policy;
    match spec.kind {
        PolicyType::Elastic => Ok(match spec.ordering {
            Ordering::Fcfs => Policy::Elastic,
            Ordering::TrajectoryAware => Policy::ElasticTrajectory,
        }),
        PolicyType::FixedDop => {
            Ok(Policy::FixedDop { dop: Units::cores(number("dop", spec.dop)?) })
        }
        PolicyType::Static => Ok(Policy::Static { cores: number("cores", spec.cores)? }),
    }
}

/// Fields that are set and that nothing heeds yet.
fn without_effect<'a>(
    queue: &ActionQueue,
    pools: impl Iterator<Item = &'a ResourcePool>,
) -> Vec<String> {
    let mut fields = Vec::new();
    let mut note = |set: bool, what: &str, name: &str, field: &str| {
        if set {
            fields.push(format!("{what} `{name}`: {field}"));
        }
    };
    for pool in pools {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        if let Some(cpu) = &pool.spec.cpu {
            note(cpu.numa_policy != NumaPolicy::default(), "ResourcePool", name, "numaPolicy");
            note(cpu.docker != DockerMode::default(), "ResourcePool", name, "docker");
        }
    }
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    note(queue.spec.policy.depth.is_some(), "ActionQueue", name, "policy.depth");
    fields
}

/// Cores of each node kept for shares: the most that one of its pools asks for.
fn shared_cores(queue: &ActionQueue, pools: &[ResourcePool]) -> u16 {
    let named = pools.iter().filter(|pool| {
        queue.spec.pools.iter().any(|name| pool.metadata.name.as_deref() == Some(name.as_str()))
    });
    let most = named.filter_map(|pool| pool.spec.cpu.as_ref()?.shared_cores).max();
    most.map_or(0, |cores| u16::try_from(cores).unwrap_or(u16::MAX))
}

fn quotas(
    name: &str,
    queue: &ActionQueue,
    pools: &[ResourcePool],
) -> Result<BTreeMap<QuotaName, QuotaLimit>, ManifestError> {
    let mut quotas = BTreeMap::new();
    for wanted in &queue.spec.pools {
        let is_it = |pool: &&ResourcePool| pool.metadata.name.as_deref() == Some(wanted.as_str());
        let pool = pools.iter().find(is_it).ok_or_else(|| {
            let known = pools.iter().filter_map(|pool| pool.metadata.name.as_deref());
            ManifestError::UnknownPool {
                queue: name.to_owned(),
                pool: wanted.to_string(),
                known: known.collect::<Vec<_>>().join(", "),
            }
        })?;
        let Some(quota) = &pool.spec.quota else { continue };
        for limit in &quota.limits {
            let id = QuotaName::new(&limit.name)
                .map_err(|source| ManifestError::Name { queue: name.to_owned(), source })?;
            let rate = limit.amount.zip(limit.period);
            let rate = rate.map(|(amount, period)| Rate { amount, period: period.duration() });
            let core = QuotaLimit { concurrency: limit.concurrency, rate };
            if quotas.insert(id, core).is_some() {
                let (queue, quota) = (name.to_owned(), limit.name.to_string());
                return Err(ManifestError::DuplicateQuota { queue, quota });
            }
        }
    }
    Ok(quotas)
}

fn profile(queue: &str, spec: &ActionProfile, core: &CoreConfig) -> Result<Profile, ManifestError> {
    let units = UnitChoice::from_f64(&spec.cpu_units).map_err(|source| ManifestError::Units {
        queue: queue.to_owned(),
        profile: spec.name.to_string(),
        source,
    })?;
    let mut quota = BTreeMap::new();
    for (name, amount) in &spec.quota {
        let id = QuotaName::new(name)
            .map_err(|source| ManifestError::Name { queue: queue.to_owned(), source })?;
        if !core.quotas.contains_key(&id) {
            return Err(ManifestError::UnknownQuota {
                queue: queue.to_owned(),
                profile: spec.name.to_string(),
                quota: name.clone(),
            });
        }
        quota.insert(id, *amount);
    }
    Ok(Profile {
        units,
        quota,
        timeout: spec.timeout.duration(),
        queue_deadline: spec.queue_deadline.map(TimeSpan::duration),
        output_limit: spec.output_limit.bytes(),
        prior: Prior {
            seconds: spec.duration.map(|duration| duration.duration().as_secs_f64()),
            serial: spec.serial_fraction,
        },
        malleable: spec.malleable,
    })
}

fn wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

fn sandbox(template: &SandboxTemplate) -> Template {
    let exec_mode = match template.exec_mode {
        ExecMode::Helper => pb::ExecMode::Helper,
        ExecMode::Docker => pb::ExecMode::Docker,
    };
    let tmpfs = template
        .tmpfs
        .iter()
        .map(|mount| pb::Tmpfs { path: mount.path.clone(), size_bytes: mount.size.bytes() });
    let spec = pb::SandboxSpec {
        template: template.name.to_string(),
        image: template.image.clone(),
        pull: template.pull,
        memory_bytes: template.memory.bytes(),
        pids: template.pids,
        env: template.env.clone().into_iter().collect(),
        workdir: template.workdir.clone(),
        uid: template.uid,
        read_only_root: template.read_only_root,
        tmpfs: tmpfs.collect(),
        disk_bytes: template.disk.map_or(0, ByteSize::bytes),
        io_read_bps: template.io.read_bps.map_or(0, ByteSize::bytes),
        io_write_bps: template.io.write_bps.map_or(0, ByteSize::bytes),
        network: Some(pb::Network {
            enabled: template.network.enabled,
            allow: template.network.allow.clone(),
        }),
        setup: template.setup.iter().map(setup).collect(),
        image_timeout: wire(template.timeouts.image.duration()),
        start_timeout: wire(template.timeouts.start.duration()),
        idle_ttl: template.idle_ttl.and_then(|ttl| wire(ttl.duration())),
        exec_mode: exec_mode.into(),
    };
    Template { spec, warm: template.warm }
}

fn setup(line: &CommandLine) -> pb::SetupCommand {
    use pb::command::Program;
    let shell = line.shell.clone().map(Program::Shell);
    let argv = || line.argv.clone().map(|args| Program::Argv(pb::Argv { args }));
    let command = pb::Command { program: shell.or_else(argv), ..pb::Command::default() };
    pb::SetupCommand { command: Some(command), timeout: wire(line.timeout.duration()) }
}

#[cfg(test)]
mod tests {
    use rollwright_crds::manifest::Manifest;

    use super::*;

    const POOLS: &str = "
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: cpu}
spec: {cpu: {}}
---
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: apis}
spec: {quota: {limits: [{name: search, concurrency: 3, amount: 10, period: 1s}]}}
";

    fn config(spec: &str) -> Result<QueueConfig, String> {
        named(spec, JobNames::Plain)
    }

    fn named(spec: &str, names: JobNames) -> Result<QueueConfig, String> {
        let queue = format!(
            "---\napiVersion: rollwright.dev/v1alpha1\nkind: ActionQueue\nmetadata: {{name: q, namespace: a}}\nspec:\n{spec}"
        );
        let manifests = rollwright_crds::parse::documents("test.yaml", &format!("{POOLS}{queue}"))
            .map_err(|error| error.to_string())?;
        let mut pools = Vec::new();
        let mut queue = None;
        for manifest in manifests {
            match manifest {
                Manifest::ResourcePool(pool) => pools.push(*pool),
                Manifest::ActionQueue(found) => queue = Some(found),
                _ => {}
            }
        }
        QueueConfig::from_manifests(&queue.unwrap(), &pools, Path::new("/nowhere"), names)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn manifests_become_settings() {
        let config = config(
            "  pools: [cpu, apis]
  policy: {type: FixedDop, dop: 2}
  jobs: [{name: a, weight: 3}]
  templates: [{name: py, image: py:local, memory: 512Mi, pull: false, setup: [{shell: 'true'}], warm: 2}]
  profiles: [{name: tests, cpuUnits: [1, 2], timeout: 30s, quota: {search: 1}, duration: 1m, serialFraction: 0.5, malleable: true}]
  results: {keepFor: 10m}
  limits: {maxWaiting: 7, maxTrajectories: 5, maxBufferedBytes: 1Mi}
",
        )
        .unwrap();
        assert_eq!(config.core.policy, Policy::FixedDop { dop: Units::cores(2) });
        assert_eq!(config.core.weights[&JobId::new("a").unwrap()], 3);
        assert_eq!(config.core.quotas[&QuotaName::new("search").unwrap()].concurrency, Some(3));
        assert_eq!((config.core.max_waiting, config.core.max_trajectories), (7, 5));
        assert_eq!((config.keep_for.as_secs(), config.max_buffered_bytes), (600, 1 << 20));
        assert_eq!(config.templates["py"].spec.memory_bytes, 512 << 20);
        assert_eq!((config.templates["py"].warm, config.templates["py"].spec.setup.len()), (2, 1));
        assert_eq!(config.profiles["tests"].timeout.as_secs(), 30);
        let prior = Prior { seconds: Some(60.0), serial: Some(0.5) };
        assert_eq!(config.profiles["tests"].prior, prior);
        assert!(config.profiles["tests"].malleable);
        assert!(config.profiles.contains_key(DEFAULT_PROFILE));
        assert_eq!(config.pools.into_iter().collect::<Vec<_>>(), ["cpu"]);
    }

    #[test]
    fn in_a_cluster_weights_are_of_a_namespace_and_a_name() {
        let spec = "  pools: [cpu]
  policy: {type: Static, cores: 1}
  jobs: [{name: x, weight: 3}, {namespace: b, name: x, weight: 5}]
";
        let weights = named(spec, JobNames::Namespaced).unwrap().core.weights;
        let weights: Vec<_> = weights.iter().map(|(job, weight)| (job.as_str(), *weight)).collect();
        assert_eq!(weights, [("a.x", 3), ("b.x", 5)]);
        let twice = spec.replace("namespace: b, ", "");
        assert!(config(&twice).unwrap_err().contains("is there twice"));
        let wrong = spec.replace("namespace: b", "namespace: b.c");
        assert!(config(&wrong).unwrap_err().contains("namespace must be"));
    }

    #[test]
    fn without_a_word_the_policy_is_elastic() {
        for spec in ["  pools: [cpu]\n", "  pools: [cpu]\n  policy: {type: Elastic, depth: 2}\n"] {
            assert_eq!(config(spec).unwrap().core.policy, Policy::Elastic);
        }
        let spec = "  pools: [cpu]\n  policy: {ordering: TrajectoryAware}\n";
        assert_eq!(config(spec).unwrap().core.policy, Policy::ElasticTrajectory);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence() {
        for (spec, expected) in [
            (
                "  pools: [cpu]\n  policy: {type: Static, cores: 1, ordering: TrajectoryAware}\n",
                "only with type Elastic: use Fcfs",
            ),
            ("  pools: [disk]\n  policy: {type: Static, cores: 1}\n", "no such ResourcePool"),
            (
                "  pools: [cpu]\n  policy: {type: Static, cores: 1}\n  profiles: [{name: p, quota: {search: 1}}]\n",
                "none of its pools defines",
            ),
        ] {
            let error = config(spec).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
