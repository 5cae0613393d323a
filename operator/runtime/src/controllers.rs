//! The role `controllers`.
#![expect(clippy::doc_markdown, reason = "help texts are shown as they stand")]

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use rollwright_controllers::{AgentRequest, Options, Settings, Storage};

use crate::shutdown;

/// `rollwright controllers`.
#[derive(Debug, Args)]
pub(crate) struct Controllers {
    /// Namespace of the release: Lease, reservation pods and what agents read are here
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    namespace: String,
    /// Image of queues, gateways and reservation pods: this program
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// When that image is pulled
    #[arg(long, value_enum, default_value = "if-not-present", value_name = "POLICY")]
    image_pull_policy: PullPolicy,
    /// Image of reservation pods, with its own command [default: --image with `pause`]
    #[arg(long, value_name = "IMAGE")]
    reservation_image: Option<String>,
    /// Priority class of reservation pods: sandboxes end with them [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    reservation_priority_class: Option<String>,
    /// What a container of the agents' pods asks for, with MODE host, dind or gpu; those of a mode
    /// add up. Reservations leave room for them
    #[arg(long = "agent-requests", value_name = "MODE:CPU:MEMORY")]
    agent_requests: Vec<AgentRequest>,
    /// Lease that makes one replica the active one
    #[arg(long, default_value = "rollwright-controllers", value_name = "NAME")]
    lease_name: String,
    /// This replica's name in the Lease
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: String,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, default_value = "127.0.0.1:9467", value_name = "ADDR")]
    metrics_addr: SocketAddr,
    /// File with the bearer token of /metrics; needed on another address than a loopback one
    #[arg(long, value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
    /// Secret of the release's namespace with that token, which queues and gateways get as well
    #[arg(long, default_value = "rollwright-metrics", value_name = "NAME")]
    metrics_secret: String,
    /// Where queues and gateways keep what must survive them
    #[arg(long, value_enum, default_value = "claim", value_name = "KIND")]
    storage: StorageKind,
    /// Storage class of their claims [default: the cluster's]
    #[arg(long, value_name = "NAME", conflicts_with = "storage")]
    storage_class: Option<String>,
    /// Ask each node's kubelet for its CPU manager; needs `get` on nodes/proxy
    #[arg(long)]
    read_kubelet_config: bool,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PullPolicy {
    #[value(alias = "IfNotPresent")]
    IfNotPresent,
    #[value(alias = "Always")]
    Always,
    #[value(alias = "Never")]
    Never,
}

/// Where state is kept.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StorageKind {
    /// A PersistentVolumeClaim
    Claim,
    /// An emptyDir, lost with the pod
    Ephemeral,
}

pub(crate) async fn run(args: Controllers) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let storage = match (args.storage, args.storage_class) {
        (StorageKind::Ephemeral, _) => Storage::Ephemeral,
        (StorageKind::Claim, Some(class)) => Storage::Class(class),
        (StorageKind::Claim, None) => Storage::DefaultClass,
    };
    let image_pull_policy = match args.image_pull_policy {
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Always => "Always",
        PullPolicy::Never => "Never",
    };
    let options = Options {
        settings: Settings {
            namespace: args.namespace,
            image: args.image,
            image_pull_policy: image_pull_policy.to_owned(),
            reservation_image: args.reservation_image,
            reservation_priority_class: args.reservation_priority_class,
            agent_requests: args.agent_requests.into_iter().collect(),
            metrics_secret: args.metrics_secret,
            storage,
        },
        lease: args.lease_name,
        identity: args.identity,
        metrics: Some(args.metrics_addr),
        metrics_token_file: args.metrics_token_file,
        read_kubelet: args.read_kubelet_config,
    };
    rollwright_controllers::run(options, stop).await.context("the controllers ended")
}
