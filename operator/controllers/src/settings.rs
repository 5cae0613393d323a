//! What the controllers were told at their start.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::agents::AgentRequests;

/// Service account of the controllers, in the release namespace.
pub const SERVICE_ACCOUNT: &str = "rollwright-controllers";

/// What the built objects depend on besides the custom resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of the release.
    pub namespace: String,
    /// Image of `rollwright`.
    pub image: String,
    /// Pull policy of that image: `IfNotPresent`, `Always` or `Never`.
    pub image_pull_policy: String,
    /// Image of reservation pods, with their command; absent: `image` with `rollwright pause`.
    pub reservation_image: Option<String>,
    /// Priority class of reservation pods; absent: the cluster's default.
    pub reservation_priority_class: Option<String>,
    /// What the pods of agents ask for: reservations leave room for them.
    pub agent_requests: AgentRequests,
    /// Name of the Secret with the bearer token of every `/metrics`, in the release namespace.
    pub metrics_secret: String,
    /// Where queues and gateways keep what must survive them.
    pub storage: Storage,
}

impl Settings {
    /// Who the controllers are to queues and gateways.
    pub fn operator(&self) -> String {
        format!("system:serviceaccount:{}:{SERVICE_ACCOUNT}", self.namespace)
    }
}

/// Where queues and gateways keep what must survive them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// A claim of the cluster's default storage class.
    #[default]
    DefaultClass,
    /// A claim of this storage class.
    Class(String),
    /// An `emptyDir`, lost with the pod.
    Ephemeral,
}

/// Everything that `rollwright controllers` is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is built depends on these.
    pub settings: Settings,
    /// Name of the Lease that makes one replica the active one.
    pub lease: String,
    /// This replica's name in that Lease.
    pub identity: String,
    /// Address of `/metrics`, `/healthz` and `/readyz`; absent: none.
    pub metrics: Option<SocketAddr>,
    /// File with the bearer token of `/metrics`.
    pub metrics_token_file: Option<PathBuf>,
    /// Ask each node's kubelet for its CPU manager; needs `nodes/proxy`.
    pub read_kubelet: bool,
}
