//! What the scheduler is told, and by whom.

use std::sync::Arc;

use bytes::Bytes;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, NodeId, TrajectoryId};
use rollwright_proto::v1 as pb;
use tokio::sync::oneshot;

use crate::mailbox::{Mailbox, Weigh};
use crate::store::{Durable, Ended, StoreError};
use rollwright_auth::Caller;

/// An answer to one call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// Who is told of an action's events.
#[derive(Clone)]
pub(crate) struct Subscriber {
    pub(crate) mailbox: Arc<Mailbox<pb::ActionEvent>>,
    /// The stream is about one action: a refusal refuses the call.
    pub(crate) single: bool,
}

/// An input of the scheduler: callers, links, store --inbox--> scheduler.
pub(crate) enum Input {
    Execute {
        caller: Caller,
        requests: Vec<pb::ExecuteRequest>,
        to: Subscriber,
    },
    /// The stored result of a repeated id was looked up.
    Found {
        caller: Caller,
        request: Box<pb::ExecuteRequest>,
        to: Subscriber,
        result: Result<Option<Ended>, Fault>,
        /// Bytes of it in the budget.
        charged: usize,
    },
    /// Follow an action without submitting it; answers false where it is not live.
    Attach {
        caller: Caller,
        action: ActionId,
        to: Subscriber,
        reply: oneshot::Sender<bool>,
    },
    Peek {
        caller: Caller,
        action: ActionId,
        reply: oneshot::Sender<Peek>,
    },
    Cancel {
        caller: Caller,
        /// As it was named; empty for any.
        job: String,
        action: ActionId,
        reply: Reply<bool>,
    },
    Open {
        caller: Caller,
        request: pb::OpenTrajectoryRequest,
        reply: Reply<pb::OpenTrajectoryResponse>,
    },
    Close {
        caller: Caller,
        /// As it was named; empty for any.
        job: String,
        trajectory: TrajectoryId,
        reply: Reply<()>,
    },
    /// Where a trajectory stands.
    Look {
        caller: Caller,
        trajectory: TrajectoryId,
        reply: Reply<Standing>,
    },
    Acquire {
        caller: Caller,
        request: pb::AcquireRequest,
        /// Names this call among those that wait for the same permit.
        waiter: u64,
        reply: Reply<pb::AcquireResponse>,
    },
    Release {
        caller: Caller,
        request: pb::ReleaseRequest,
        reply: Reply<()>,
    },
    /// A call that waited for a permit has gone.
    GiveUp {
        permit_id: String,
        waiter: u64,
    },
    /// `None`: for ourselves.
    Stats {
        caller: Option<Caller>,
        reply: oneshot::Sender<pb::StatsResponse>,
    },
    LinkUp {
        hello: Box<pb::Hello>,
        outbox: Arc<Mailbox<pb::QueueMessage>>,
        /// The node and its link's epoch.
        reply: Reply<(NodeId, u64)>,
    },
    LinkBatch {
        node: NodeId,
        epoch: u64,
        messages: Vec<pb::AgentMessage>,
    },
    LinkDown {
        node: NodeId,
        epoch: u64,
    },
    Stored(Result<Vec<Durable>, StoreError>),
    FileOpen {
        transfer: u64,
        caller: Caller,
        target: pb::FileTarget,
        put: bool,
        to: Arc<Mailbox<TransferEvent>>,
        /// Bytes that may be sent at once.
        reply: Reply<u64>,
    },
    FileData {
        transfer: u64,
        data: Bytes,
        last: bool,
    },
    FileCredit {
        transfer: u64,
        bytes: u64,
    },
    /// The caller has all of it, or has gone.
    FileEnd {
        transfer: u64,
        complete: bool,
    },
}

/// A repeated id whose result may be stored.
pub(crate) struct Lookup {
    pub(crate) caller: Caller,
    pub(crate) request: Box<pb::ExecuteRequest>,
    pub(crate) to: Subscriber,
}

/// Where an action stands that has not ended, or has ended just now.
pub(crate) enum Peek {
    /// Not live: perhaps its result is stored.
    Unknown,
    Live {
        state: State,
        events: Vec<pb::ActionEvent>,
    },
}

/// Where a trajectory stands.
#[derive(Debug)]
pub(crate) enum Standing {
    Opening,
    Ready(pb::OpenTrajectoryResponse),
    Closing,
}

/// A live action's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Queued,
    Running,
    Ended,
}

/// What the caller of a file transfer is told.
#[derive(Debug)]
pub(crate) enum TransferEvent {
    /// So many bytes more may be sent.
    Credit(u64),
    /// A piece of the file, perhaps the last.
    Data(Bytes, bool),
    /// It is over: everything has arrived.
    Done,
}

impl Weigh for TransferEvent {
    fn weight(&self) -> usize {
        match self {
            Self::Data(data, _) => 64 + data.len(),
            Self::Credit(_) | Self::Done => 64,
        }
    }
}
