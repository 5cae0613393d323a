//! Reward services on few GPUs, by evict-on-execution (ARL-Tangram 5.3).
//!
//! Many services share a pool. Each engine sits asleep on the aligned chunk of GPUs that it
//! was launched on ([`Chunk`]); one that is needed is woken, after the least recently used of
//! those in its way were put to sleep ([`Chunks`]). One that its driver can move is woken on
//! any chunk of its node ([`Proof::is_unbound`]). A service at another degree is another
//! resident. [`Pool`] is the state machine over all of it: events in, commands out.
//!
//! - **Belief.** Nothing counts as done because a call returned: an engine is resident, or its
//!   memory free, when the engine says so, the device's account says so, and a request was
//!   answered ([`Proof`]). What cannot be shown is in [`Trouble`]: the engine is ended, and
//!   its GPUs are given to nobody until it is gone.
//! - **Execution.** One engine at a time executes on a GPU; actions that wait for the same
//!   service at the same degree run together on one engine up to the service's batch.
//! - **Restores** overlap with it: while one executes, those in the way of the next are put to
//!   sleep and the next is woken, as far as there is memory, one move at a time on a GPU. What
//!   was restored for those that wait is not moved again before it served them.
//! - **Order.** First come first served, except that nobody waits behind one that could not
//!   use what is free anyway: an action that cannot start claims one chunk, and none that came
//!   later is started there.
//! - **Memory.** Of the device, with what sleeping engines keep; and of the node, which
//!   engines hold as long as they live.
//!
//! Unlike the paper, which deploys every service on every feasible group of GPUs at the
//! beginning, engines are launched when actions wait long enough to be worth it.

mod actions;
mod choice;
mod chunk;
mod chunks;
mod command;
mod config;
mod dispatch;
mod engines;
mod estimate;
mod event;
mod forget;
mod free;
mod learned;
mod moves;
mod nodes;
mod pool;
mod proof;
mod tenant;
#[cfg(test)]
mod tests;

pub use actions::ENGINE_UNREACHABLE;
pub use chunk::{Chunk, Degree, InvalidDegree, MOST_GPUS};
pub use chunks::{Barred, Chunks, Place};
pub use command::Command;
pub use config::{Config, Footprint, Limits, Service};
pub use event::{Adopted, Event, Node, OrderId, Running};
pub use learned::Phase;
pub use pool::{EngineView, Pool, Residency, Stats};
pub use proof::{Order, Proof, Trouble};
pub use tenant::{EngineId, Kind, ServiceIndex, State, Tenant, Turn};
