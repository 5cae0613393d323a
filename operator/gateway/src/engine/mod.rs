//! What the gateway knows of engines: how to ask them (control side) and how to read them.

pub mod control;
pub mod dialect;
pub mod endpoint;
pub mod fields;
pub mod handover;
pub mod sse;
pub mod turn;
pub mod usage;
