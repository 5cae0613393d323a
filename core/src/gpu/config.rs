//! What the services of a pool need, and how patient the pool is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::chunk::Degree;
use crate::reward::Backoff;

/// Settings of [`super::Pool`].
#[derive(Debug, Clone)]
pub struct Config {
    /// The services that share the pool.
    pub services: Vec<Service>,
    /// Most actions that wait or run; more are refused.
    pub max_actions: usize,
    /// How long a service at a degree is left alone after a fault, and between tries to end
    /// an engine.
    pub backoff: Backoff,
    /// How much longer than an order's own limit the pool waits for the agent to report, and
    /// how long a cancelled action may take to end, before its engine is ended; and how long
    /// an agent may be away before the pool ends a call that has had its time.
    pub grace: Duration,
    /// How long a node's agent may be away before the node is forgotten, with the engines that
    /// it had: what comes back is taken over as from a pool that is gone.
    pub forget: Duration,
}

/// One reward service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, for messages.
    pub name: String,
    /// Actions that may run together on one of its engines; at least 1.
    pub batch: usize,
    /// So many of its engines at each degree are never moved to make room for others.
    pub pinned: usize,
    /// Degrees that it can be run at, and what it needs at each.
    pub degrees: BTreeMap<Degree, Footprint>,
    /// Time limits of the orders for its engines.
    pub limits: Limits,
    /// Time that a call may run: its node's agent ends it then, and where the agent is away
    /// the pool does, [`Config::grace`] later.
    pub timeout: Duration,
}

/// What one engine needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes on each GPU while it is resident.
    pub device: u64,
    /// Bytes that a sleeping engine keeps on each GPU: context, communication buffers.
    pub residue: u64,
    /// Bytes of the node's memory that it keeps as long as its process lives.
    pub host: u64,
    /// How long orders take, until it is learned.
    pub expected: Limits,
}

/// A time for each order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// To start the engine and load its model.
    pub launch: Duration,
    /// To bring a sleeping engine back.
    pub wake: Duration,
    /// To put it to sleep.
    pub evict: Duration,
    /// To end its process.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            launch: Duration::from_mins(10),
            wake: Duration::from_mins(1),
            evict: Duration::from_secs(30),
            stop: Duration::from_secs(30),
        }
    }
}
