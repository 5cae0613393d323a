//! Which services score, and how patiently.

use std::time::Duration;

use crate::ids::Task;

/// Settings of [`super::Rewards`].
#[derive(Debug, Clone)]
pub struct Config {
    /// The job's reward services.
    pub services: Vec<Service>,
    /// Most trajectories that wait or are being scored; more are refused.
    pub max_scoring: usize,
    /// Seed of the jitter of back-offs.
    pub seed: u64,
}

/// One reward service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, for messages.
    pub name: String,
    /// What it says of a trajectory.
    pub gives: Gives,
    /// Tasks that it is asked about; empty: all.
    pub tasks: Vec<Task>,
    /// Most calls in flight; at least 1.
    pub concurrency: usize,
    /// Running time of one call, after which it is cancelled and has failed.
    pub timeout: Duration,
    /// Calls for one trajectory before its fault is final; at least 1. A call that was
    /// sent away with a time to retry does not count.
    pub tries: u32,
    /// From being asked for until the fault is final, however many calls there were.
    pub patience: Duration,
    /// Time between tries.
    pub backoff: Backoff,
    /// When the service as a whole counts as failed.
    pub circuit: Circuit,
}

/// What a service says of a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    /// Its reward. The first such service that takes the task is asked.
    Reward,
    /// The log-probability of each of its tokens under a teacher's policy, for distillation
    /// from several teachers. Every such service that takes the task is asked.
    LogProbs,
}

/// Exponential back-off with jitter: try n waits between half and all of
/// `first * 2^(n-1)`, at most `most`.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first fault.
    pub first: Duration,
    /// At most.
    pub most: Duration,
}

/// A circuit breaker.
#[derive(Debug, Clone, Copy)]
pub struct Circuit {
    /// Faults of infrastructure in a row that open it; at least 1.
    pub faults: u32,
    /// How long it stays open; doubled after each probe that fails.
    pub open: Backoff,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(500), most: Duration::from_secs(30) }
    }
}

impl Default for Circuit {
    fn default() -> Self {
        let open = Backoff { first: Duration::from_secs(2), most: Duration::from_mins(1) };
        Self { faults: 5, open }
    }
}
