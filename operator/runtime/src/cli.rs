//! The command line of `rollwright`.
#![expect(clippy::doc_markdown, reason = "help texts are shown as they stand")]

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use rollwright_agent::cli::GpuArgs;
use rollwright_auth::{AUDIENCE, AuthConfig, Namespace, TokenConfig};
use rollwright_core::router::Role as Part;

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
  rollwright standalone -f manifests/ --engine http://127.0.0.1:8000,slots=64
      the same with the gateway of the RolloutJob in manifests/ before an engine
  rollwright gateway -f manifests/ --engine http://10.0.0.7:8000,class=h20 \\
      --action-queue unix:/run/rollwright/queue.sock
      the gateway alone
  rollwright queue -f manifests/ --listen unix:/run/rollwright/queue.sock \\
      --link unix:/run/rollwright/link.sock
      the queue alone; agents join with `rollwright-agent --queue unix:/run/rollwright/link.sock`";

/// What this process is.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Run queue, agent and, with --engine, a gateway in one process, without an API server
    Standalone(Standalone),
    /// Run the action queue: callers and agents connect to it
    Queue(Queue),
    /// Run the gateway of a RolloutJob: trainers and agents connect to it
    Gateway(Gateway),
    /// Run the controllers of a cluster's custom resources
    Controllers(crate::controllers::Controllers),
    /// Do nothing until told to end: keeps a node's cores for sandboxes
    #[command(hide = true)]
    Pause,
}

/// What callers on TCP show, as `Authorization: Bearer ...`.
#[derive(Debug, Args)]
pub(crate) struct Auth {
    /// File of `JOB:KEY` lines; read again when it changes
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// The API server's public keys (/openid/v1/jwks), to take service account tokens;
    /// read again when it changes
    #[arg(long, value_name = "FILE", requires = "issuer")]
    jwks: Option<PathBuf>,
    /// Issuer of the tokens, as in /.well-known/openid-configuration
    #[arg(long, value_name = "URL", requires = "jwks")]
    issuer: Option<String>,
    /// Audience that the tokens must be for
    #[arg(long, value_name = "NAME", default_value = AUDIENCE)]
    audience: String,
    /// Audience of tokens that are for this process alone, beside the other; such as
    /// rollwright:NAMESPACE/queue/NAME
    #[arg(long, value_name = "NAME", requires = "jwks")]
    own_audience: Option<String>,
    /// Subject that may see and change everything, with a token for --own-audience and no
    /// other: system:serviceaccount:NAMESPACE:NAME; once for each
    #[arg(long = "operator", value_name = "SUBJECT", requires = "own_audience")]
    operators: Vec<String>,
}

impl Auth {
    /// Service account tokens are taken.
    pub(crate) fn takes_tokens(&self) -> bool {
        self.jwks.is_some()
    }

    /// The settings, with the namespace of the jobs in the file of keys.
    pub(crate) fn config(self, namespace: Option<Namespace>) -> AuthConfig {
        let tokens = self.jwks.zip(self.issuer).map(|(jwks, issuer)| TokenConfig {
            jwks,
            issuer,
            audience: self.audience,
            own_audience: self.own_audience,
            operators: self.operators,
        });
        AuthConfig { api_keys: self.api_keys, namespace, tokens }
    }
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
    /// What sandboxes and engines may be here (YAML or JSON), as rollwright-agent's --policy;
    /// engines that are processes must be named in it (engines.programs)
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Memory that engines on GPUs may keep, in MiB: weights of those that sleep [default: half
    /// of this machine's]
    #[arg(long, value_name = "MIB")]
    pub(crate) engine_memory_mib: Option<u64>,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Unix socket of the gateway, readable by this user alone; used with --engine
    #[arg(long, default_value = "/run/rollwright/gateway.sock", value_name = "PATH")]
    pub(crate) gateway_socket: PathBuf,
    /// TCP address of the gateway instead of its socket, with --api-keys
    #[arg(long, requires = "api_keys", value_name = "ADDR")]
    pub(crate) gateway_listen: Option<SocketAddr>,
    /// Address of the gateway's /metrics and /healthz (loopback)
    #[arg(long, default_value = "127.0.0.1:9466", value_name = "ADDR")]
    pub(crate) gateway_metrics_addr: SocketAddr,
}

/// The gateway of a RolloutJob, in `standalone` or alone.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    /// Name of the RolloutJob, where the directory holds several
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// An engine: URL[,class=NAME][,slots=N][,name=NAME][,role=mixed|prefill|decode]
    /// [,bootstrap=PORT]; once for each. PORT is that of the bootstrap server of an SGLang engine
    /// that prefills, 8998 where not given
    #[arg(long = "engine", value_name = "ENGINE")]
    pub(crate) engines: Vec<Engine>,
    /// File with the API key that the engines ask for
    #[arg(long, value_name = "FILE")]
    pub(crate) engine_key_file: Option<PathBuf>,
    /// Where a RewardService with `gpu` always runs, in the place of the queue's engines: NAME=URL, to
    /// which paths such as /pooling are added
    #[arg(long = "reward-url", value_name = "NAME=URL", value_parser = pair)]
    pub(crate) reward_urls: Vec<(String, String)>,
    /// File with the bearer token of a serverless RewardService: NAME=FILE
    #[arg(long = "reward-secret", value_name = "NAME=FILE", value_parser = pair)]
    pub(crate) reward_secrets: Vec<(String, String)>,
}

/// `rollwright gateway`.
#[derive(Debug, Args)]
pub(crate) struct Gateway {
    /// Directory of manifests: one RolloutJob, its RewardServices and ResourcePools
    #[arg(short, long, value_name = "DIR")]
    pub(crate) filename: PathBuf,
    #[command(flatten)]
    pub(crate) of: GatewayArgs,
    /// For callers: `unix:/path`, or an address with --api-keys or --jwks
    #[arg(long, default_value = "unix:/run/rollwright/gateway.sock", value_name = "WHERE")]
    pub(crate) listen: Where,
    #[command(flatten)]
    pub(crate) auth: Auth,
    /// Namespace of the job: whose tokens may use it, and whose it is at the action queue
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<Namespace>,
    /// Engines come and go by PUT /rollout/v1/workers, which the operator alone may call;
    /// --engine is then needed for none
    #[arg(long)]
    pub(crate) workers_api: bool,
    /// The action queue: `unix:/path`, or HOST:PORT with --queue-key-file or
    /// --queue-token-file
    #[arg(long, value_name = "WHERE")]
    pub(crate) action_queue: Option<QueueWhere>,
    /// File with this job's key at the action queue
    #[arg(long, value_name = "FILE", conflicts_with = "queue_token_file")]
    pub(crate) queue_key_file: Option<PathBuf>,
    /// File with a service account token for the action queue; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) queue_token_file: Option<PathBuf>,
    /// The buffer of scored trajectories, and weights
    #[arg(long, default_value = "/var/lib/rollwright/gateway", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
    /// Address of /metrics and /healthz
    #[arg(long, default_value = "127.0.0.1:9466", value_name = "ADDR")]
    pub(crate) metrics_addr: SocketAddr,
    /// File with the bearer token of /metrics; needed on another address than a loopback one
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token_file: Option<PathBuf>,
}

/// One engine, as `--engine` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(crate) url: String,
    pub(crate) name: Option<String>,
    pub(crate) class: String,
    pub(crate) slots: u32,
    pub(crate) role: Part,
    pub(crate) bootstrap: Option<NonZeroU16>,
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let url = parts.next().unwrap_or_default().to_owned();
        if !url.starts_with("http://") && !url.starts_with("unix:/") {
            return Err(format!("`{url}` is no engine: begin with http:// or unix:/"));
        }
        let mut engine = Self {
            url,
            name: None,
            class: "default".to_owned(),
            slots: 64,
            role: Part::Mixed,
            bootstrap: None,
        };
        for part in parts {
            match part.split_once('=') {
                Some(("name", name)) => engine.name = Some(name.to_owned()),
                Some(("class", class)) => class.clone_into(&mut engine.class),
                Some(("slots", slots)) => {
                    let parsed = slots.parse().ok().filter(|slots| (1..=65_536).contains(slots));
                    engine.slots =
                        parsed.ok_or_else(|| format!("slots={slots} must be from 1 to 65536"))?;
                }
                Some(("role", role)) => {
                    engine.role = Part::parse(role)
                        .ok_or_else(|| format!("role={role} is not mixed, prefill or decode"))?;
                }
                Some(("bootstrap", port)) => {
                    let parsed = port.parse().map_err(|_| format!("bootstrap={port} is no port"));
                    engine.bootstrap = Some(parsed?);
                }
                _ => {
                    return Err(format!(
                        "`{part}` is not one of class=NAME, slots=N, name=NAME, role=ROLE, \
                         bootstrap=PORT"
                    ));
                }
            }
        }
        Ok(engine)
    }
}

/// Where the action queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueWhere {
    Unix(PathBuf),
    Tcp(String),
}

impl std::str::FromStr for QueueWhere {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(path) => Err(format!("unix:{path} must be an absolute path")),
            None => Ok(Self::Tcp(format!("http://{text}"))),
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, of)| !name.is_empty() && !of.is_empty());
    let (name, of) = parts.ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    Ok((name.to_owned(), of.to_owned()))
}

/// `rollwright queue`.
#[derive(Debug, Args)]
pub(crate) struct Queue {
    #[command(flatten)]
    pub(crate) manifests: Manifests,
    /// For callers: `unix:/path`, or an address with --api-keys or --jwks
    #[arg(long, default_value = "unix:/run/rollwright/queue.sock", value_name = "WHERE")]
    pub(crate) listen: Where,
    #[command(flatten)]
    pub(crate) auth: Auth,
    /// Jobs are called NAMESPACE.NAME; always so with --jwks
    #[arg(long)]
    pub(crate) namespaced: bool,
    /// For agents: `unix:/path`, or an address with the --tls files
    #[arg(long, default_value = "unix:/run/rollwright/link.sock", value_name = "WHERE")]
    pub(crate) link: Where,
    /// Certificate that agents are shown (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities that sign agents' certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// DNS name that every agent's certificate must have [default: its node's]
    #[arg(long, value_name = "DNS")]
    pub(crate) agent_name: Option<String>,
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
