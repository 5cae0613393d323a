//! The role `gateway`, and what standalone shares with it.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use rollwright_core::ids::{Class, WorkerId};
use rollwright_core::router::WorkerSpec;
use rollwright_gateway::{
    Credential, Gateway, GatewayConfig, Listen, Listeners, QueueAddress, Secret, WorkerConfig,
};
use rollwright_queue::MetricsListen;

use crate::cli::{self, GatewayArgs, QueueWhere, Where};
use crate::manifests::Job;
use crate::queue::with_parent;
use crate::shutdown;

pub(crate) async fn run(args: cli::Gateway) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let job = Job::read(&args.filename, args.of.job.as_deref())?;
    ensure!(
        args.workers_api || !args.of.engines.is_empty(),
        "no engine: give --engine URL at least once, or --workers-api"
    );
    let mut config = config(&job, &args.of, &args.state_dir)?;
    config.workers_api = args.workers_api;
    config.namespace.clone_from(&args.namespace);
    config.queue = match args.action_queue {
        None => None,
        Some(QueueWhere::Unix(path)) => Some(QueueAddress::Unix(path)),
        Some(QueueWhere::Tcp(address)) => {
            let credential = match (args.queue_token_file, args.queue_key_file) {
                (Some(token), _) => Credential::TokenFile(token),
                (None, Some(key)) => Credential::Key(secret(&key)?),
                (None, None) => bail!(
                    "the action queue at an address asks who calls: give --queue-token-file, or --queue-key-file with this job's key"
                ),
            };
            Some(QueueAddress::Tcp { address, credential })
        }
    };
    ensure!(
        args.namespace.is_some() || !args.auth.takes_tokens(),
        "tokens are of a namespace: give --namespace, the job's own, beside --jwks"
    );
    let listeners = Listeners {
        callers: match args.listen {
            Where::Unix(path) => Listen::Unix(with_parent(path)?),
            Where::Tcp(addr) => Listen::Tcp(addr),
        },
        auth: args.auth.config(args.namespace),
        metrics: Some(MetricsListen {
            addr: args.metrics_addr,
            token_file: args.metrics_token_file,
        }),
    };
    let name = config.job.clone();
    let gateway = Gateway::start(config, listeners).await?;
    tracing::info!(job = %name, at = ?gateway.address(), "ready");
    Ok(gateway.serve(shutdown).await?)
}

/// The settings of a job's gateway, with the engines of the command line.
pub(crate) fn config(
    job: &Job,
    args: &GatewayArgs,
    state_dir: &Path,
) -> anyhow::Result<GatewayConfig> {
    let mut config = GatewayConfig::from_manifests(&job.spec, &job.pools, &job.rewards, state_dir)?;
    if let Some(file) = &args.engine_key_file {
        config.engine_key = Some(secret(file)?);
    }
    for (index, engine) in args.engines.iter().enumerate() {
        let name = engine.name.clone().unwrap_or_else(|| format!("engine-{index}"));
        config.workers.push(WorkerConfig {
            worker: WorkerId::new(&name)?,
            url: engine.url.clone(),
            spec: WorkerSpec {
                class: Class::new(&engine.class)?,
                role: engine.role,
                slots: engine.slots,
                version: None,
            },
            bootstrap_port: engine.bootstrap,
        });
    }
    for (name, url) in &args.reward_urls {
        let reward = config.rewards.iter_mut().find(|reward| reward.name == *name);
        let reward = reward
            .with_context(|| format!("--reward-url: the job names no RewardService `{name}`"))?;
        reward.url = Some(url.clone());
    }
    for (name, file) in &args.reward_secrets {
        let reward = config.rewards.iter_mut().find(|reward| reward.name == *name);
        let reward = reward
            .with_context(|| format!("--reward-secret: the job names no RewardService `{name}`"))?;
        reward.secret_file = Some(file.into());
    }
    Ok(config)
}

fn secret(file: &Path) -> anyhow::Result<Secret> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the key in `{}`", file.display()))?;
    let text = text.trim();
    ensure!(!text.is_empty(), "`{}` holds no key", file.display());
    Ok(Secret::new(text))
}
