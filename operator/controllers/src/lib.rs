//! The controllers: they keep what runs in a cluster as the custom resources say.
//!
//! Each controller takes an object through five steps, a file each: fetch what it names,
//! validate (pure), build (pure), apply, status. What is applied is remembered, so a settled
//! cluster sees no write; a change of anything that an object depends on makes it dirty.

#![forbid(unsafe_code)]
#![expect(clippy::doc_markdown, reason = "kinds of Kubernetes stand plain in prose")]

pub mod agents;
pub mod apply;
pub mod audience;
pub mod backoff;
pub mod call;
pub mod conditions;
pub mod context;
pub mod controller;
pub mod dirty;
pub mod error;
pub mod events;
pub mod gateway_client;
pub mod hardening;
pub mod identity;
pub mod index;
pub mod job;
pub mod labels;
pub mod leader;
pub mod links;
pub mod malformed;
pub mod metrics;
pub mod node;
pub mod observed;
pub mod owner;
pub mod pki;
pub mod pool;
pub mod quantity;
pub mod queue;
pub mod resources;
pub mod reward;
pub mod secrets;
pub mod settings;
pub mod status;
pub mod stores;
pub mod token;
pub mod watch;

#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod golden;
mod run;
mod server;
mod startup;
mod trim;

pub use agents::{AgentRequest, AgentRequests};
pub use run::{RunError, run, run_with};
pub use settings::{Options, Settings, Storage};
