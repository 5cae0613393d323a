//! What the router decides.

use crate::fault::Fault;
use crate::ids::{Class, Task, WorkerId};
use crate::router::Role;
use crate::version::RequestId;

/// An output of [`super::Router::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Send the request to the worker. Answered by one [`super::Event::Ended`].
    Send {
        /// Which request.
        request: RequestId,
        /// The worker that generates it.
        worker: WorkerId,
        /// The worker that does the prefill, where that is another one.
        prefill: Option<WorkerId>,
        /// Why the trajectory has left the worker of its last turn, if it has.
        moved: Option<Moved>,
    },
    /// The request will not be generated: tell its client. It is forgotten.
    Refuse {
        /// Which request.
        request: RequestId,
        /// Why.
        fault: Fault,
    },
    /// End the request on its worker. [`super::Event::Ended`] is still to follow, with
    /// [`super::Outcome::Back`] unless the real outcome was faster.
    Abort {
        /// Which request.
        request: RequestId,
        /// The worker that generates it.
        worker: WorkerId,
        /// What was generated is dropped: when it is sent again, it starts again.
        restart: bool,
    },
    /// A held or draining worker has nothing in flight any more.
    Idle {
        /// Which worker.
        worker: WorkerId,
    },
    /// A task is served by another class than it prefers, because no worker of that
    /// one is in service; or, with `got == wanted`, no longer. Once per change.
    Fallback {
        /// Which task.
        task: Task,
        /// The class that it prefers.
        wanted: Class,
        /// The class that serves it.
        got: Class,
    },
    /// Prefill and decode are separate, and no healthy worker does this part; or, with
    /// `None`, no longer. Once per change.
    Lacks(Option<Role>),
}

/// Why a trajectory left its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moved {
    /// Its worker is gone, draining, unhealthy, or its circuit breaker is open.
    OutOfService,
    /// Its worker is held, as in an update of the weights.
    Held,
    /// Its worker holds another version of the weights than the turn asks for.
    Version,
    /// The turn failed there.
    Failed,
    /// Its worker had no slot free when it came, and another one had one sooner.
    Full,
    /// Its worker had much more to do than another one.
    Overloaded,
}

impl Moved {
    /// The word used in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfService => "out_of_service",
            Self::Held => "held",
            Self::Version => "version",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Overloaded => "overloaded",
        }
    }
}
