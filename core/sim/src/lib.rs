//! A discrete-event simulator of action scheduling: how a cluster would serve a
//! workload under a policy. It is named one wherever its results are shown.
//!
//! All events of an instant, rounded to a nanosecond, are handled before one scheduling
//! round: completions first, then submissions in the order of the input.
#![forbid(unsafe_code)]

mod check;
mod chunks;
pub mod cluster;
mod elastic;
mod engine;
mod fixed;
mod known;
mod lines;
mod node;
pub mod paper;
mod pods;
mod policy;
mod replicas;
mod report;
mod sharing;
mod tangram;
#[cfg(test)]
mod tests;
mod usage;
pub mod workload;
mod world;

pub use check::Misfit;
pub use chunks::MOST_GPUS;
pub use engine::{Refused, Watch, simulate};
pub use policy::{Policy, UnknownPolicy};
pub use replicas::without_replica;
pub use report::{Decisions, Distribution, Report};
pub use world::Record;
