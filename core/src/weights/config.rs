//! How weights are updated.

use std::time::Duration;

/// Settings of one [`super::Weights`].
#[derive(Debug, Clone)]
pub struct Config {
    /// All workers at once, or a few at a time.
    pub strategy: Strategy,
    /// What becomes of the turns that a worker has in flight.
    pub in_flight: InFlight,
    /// An update that is not committed so long after it was begun is aborted, unless
    /// the trainer asks for another time.
    pub deadline: Duration,
    /// With [`InFlight::Keep`]: turns that last longer are taken back all the same.
    pub max_drain: Duration,
    /// How long a worker that has failed a step stays out of service before it is
    /// tried again; doubles with every failure.
    pub retry_base: Duration,
    /// The longest time of that kind.
    pub retry_max: Duration,
    /// Workers that all evaluations together may keep at older versions. It is also the
    /// most versions that may be pinned at a time: each has one worker at least.
    pub evaluation_workers: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            strategy: Strategy::Pause,
            in_flight: InFlight::Recompute,
            deadline: Duration::from_mins(10),
            max_drain: Duration::from_mins(10),
            retry_base: Duration::from_secs(1),
            retry_max: Duration::from_mins(1),
            evaluation_workers: 1,
        }
    }
}

/// In which order a commit reaches the workers. Buckets of a store are pulled before in
/// either, while generation goes on (`RollArt` 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// All at once: generation stands still, and no two versions take requests at a time.
    Pause,
    /// A few at a time. A trajectory never goes back to an older version than it has
    /// tokens of: the fence is [`crate::router::Ask::at_least`].
    Rolling {
        /// Workers that may be out of service for the update at a time; at least 1.
        max_unavailable: u32,
    },
}

/// What becomes of the turns that are in flight on a worker when it is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// They end on the old weights; the update waits for them.
    Keep,
    /// They are taken back and continued, with the KV cache of what they have
    /// recomputed by the new weights.
    Recompute,
    /// They start again from the beginning of the turn.
    Abort,
}
