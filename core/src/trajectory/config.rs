//! What the life of trajectories is ruled by.

use std::time::Duration;

use crate::buffer::Staleness;

/// Settings of one [`super::Trajectories`].
#[derive(Debug, Clone)]
pub struct Config {
    /// How old a trajectory may be.
    pub staleness: Staleness,
    /// Trajectories that a training group starts beyond those it needs (RollArt 6.3,
    /// redundant environments). An evaluation starts none: taking the fastest would
    /// favour the short.
    pub redundant: u32,
    /// Most trajectories that a group may need.
    pub max_group: u32,
    /// Most trajectories that are not ended; a group that would pass it is refused.
    pub max_trajectories: usize,
    /// Most requests of one trajectory in flight at once.
    pub max_requests: usize,
    /// A running trajectory without a request in flight that shows no sign of life for so
    /// long is given up.
    pub idle_limit: Duration,
    /// How long an ended group is known.
    pub ended_ttl: Duration,
    /// How many ended groups are known at most.
    pub max_ended: usize,
}
