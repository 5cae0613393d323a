//! A station on a **fake** of GPUs with real programs: engine-sim (a simulator) as processes,
//! and a busybox web server as a container on the real Docker engine.
#![cfg(test)]

mod common;
mod containers;
#[path = "../support/docker.rs"]
mod docker;
mod pinned;
mod processes;
#[path = "../support/scores.rs"]
mod scores;
