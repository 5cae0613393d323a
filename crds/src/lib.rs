//! The custom resources of Rollwright (`rollwright.dev/v1alpha1`) as Rust types,
//! with the rules that the API server checks, and the strict reading of manifests
//! that the one-machine mode does in its place.
//!
//! - one module per kind: [`pool`], [`job`], [`queue`], [`reward`];
//! - shared types: [`quantity`], [`duration`], [`name`], [`degrees`], [`command`],
//!   [`conditions`];
//! - [`parse`] reads manifests, [`rules`] checks what a type alone cannot say, and
//!   [`definitions`] generates `manifests/crds/`.

#![forbid(unsafe_code)]
#![expect(
    clippy::doc_markdown,
    reason = "doc comments become descriptions in the definitions, where kinds stand plain"
)]
#![expect(clippy::duplicated_attributes, reason = "printer columns share their types")]
#![expect(unreachable_pub, reason = "KubeSchema derives a hidden copy of each struct")]

pub mod command;
pub mod conditions;
pub mod definitions;
pub mod degrees;
pub mod duration;
pub mod engine;
pub mod job;
pub mod manifest;
pub mod name;
pub mod parse;
pub mod pool;
pub mod quantity;
pub mod queue;
pub mod reward;
pub mod rules;

pub use command::CommandLine;
pub use degrees::Degrees;
pub use duration::TimeSpan;
pub use job::{RolloutJob, RolloutJobSpec};
pub use manifest::Manifest;
pub use name::Name;
pub use parse::{ManifestError, Problem};
pub use pool::{ResourcePool, ResourcePoolSpec};
pub use quantity::ByteSize;
pub use queue::{ActionQueue, ActionQueueSpec};
pub use reward::{RewardService, RewardServiceSpec};

/// API group of every kind.
pub const GROUP: &str = "rollwright.dev";
/// API version of every kind.
pub const VERSION: &str = "v1alpha1";
