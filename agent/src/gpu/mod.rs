//! The agent's side of reward services on GPUs: it carries out what [`rollwright_core::gpu`]
//! decides, and reports what it found.
//!
//! [`driver`] takes commands and gives events; behind it are a [`Backend`], which moves
//! engines on and off the device, and a [`Device`], which says what they truly hold. Neither
//! is part of the agent's node yet, and no CUDA call is made: [`sleep::EngineSleep`] speaks to
//! engines over HTTP, [`fake`] is a fake of all of it for machines without a GPU.

pub mod backend;
pub mod driver;
pub mod fake;
mod http;
pub mod sleep;
#[cfg(test)]
mod tests;

pub use backend::{Backend, Caller, Device};
pub use driver::Driver;
