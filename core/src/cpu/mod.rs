//! Cores of a node: exclusive sets and shares.

mod core_set;
mod node;

pub use core_set::CoreSet;
pub use node::{CpuGrant, NodeCpu};
