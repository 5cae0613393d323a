//! The queue role: an asynchronous shell around `rollwright_core::queue`.
//!
//! One task owns the scheduler ([`run`] starts it); gRPC, HTTP and the agents'
//! links talk to it over one bounded channel. What is accepted and what has ended
//! is kept in an embedded store with group commit.
#![forbid(unsafe_code)]

mod clock;
pub mod config;
mod convert;
pub mod fault;
mod gpu;
mod grpc;
mod http;
pub mod listen;
mod lookups;
mod mailbox;
pub mod manifest;
pub mod metrics;
mod scheduler;
mod server;
mod store;
mod tls;

pub use config::{Profile, QueueConfig, Template};
pub use gpu::{GpuManifestError, GpuPool, GpuService};
pub use listen::{AgentListen, Listen, ListenError};
pub use manifest::JobNames;
pub use rollwright_auth::{AuthConfig, MetricsListen, Namespace, TokenConfig};
pub use server::{Listeners, QueueError, QueueServer, run};
pub use store::StoreError;
pub use tls::{TlsError, TlsFiles};
pub use tokio_util::sync::CancellationToken;
