//! What end-to-end tests and benchmarks share: real processes on a real Docker
//! engine, and a client.

#![forbid(unsafe_code)]

pub mod client;
pub mod docker;
pub mod gateway;
pub mod load;
mod pair;
pub mod program;
pub mod rewards;
pub mod stack;
pub mod wait;
