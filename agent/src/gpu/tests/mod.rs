//! The core's pool through the driver: over the fake with all its failures, and over engines
//! with sleep routes (engine-sim, a simulator).

mod calls;
mod desk;
mod ends;
mod failures;
mod node;
mod sleep;
mod turns;
