//! A real Kubernetes on this machine, for end-to-end tests: etcd, API server with RBAC,
//! controller-manager, scheduler, `CoreDNS`, and one node with kubelet, kube-proxy, containerd
//! and a Docker engine, in namespaces of their own.
//!
//! Tests share one cluster: the first starts it, and it ends after the last, however that
//! ended ([`Lease`]). Each test has a namespace of its own, and leaves a dump of it where it
//! failed ([`test`]).
#![forbid(unsafe_code)]

mod cluster;
mod command;
mod definitions;
mod dump;
mod http;
mod images;
mod kubectl;
mod lease;
mod namespace;
mod release;
mod wait;

pub use cluster::{Cluster, test};
pub use command::succeed;
pub use definitions::install_definitions;
pub use http::Http;
pub use images::{pod_image, to_pods, to_sandboxes};
pub use kubectl::Kubectl;
pub use lease::{Lease, state_dir};
pub use namespace::Namespace;
pub use release::{RELEASE, install_chart, install_release, sandbox_archive};
pub use wait::{LIMIT, until};
