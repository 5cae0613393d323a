//! The code for real GPUs on a **fake** of NVIDIA's driver (`e2e/fake-cuda`), which is loaded as
//! the real one is. Each test runs a part of itself as a process of its own, since a process
//! loads the driver once; the fake says which calls were wrong.
#![cfg(test)]

mod arena;
mod checkpoints;
mod engines;
mod machine;
mod moves;
mod node;
#[path = "../support/scores.rs"]
mod scores;
mod services;
