//! What the rollout of a job decides.

use crate::buffer::{Batch, SettledGroup, Taker};
use crate::fault::Fault;
use crate::ids::{Class, GroupId, Task, TrajectoryId, WorkerId};
use crate::reward::{CallId, ServiceIndex};
use crate::router::{Moved, Role};
use crate::tokens::TokenLog;
use crate::trajectory::{Announcement, Keep};
use crate::version::{BatchId, RequestId, Version};
use crate::weights;

/// An output of [`super::Rollout::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Send the request to the worker. Answered by one [`super::Event::Ended`].
    Send {
        /// Which request.
        request: RequestId,
        /// The worker that generates it.
        worker: WorkerId,
        /// The worker that does the prefill, where that is another one.
        prefill: Option<WorkerId>,
        /// Why it does not go where the trajectory's last turn was.
        moved: Option<Moved>,
    },
    /// The request will not be generated, or its trajectory was aborted while it was: end
    /// it and tell its client.
    Refuse {
        /// Which request.
        request: RequestId,
        /// Why.
        fault: Fault,
    },
    /// End the request on its worker and say so by [`super::Event::Ended`]; where its
    /// client still waits it is sent again.
    TakeBack {
        /// Which request.
        request: RequestId,
        /// The worker.
        worker: WorkerId,
        /// What was generated is dropped: when it is sent again, it starts again.
        restart: bool,
    },
    /// A task is served by another class than it prefers, or again by that (`got ==
    /// wanted`).
    Fallback {
        /// Which task.
        task: Task,
        /// The class that it prefers.
        wanted: Class,
        /// The class that serves it.
        got: Class,
    },
    /// Prefill and decode are separate, and no healthy worker does this part; or, with
    /// `None`, no longer.
    Lacks(Option<Role>),
    /// A worker that is about to go has nothing in flight any more.
    Drained(WorkerId),

    /// Something for the engines and the weights' store.
    Weights(weights::Command),
    /// A version is current: write it to disk, with where its weights are.
    Version {
        /// The version.
        version: Version,
        /// Where its weights are.
        source: weights::Source,
    },

    /// Write the group's record to disk before anything that follows.
    RecordGroup {
        /// Which group.
        group: GroupId,
        /// Numbers of its trajectories below this may be given away from now on.
        numbers: u32,
    },
    /// Remove the group's record from disk.
    DropGroup(GroupId),
    /// Write a trajectory's record to disk: answer by [`super::Event::Kept`].
    Keep {
        /// What it is.
        keep: Keep,
        /// Its tokens; `None` where its group records none.
        log: Option<Box<TokenLog>>,
    },
    /// Remove what is kept of the trajectory on disk, if anything.
    Drop(TrajectoryId),
    /// The group's record says that it is settled with these trajectories.
    Settle(SettledGroup),
    /// Write the batch to disk, unless it is given `again`; then answer the takers.
    Deliver {
        /// The batch.
        batch: Batch,
        /// Who waits for it.
        takers: Vec<Taker>,
        /// It was delivered before and is on disk.
        again: bool,
    },
    /// The batch is done: remove it and its groups from disk.
    Remove {
        /// Its number, to be kept as the last.
        batch: BatchId,
        /// Its groups.
        groups: Vec<SettledGroup>,
    },
    /// The group is too old: remove it from disk.
    Evict(SettledGroup),

    /// Remove the trajectory's sandbox, if there is one, and cancel its actions.
    CloseSandbox(TrajectoryId),
    /// Call a reward service: answer by [`super::Event::RewardEnded`].
    CallReward {
        /// The call.
        call: CallId,
        /// For whom.
        trajectory: TrajectoryId,
        /// The service.
        service: ServiceIndex,
        /// Which try, from 1.
        attempt: u32,
    },
    /// End a call that is in flight; its end is still to be reported.
    CancelReward(CallId),
    /// A reward service gets no calls for a while, or again.
    RewardCircuit {
        /// Which service.
        service: ServiceIndex,
        /// Whether it gets none.
        open: bool,
    },
    /// Tell those who listen.
    Announce(Announcement),
}
