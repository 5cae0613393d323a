//! Reward services on GPUs: an asynchronous shell around `rollwright_core::gpu`.
//!
//! One task owns a [`rollwright_core::gpu::Pool`] for each GPU pool of the queue, beside the
//! scheduler of actions on CPU. Callers come in over gRPC and HTTP ([`GpuHandle::call`]);
//! agents over the same links as the scheduler's, whose messages about GPUs are passed here.
//!
//! - A call that waits is in memory only: when the queue is killed its caller sees the
//!   connection break and asks again under the same id.
//! - One that runs is on record before its agent is told, and at the agent until its end is
//!   durable here. A queue that comes back takes it up, and a repeated id attaches to it: it
//!   ends where it was started, or with a fault when its node stays away.
//! - An answer is in the store before anybody is told of it, so the same id never runs twice
//!   as long as answers are kept. The same id with another content is refused.

mod actor;
mod calls;
mod commands;
mod config;
mod ends;
mod gauges;
mod handle;
mod leaving;
mod links;
mod look;
mod manifest;
mod metrics;
mod pool;
mod request;
mod started;
mod stats;
mod strays;
mod wire;

pub(crate) use actor::{Gpu, Parts};
pub use config::{GpuPool, GpuService};
pub(crate) use handle::{GpuHandle, INBOX, Input};
pub(crate) use look::{CallStage, CallState, Looked};
pub use manifest::GpuManifestError;
pub(crate) use metrics::GpuMetrics;
pub(crate) use request::{MAX_BODY, is_passed};
