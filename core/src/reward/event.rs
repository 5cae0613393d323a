//! What the scoring is told.

use crate::fault::Fault;
use crate::ids::{Task, TrajectoryId};

/// An input of [`super::Rewards::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A trajectory is to be scored. One that is being scored is left as it is.
    Score {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its task.
        task: Task,
        /// Its reward where that is known: no service is asked for it.
        reward: Option<f64>,
        /// Whether teachers are asked about its tokens.
        taught: bool,
    },
    /// A call has ended. Each call ends once, a cancelled one too: until then it counts
    /// as in flight.
    Ended {
        /// Which call.
        call: CallId,
        /// What the service said, or why it did not.
        outcome: Result<Answer, Fault>,
    },
    /// Nobody waits for the trajectory's score any more.
    Cancel(TrajectoryId),
    /// Time has passed: see [`super::Rewards::next_deadline`].
    Tick,
}

/// What a service has said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    /// The reward.
    Reward(f64),
    /// Log-probabilities, which the caller of the service keeps: they do not pass through
    /// here.
    LogProbs,
}

/// One call of a reward service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A reward service, by its place in [`super::Config::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceIndex(pub usize);
