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
    },
    /// A call has ended. Each call ends once, a cancelled one too: until then it counts
    /// as in flight.
    Ended {
        /// Which call.
        call: CallId,
        /// The reward, or why there is none.
        outcome: Result<f64, Fault>,
    },
    /// Nobody waits for the trajectory's score any more.
    Cancel(TrajectoryId),
    /// Time has passed: see [`super::Rewards::next_deadline`].
    Tick,
}

/// One call of a reward service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A reward service, by its place in [`super::Config::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceIndex(pub usize);
