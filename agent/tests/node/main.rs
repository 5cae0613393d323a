//! The node on the real Docker engine, driven by the queue's messages through a
//! channel. Needs root, Docker at `/var/run/docker.sock` and a static busybox.
#![cfg(test)]

mod actions;
mod common;
#[path = "../support/docker.rs"]
mod docker;
#[path = "../support/helper.rs"]
mod helper;
mod idle;
mod link;
mod network;
mod plain;
mod removal;
mod reset;
mod restart;
mod sandboxes;
mod state_dir;
