//! What the scoring decides.

use super::event::{CallId, ServiceIndex};
use crate::fault::Fault;
use crate::ids::TrajectoryId;

/// An output of [`super::Rewards::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Call a service: answer by [`super::Event::Ended`].
    Call {
        /// The call.
        call: CallId,
        /// For whom.
        trajectory: TrajectoryId,
        /// The service.
        service: ServiceIndex,
        /// Which try of this service for this trajectory, from 1.
        attempt: u32,
    },
    /// End a call that is in flight; its end is still to be reported.
    CancelCall(CallId),
    /// The trajectory's reward, when every service that is asked has answered, or the fault
    /// that is final. Comes once for each trajectory to be scored, unless it is cancelled.
    Scored {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Its reward, a finite number.
        result: Result<f64, Fault>,
    },
    /// A service failed too often in a row and gets no calls for a while, or is well again.
    Circuit {
        /// Which service.
        service: ServiceIndex,
        /// Whether it gets no calls.
        open: bool,
    },
}
