//! The custom resources of Rollwright (`rollwright.dev/v1alpha1`) as Rust types,
//! with the rules that the API server checks, and the strict reading of manifests
//! that the one-machine mode does in its place.
//!
//! - one module per kind: [`pool`], [`job`], [`queue`], [`reward`];
//! - shared types: [`quantity`], [`duration`], [`name`], [`command`], [`conditions`];
//! - [`parse`] reads manifests, [`rules`] checks what a type alone cannot say, and
//!   [`definitions`] generates `manifests/crds/`.

#![forbid(unsafe_code)]

pub mod command;
pub mod conditions;
pub mod duration;
pub mod name;
pub mod pool;
pub mod quantity;
pub mod queue;

pub use command::CommandLine;
pub use duration::TimeSpan;
pub use name::Name;
pub use pool::{ResourcePool, ResourcePoolSpec};
pub use quantity::ByteSize;
pub use queue::{ActionQueue, ActionQueueSpec};

/// API group of every kind.
pub const GROUP: &str = "rollwright.dev";
/// API version of every kind.
pub const VERSION: &str = "v1alpha1";
