//! Every decision of Rollwright as pure, synchronous code: events in, commands
//! out, and `now` is always an argument. The running roles and the simulator
//! drive the same state machines.
#![forbid(unsafe_code)]

pub mod arrange;
pub mod buffer;
pub mod cpu;
pub mod elastic;
pub mod fault;
mod gain;
pub mod gpu;
pub mod ids;
pub mod placement;
pub mod profile;
pub mod queue;
pub mod quota;
pub mod resources;
pub mod reward;
pub mod rollout;
pub mod router;
pub mod time;
pub mod tokens;
pub mod trajectory;
pub mod version;
pub mod weights;
