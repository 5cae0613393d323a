//! The helper that is process 1 of every sandbox, and the protocol it speaks.
//!
//! It starts actions as another user, streams their output, says how they ended
//! and reaps what is left. It keeps running actions and unacknowledged ends while
//! no agent is connected. It has one thread, waits in `poll` and sets no timer.

mod action;
mod connection;
mod files;
pub mod options;
mod output;
mod prepared;
pub mod protocol;
pub mod server;
mod spawn;
mod subject;
mod transfer;
