//! The command line of `rollwright-agent`.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::gpu::Gpus;
use crate::gpu::fake::FakeConfig;
use crate::http::HttpConfig;
use crate::link::{Endpoint, TlsFiles};
use crate::policy::Policy;
use crate::topology::Reserved;

/// Runs actions on this node for a Rollwright queue, in Docker sandboxes, each
/// with CPU of its own only while it runs.
///
/// It dials the queue and listens on no port but metrics. It needs root, Docker's
/// socket, the host's process and cgroup namespaces, and a state directory that
/// has the same path for Docker as for itself.
///
/// Against a queue on this machine:
///   rollwright-agent --queue unix:/run/rollwright/link.sock --node $(hostname)
///
/// Against a queue elsewhere (mutual TLS, never plain HTTP):
///   rollwright-agent --queue https://queue.rl.svc:7443 --node n1
///     --tls-ca ca.pem --tls-cert tls.pem --tls-key key.pem
///
/// Against the queue that the controllers assign this node to:
///   rollwright-agent --links /etc/rollwright/links --node n1
// The comments are the text of --help, which is not Markdown.
#[expect(clippy::doc_markdown)]
#[derive(Debug, Parser)]
#[command(name = "rollwright-agent", version, verbatim_doc_comment)]
pub struct Cli {
    /// Queue to dial: unix:/path or https://host:port
    #[arg(long, env = "ROLLWRIGHT_QUEUE", required_unless_present = "links")]
    queue: Option<String>,
    /// Directory of assignments, NODE.json for each node, and of the certificates for
    /// their queues: pool, queue, reservation and what is kept back come from there,
    /// and are looked at every second
    #[arg(
        long,
        env = "ROLLWRIGHT_LINKS",
        value_name = "DIR",
        conflicts_with_all = ["queue", "pool", "tls_ca", "tls_cert", "tls_key", "cgroup_parent",
            "reserved_cores", "reserved_memory_mib"]
    )]
    links: Option<PathBuf>,
    /// Certificate authority of the queue, PEM
    #[arg(long, env = "ROLLWRIGHT_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Certificate chain of this agent, PEM; read again at each connection
    #[arg(long, env = "ROLLWRIGHT_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of this agent, PEM
    #[arg(long, env = "ROLLWRIGHT_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Name of this node, unique in its pool
    #[arg(long, env = "ROLLWRIGHT_NODE")]
    node: String,
    /// ResourcePool that this node belongs to
    #[arg(long, env = "ROLLWRIGHT_POOL", default_value = "default")]
    pool: String,
    /// Docker's unix socket
    #[arg(long, default_value = "/var/run/docker.sock")]
    docker_socket: PathBuf,
    /// Docker configuration file with the credentials of registries (auths), read
    /// at each pull
    #[arg(long)]
    docker_config: Option<PathBuf>,
    /// Directory of sockets and records; must survive a restart of the agent
    #[arg(long, default_value = "/var/lib/rollwright/agent")]
    state_dir: PathBuf,
    /// The static helper that is process 1 of every sandbox [default: beside this program]
    #[arg(long)]
    init: Option<PathBuf>,
    /// Where the cgroup file systems are mounted
    #[arg(long, default_value = "/sys/fs/cgroup")]
    cgroup_root: PathBuf,
    /// Cgroup that Docker makes sandboxes below [default: Docker's own]
    #[arg(long)]
    cgroup_parent: Option<String>,
    /// Cores that no action gets, such as 0,8-9
    #[arg(long, default_value = "")]
    reserved_cores: String,
    /// Memory that no sandbox gets, in MiB
    #[arg(long, default_value_t = 1024)]
    reserved_memory_mib: u64,
    /// This node's own policy (YAML or JSON): images, maxMemoryBytes, maxPids,
    /// maxDiskBytes, requireDiskBound, minFreeDiskBytes, maxTmpfsBytes, maxOutputBytes,
    /// network, closedCidrs, forbiddenCidrs, dnsServers, pull; for engines on GPUs
    /// engines.images, .programs, .env, .models, .network, .pull
    #[arg(long)]
    policy: Option<PathBuf>,
    /// ResourcePool that this node's GPUs belong to [default: the node's own]
    #[arg(long, value_name = "POOL")]
    gpu_pool: Option<String>,
    /// Memory that engines on GPUs may keep, in MiB: weights of those that sleep
    #[arg(long, default_value_t = 65_536, value_name = "MIB")]
    engine_memory_mib: u64,
    #[command(flatten)]
    gpus: GpuArgs,
    /// Sandboxes that are made ready at the same time
    #[arg(long, default_value_t = 4)]
    resets_at_once: usize,
    /// Remove all sandboxes, and end all engines, when the agent is told to end
    #[arg(long)]
    remove_on_exit: bool,
    /// Address of /metrics and /healthz
    #[arg(long, default_value = "127.0.0.1:9464")]
    metrics_addr: SocketAddr,
    /// File with the token that scrapers send; needed on any address but loopback
    #[arg(long)]
    metrics_token_file: Option<PathBuf>,
    /// Form of the log
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Which GPUs the agent offers: of `rollwright-agent` and of `rollwright standalone`.
#[expect(clippy::doc_markdown)]
#[derive(Debug, Args)]
pub struct GpuArgs {
    /// Memory of each GPU for engines with evict: HostPinned, in MiB, held as long as the
    /// agent lives; 0: none
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    gpu_arena_mib: u64,
    /// Offer a FAKE of GPUs, for tests: COUNT:BYTES, such as 8:80Gi. Engines are then
    /// started without a GPU, and must need none
    #[arg(long, value_name = "COUNT:BYTES")]
    fake_gpus: Option<FakeGpus>,
    /// Bandwidth between host and each FAKE GPU, in bytes a second
    #[arg(long, default_value_t = 25_000_000_000, value_name = "BYTES", requires = "fake_gpus")]
    fake_bandwidth: u64,
}

impl GpuArgs {
    /// The GPUs of an agent with its state in `state_dir`, whose engines may keep `host` bytes
    /// of the node's memory.
    pub fn gpus(&self, host: u64, state_dir: &Path) -> Gpus {
        let Some(FakeGpus { gpus, memory }) = self.fake_gpus else {
            let arena = self.gpu_arena_mib.saturating_mul(1 << 20);
            return Gpus::Driver { arena, most: u32::MAX };
        };
        let bandwidth = self.fake_bandwidth;
        let orders = Some(state_dir.join("fake-gpus"));
        Gpus::Fake(FakeConfig { gpus, memory, host, bandwidth, load: bandwidth, orders })
    }
}

/// `COUNT:BYTES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FakeGpus {
    gpus: u32,
    memory: u64,
}

impl std::str::FromStr for FakeGpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: use COUNT:BYTES, such as 8:80Gi, with 1 to 128 GPUs");
        let (count, bytes) = text.split_once(':').ok_or_else(wrong)?;
        let gpus = count.parse().ok().filter(|gpus| (1..=128).contains(gpus));
        let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("", 0)];
        let scaled = units.iter().find_map(|(unit, bits)| {
            let number: u64 = bytes.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(1 << bits).filter(|bytes| *bytes > 0)
        });
        Ok(Self { gpus: gpus.ok_or_else(wrong)?, memory: scaled.ok_or_else(wrong)? })
    }
}

/// Which queue the agent works for.
enum Queue {
    /// The one at an address.
    At(Endpoint),
    /// The one that the controllers assign.
    Assigned(PathBuf),
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

impl Cli {
    /// Runs the agent until it is told to end by SIGTERM or SIGINT.
    pub async fn run(self) -> anyhow::Result<()> {
        start_log(self.log_format);
        let (config, queue) = self.settings()?;
        let shutdown = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
        let told = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            told.cancel();
        });
        match queue {
            Queue::At(endpoint) => crate::run(config, endpoint, shutdown).await?,
            Queue::Assigned(dir) => crate::links::run(config, dir, shutdown).await?,
        }
        Ok(())
    }

    fn settings(self) -> anyhow::Result<(AgentConfig, Queue)> {
        let queue = match (self.links, self.queue) {
            (Some(dir), _) => Queue::Assigned(dir),
            (None, Some(queue)) => {
                let tls = TlsFiles { ca: self.tls_ca, cert: self.tls_cert, key: self.tls_key };
                Queue::At(Endpoint::parse(&queue, tls)?)
            }
            (None, None) => anyhow::bail!("no queue: give --queue or --links"),
        };
        let cores: crate::cgroup::CoreList =
            self.reserved_cores.parse().context("--reserved-cores")?;
        let token = self.metrics_token_file.as_ref().map(|path| {
            let text = std::fs::read_to_string(path);
            text.with_context(|| format!("cannot read --metrics-token-file {}", path.display()))
        });
        let token = token.transpose()?.map(|token| token.trim().to_owned());
        anyhow::ensure!(token.as_deref() != Some(""), "the file of --metrics-token-file is empty");
        let reserved = Reserved {
            cores: cores.iter().collect(),
            memory_bytes: self.reserved_memory_mib.saturating_mul(1 << 20),
        };
        let host = self.engine_memory_mib.saturating_mul(1 << 20);
        let config = AgentConfig {
            gpus: self.gpus.gpus(host, &self.state_dir),
            engine_memory: host,
            gpu_pool: self.gpu_pool,
            pool: self.pool,
            docker_socket: self.docker_socket,
            docker_config: self.docker_config,
            state_dir: self.state_dir,
            init: self.init.map_or_else(init_beside_us, Ok)?,
            cgroup_root: self.cgroup_root,
            cgroup_parent: self.cgroup_parent,
            reserved,
            policy: self.policy.as_deref().map(Policy::read).transpose()?.unwrap_or_default(),
            resets_at_once: self.resets_at_once,
            remove_on_exit: self.remove_on_exit,
            http: Some(HttpConfig { address: self.metrics_addr, token }),
            ..AgentConfig::new(self.node)
        };
        Ok((config, queue))
    }
}

fn init_beside_us() -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find this program's own path")?;
    Ok(us.with_file_name("rollwright-init"))
}

fn start_log(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn fake_gpus_are_counted_and_sized() {
        let parsed = |text: &str| text.parse::<FakeGpus>().map(|fake| (fake.gpus, fake.memory));
        assert_eq!(parsed("8:80Gi"), Ok((8, 80 << 30)));
        assert_eq!(parsed("1:7"), Ok((1, 7)));
        for wrong in ["8", "0:1Gi", "129:1", "8:", "8:0", "8:1GB", "x:1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_queue_is_given_or_assigned() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["rollwright-agent"], args].concat());
        assert!(parse(&["--node", "n", "--queue", "unix:/q"]).is_ok());
        assert!(parse(&["--node", "n", "--links", "/links"]).is_ok());
        assert!(parse(&["--node", "n"]).is_err());
        assert!(parse(&["--node", "n", "--links", "/links", "--pool", "p"]).is_err());
        assert!(parse(&["--node", "n", "--links", "/links", "--queue", "unix:/q"]).is_err());
    }
}
