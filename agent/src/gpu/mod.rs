//! The agent's side of reward services on GPUs: it carries out what [`rollwright_core::gpu`]
//! decides, and reports what it found.
//!
//! [`driver`] takes instructions and gives events; behind it are a [`Backend`], which moves
//! engines on and off the device, and a [`Device`], which says what they truly hold. A
//! [`Station`] is both, with what the node has.

pub mod backend;
pub mod cuda;
mod desk;
pub mod driver;
mod engines;
pub mod fake;
mod http;
pub mod launch;
mod mover;
mod open;
pub mod pinned;
pub mod sleep;
pub mod spec;
mod station;
#[cfg(test)]
mod tests;
mod unreachable;

pub use backend::{Backend, Caller, Device};
pub use desk::Desk;
pub use driver::{Driver, Instruction};
pub use engines::{Engines, Movers};
pub use mover::Mover;
pub use open::{Gpus, Ground, OpenError, end_engines, open};
pub use spec::{EngineSpec, Found, Incident, Inventory, Occupant};
pub use station::Station;
