//! The gateway of a `RolloutJob`: engines behind it, trajectories through it, rewards, a
//! staleness-bounded buffer and weight updates. What happens next is decided in
//! `rollwright_core::rollout`; this crate carries events in and commands out.
#![forbid(unsafe_code)]

pub mod actions;
pub mod api;
mod bearer;
mod config;
pub mod dispatch;
mod driver;
pub mod engine;
pub mod events;
mod fault;
mod gateway;
mod manifest;
mod metrics;
mod outbound;
pub mod proxy;
pub mod reward;
pub mod store;
pub mod weights;
pub mod workers;

pub use bearer::Credential;
pub use config::{GatewayConfig, QueueAddress, RewardConfig, Secret, WorkerConfig};
pub use gateway::{Gateway, GatewayError, Listeners};
pub use manifest::ManifestError;
pub use proxy::Listen;
pub use rollwright_auth::{AuthConfig, Namespace, TokenConfig};
