//! The command line of `rollwright`.
#![expect(clippy::doc_markdown, reason = "help texts are shown as they stand")]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::logs::LogFormat;

/// Rollouts for agentic reinforcement learning: every action gets its resources
/// only while it runs.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub(crate) role: Role,
    /// Form of the log lines on standard error; RUST_LOG chooses what is logged
    #[arg(long, value_enum, default_value = "text", global = true)]
    pub(crate) log_format: LogFormat,
}

const EXAMPLES: &str = "Examples:
  rollwright standalone -f manifests/samples/standalone
      queue and agent in one process, on this machine's Docker engine
  rollwright queue -f manifests/ --listen unix:/run/rollwright/queue.sock \\
      --link unix:/run/rollwright/link.sock
      the queue alone; agents join with `rollwright-agent --queue unix:/run/rollwright/link.sock`";

/// What this process is.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Run queue and agent in one process from manifests, without an API server
    Standalone(Standalone),
    /// Run the action queue: callers and agents connect to it
    Queue(Queue),
}

/// Which manifests.
#[derive(Debug, Args)]
pub(crate) struct Manifests {
    /// Directory of manifests: one ActionQueue and the ResourcePools that it names
    #[arg(short, long, value_name = "DIR")]
    pub(crate) filename: PathBuf,
    /// Name of the ActionQueue, where the directory holds several
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
}

/// `rollwright standalone`. Runs as root: it makes sandboxes and writes cgroups.
/// Ctrl-C stops it and removes its sandboxes.
#[derive(Debug, Args)]
pub(crate) struct Standalone {
    #[command(flatten)]
    pub(crate) manifests: Manifests,
    /// Unix socket for callers (gRPC and HTTP), readable by this user alone
    #[arg(long, default_value = "/run/rollwright/queue.sock")]
    pub(crate) socket: PathBuf,
    /// TCP address for callers instead of the socket, with --api-keys
    #[arg(long, requires = "api_keys", value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// File of `JOB:KEY` lines; callers on TCP send `Authorization: Bearer KEY`
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys: Option<PathBuf>,
    /// Results, and sockets of sandboxes; a later run takes up what this one left
    #[arg(long, default_value = "/var/lib/rollwright", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
    /// The static helper that runs inside sandboxes [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) init: Option<PathBuf>,
    /// The Docker engine's unix socket
    #[arg(long, default_value = "/var/run/docker.sock", value_name = "PATH")]
    pub(crate) docker_socket: PathBuf,
    /// This machine's name [default: its host name]
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// Address of the queue's /metrics and /healthz (loopback)
    #[arg(long, default_value = "127.0.0.1:9465", value_name = "ADDR")]
    pub(crate) metrics_addr: SocketAddr,
    /// Address of the agent's /metrics and /healthz (loopback)
    #[arg(long, default_value = "127.0.0.1:9464", value_name = "ADDR")]
    pub(crate) agent_metrics_addr: SocketAddr,
}

/// `rollwright queue`.
#[derive(Debug, Args)]
pub(crate) struct Queue {
    #[command(flatten)]
    pub(crate) manifests: Manifests,
    /// For callers: `unix:/path`, or an address with --api-keys
    #[arg(long, default_value = "unix:/run/rollwright/queue.sock", value_name = "WHERE")]
    pub(crate) listen: Where,
    /// File of `JOB:KEY` lines; callers on TCP send `Authorization: Bearer KEY`
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys: Option<PathBuf>,
    /// For agents: `unix:/path`, or an address with the --tls files
    #[arg(long, default_value = "unix:/run/rollwright/link.sock", value_name = "WHERE")]
    pub(crate) link: Where,
    /// Certificate that agents are shown (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authority that signs agents' certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Where accepted actions and results are kept
    #[arg(long, default_value = "/var/lib/rollwright/queue", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
    /// Address of /metrics and /healthz
    #[arg(long, default_value = "127.0.0.1:9465", value_name = "ADDR")]
    pub(crate) metrics_addr: SocketAddr,
    /// File with the token that scrapers send; needed on any address but loopback
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token_file: Option<PathBuf>,
}

/// A place to listen: a unix socket or a TCP address.
#[derive(Debug, Clone)]
pub(crate) enum Where {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::str::FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let absolute = path.starts_with('/').then(|| Self::Unix(path.into()));
            return absolute.ok_or_else(|| format!("`{path}` is not an absolute path"));
        }
        let wrong = |_| "give `unix:/path` or an address such as 127.0.0.1:7070".to_owned();
        text.parse().map(Self::Tcp).map_err(wrong)
    }
}
