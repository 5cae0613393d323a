//! The gateway of a RolloutJob: engines behind it, trajectories through it, rewards, a
//! staleness-bounded buffer and weight updates. What happens next is decided in
//! `rollwright_core::rollout`; this crate carries events in and commands out.
#![forbid(unsafe_code)]

pub mod actions;
pub mod api;
pub mod dispatch;
pub mod engine;
pub mod events;
mod outbound;
pub mod reward;
pub mod store;
pub mod proxy;
pub mod weights;
pub mod workers;
