//! What the buffer has done.

use std::time::Duration;

/// Counts since the process began, and times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Batches made.
    pub batches: u64,
    /// Batches acknowledged.
    pub acknowledged: u64,
    /// Groups given in batches.
    pub groups_taken: u64,
    /// Trajectories given in batches.
    pub trajectories_taken: u64,
    /// Groups evicted for their age.
    pub groups_evicted: u64,
    /// Trajectories evicted for their age.
    pub trajectories_evicted: u64,
    /// How long somebody waited for a batch that was not there: the trainer was idle.
    pub trainer_waited: Duration,
    /// How long a batch was out and not acknowledged: the trainer was busy.
    pub trainer_held: Duration,
}
