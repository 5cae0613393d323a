//! The role `standalone`: queue, agent and, before engines, the gateway of one machine in
//! one process.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rollwright_agent::http::HttpConfig;
use rollwright_agent::policy::Policy;
use rollwright_agent::topology::{self, Reserved};
use rollwright_agent::{AgentConfig, Endpoint};
use rollwright_crds::pool::CpuPool;
use rollwright_gateway::{Gateway, GatewayConfig, Listeners as GatewayListeners, QueueAddress};
use rollwright_queue::{
    AgentListen, AuthConfig, JobNames, Listen, Listeners, MetricsListen, QueueServer,
};
use tokio_util::sync::CancellationToken;

use crate::cli::Standalone;
use crate::manifests::{Bound, Job};
use crate::queue::with_parent;
use crate::shutdown;

pub(crate) async fn run(args: Standalone) -> anyhow::Result<()> {
    let told = shutdown::on_signal()?;
    ensure!(
        std::fs::metadata("/proc/self")
            .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0),
        "standalone makes sandboxes and writes cgroups: run it as root (sudo)"
    );
    let bound = Bound::read(&args.manifests.filename, args.manifests.queue.as_deref())?;
    let (pool, cpu) = bound.cpu_pool()?;
    let queue_dir = args.state_dir.join("queue");
    let queue = bound.config(&queue_dir, JobNames::Plain)?;
    std::fs::create_dir_all(&args.state_dir)
        .with_context(|| format!("cannot make `{}`", args.state_dir.display()))?;
    let link = args.state_dir.join("link.sock");
    let gpu_pool = match queue.gpu_pools.as_slice() {
        [] => None,
        [pool] => Some(pool.name.clone()),
        [one, two, ..] => {
            bail!(
                "pools `{}` and `{}` both have `gpu`: one machine is one pool",
                one.name,
                two.name
            )
        }
    };
    let agent = AgentConfig { gpu_pool, ..agent_config(&args, pool, cpu)? };
    agent.validate()?;

    let listeners = Listeners {
        callers: match args.listen {
            Some(addr) => Listen::Tcp { addr, auth: auth(&args) },
            None => Listen::Unix(with_parent(args.socket.clone())?),
        },
        agents: AgentListen::Unix(link.clone()),
        metrics: Some(MetricsListen { addr: args.metrics_addr, token_file: None }),
    };
    let rollouts =
        if args.gateway.engines.is_empty() { None } else { Some(gateway_config(&args)?) };
    let server = QueueServer::start(queue, listeners).await?;
    let at = args
        .listen
        .map_or_else(|| format!("unix:{}", args.socket.display()), |addr| addr.to_string());
    tracing::info!(at, node = agent.node, "callers may connect");

    let gateway = match rollouts {
        Some((config, listeners)) => {
            let gateway = Gateway::start(config, listeners).await?;
            tracing::info!(at = ?gateway.address(), "trainers and agents may connect");
            Some(gateway)
        }
        None => None,
    };

    // The gateway stops first: it closes sandboxes. Then the agent: its last reports must
    // reach the queue.
    let gateway_stop = CancellationToken::new();
    let until = gateway_stop.clone();
    let mut gateway = tokio::spawn(async move {
        if let Some(gateway) = gateway {
            return gateway.serve(until).await;
        }
        until.cancelled().await;
        Ok(())
    });
    let (agent_stop, queue_stop) = (CancellationToken::new(), CancellationToken::new());
    let mut agent =
        tokio::spawn(rollwright_agent::run(agent, Endpoint::Unix(link), agent_stop.clone()));
    let mut queue = tokio::spawn(server.serve(queue_stop.clone()));
    let (gateway_ended, agent_ended, queue_ended) = tokio::select! {
        () = told.cancelled() => (None, None, None),
        ended = &mut gateway => (Some(ended), None, None),
        ended = &mut agent => (None, Some(ended), None),
        ended = &mut queue => (None, None, Some(ended)),
    };
    gateway_stop.cancel();
    let gateway_ended = match gateway_ended {
        Some(ended) => ended,
        None => gateway.await,
    };
    agent_stop.cancel();
    let agent_ended = match agent_ended {
        Some(ended) => ended,
        None => agent.await,
    };
    queue_stop.cancel();
    let queue_ended = match queue_ended {
        Some(ended) => ended,
        None => queue.await,
    };
    gateway_ended.context("the gateway's task")?.context("the gateway")?;
    agent_ended.context("the agent's task")?.context("the agent")?;
    queue_ended.context("the queue's task")?.context("the queue")
}

fn auth(args: &Standalone) -> AuthConfig {
    AuthConfig { api_keys: args.api_keys.clone(), ..AuthConfig::default() }
}

fn gateway_config(args: &Standalone) -> anyhow::Result<(GatewayConfig, GatewayListeners)> {
    let job = Job::read(&args.manifests.filename, args.gateway.job.as_deref())?;
    let state_dir = std::path::absolute(args.state_dir.join("gateway"))?;
    let mut config = crate::gateway::config(&job, &args.gateway, &state_dir)?;
    config.queue = match args.listen {
        None => Some(QueueAddress::Unix(args.socket.clone())),
        Some(_) if config.rewards.iter().all(|reward| reward.spec.sandbox.is_none()) => None,
        Some(_) => bail!(
            "rewards in sandboxes go through the queue's own socket: leave --listen out and use --socket"
        ),
    };
    let listeners = GatewayListeners {
        callers: match args.gateway_listen {
            Some(addr) => rollwright_gateway::Listen::Tcp(addr),
            None => rollwright_gateway::Listen::Unix(with_parent(args.gateway_socket.clone())?),
        },
        auth: auth(args),
        metrics: Some(MetricsListen { addr: args.gateway_metrics_addr, token_file: None }),
    };
    Ok((config, listeners))
}

fn agent_config(args: &Standalone, pool: String, cpu: &CpuPool) -> anyhow::Result<AgentConfig> {
    let node = match &args.node {
        Some(node) => node.clone(),
        None => host_name()?,
    };
    let init = match &args.init {
        Some(init) => std::path::absolute(init)?,
        None => std::env::current_exe()?.with_file_name("rollwright-init"),
    };
    let engine_memory = match args.engine_memory_mib {
        Some(mib) => mib.saturating_mul(1 << 20),
        None => topology::discover(Path::new("/"), &Reserved::default(), None)?.memory_bytes / 2,
    };
    let state_dir = std::path::absolute(args.state_dir.join("agent"))?;
    Ok(AgentConfig {
        pool,
        gpus: args.gpus.gpus(engine_memory, &state_dir),
        engine_memory,
        policy: args.policy.as_deref().map(Policy::read).transpose()?.unwrap_or_default(),
        docker_socket: args.docker_socket.clone(),
        state_dir,
        init,
        reserved: reserved(cpu)?,
        remove_on_exit: true,
        http: Some(HttpConfig { address: args.agent_metrics_addr, token: None }),
        ..AgentConfig::new(node)
    })
}

/// The pool keeps back a number of cores: the lowest ones, which interrupts like best.
fn reserved(cpu: &CpuPool) -> anyhow::Result<Reserved> {
    let all = topology::discover(Path::new("/"), &Reserved::default(), None)?;
    let mut cores: Vec<u32> = all.numa.into_iter().flatten().collect();
    cores.sort_unstable();
    let back = cpu.reserved_cores as usize;
    ensure!(
        back < cores.len(),
        "reservedCores is {back}, but this machine has {} cores",
        cores.len()
    );
    Ok(Reserved {
        cores: cores.into_iter().take(back).collect(),
        memory_bytes: cpu.reserved_memory.as_ref().map_or(0, |memory| memory.bytes()),
    })
}

fn host_name() -> anyhow::Result<String> {
    let path = PathBuf::from("/proc/sys/kernel/hostname");
    let name =
        std::fs::read_to_string(&path).context("cannot read this machine's name: give --node")?;
    Ok(name.trim().to_owned())
}
