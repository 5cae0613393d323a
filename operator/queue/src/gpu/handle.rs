//! How servers and links talk to the GPU pools.

use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};

use super::look::Looked;
use super::request::Asked;
use crate::fault::stopping;
use crate::mailbox::Mailbox;
use crate::store::Ended;
use rollwright_auth::Caller;

/// Inputs that may wait.
pub(crate) const INBOX: usize = 1024;

/// An answer to one call.
pub(crate) type Reply = oneshot::Sender<Result<pb::CallResponse, Fault>>;

/// An input of the pools: callers, links, store --inbox--> pools.
pub(crate) enum Input {
    Call {
        caller: Caller,
        asked: Box<Asked>,
        reply: Reply,
    },
    /// The stored answer of an id was looked up.
    Found {
        action: ActionId,
        result: Box<Result<Option<Ended>, Fault>>,
    },
    /// Answers false where the call is not known here.
    Cancel {
        caller: Caller,
        /// As it was named; empty for any.
        job: String,
        action: ActionId,
        reply: oneshot::Sender<bool>,
    },
    /// Before a link is up: another agent may have the node.
    MayLink {
        node: NodeId,
        /// Id of its state directory.
        agent: String,
        reply: oneshot::Sender<Result<(), Fault>>,
    },
    LinkUp {
        node: NodeId,
        epoch: u64,
        gpu: Box<pb::GpuNode>,
        /// Ids of its calls whose answers are stored.
        answered: Vec<String>,
        outbox: Arc<Mailbox<pb::QueueMessage>>,
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
    Look {
        caller: Caller,
        action: ActionId,
        /// Until it has ended.
        wait: bool,
        reply: oneshot::Sender<Result<Looked, Fault>>,
    },
    /// The start of a call is durable now.
    Started(ActionId),
    /// The answer of a call is durable now.
    Answered(ActionId),
    /// `None`: for ourselves.
    Stats {
        caller: Option<Caller>,
        reply: oneshot::Sender<Vec<pb::GpuPoolStats>>,
    },
}

/// Cheap to clone; all calls end with a fault when the queue has stopped.
#[derive(Clone)]
pub(crate) struct GpuHandle {
    pub(crate) inbox: mpsc::Sender<Input>,
}

impl GpuHandle {
    pub(crate) async fn send(&self, input: Input) -> Result<(), Fault> {
        self.inbox.send(input).await.map_err(|_| stopping())
    }

    /// Refuses an agent whose node is another's.
    pub(crate) async fn may_link(&self, node: NodeId, agent: String) -> Result<(), Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::MayLink { node, agent, reply }).await?;
        answer.await.map_err(|_| stopping())?
    }

    /// Calls a service; answers what its engine answered.
    pub(crate) async fn call(
        &self,
        caller: Caller,
        request: pb::CallRequest,
    ) -> Result<pb::CallResponse, Fault> {
        let asked = Box::new(Asked::new(request)?);
        let (reply, answer) = oneshot::channel();
        self.send(Input::Call { caller, asked, reply }).await?;
        answer.await.map_err(|_| stopping())?
    }

    /// Cancels a call; false where it is not known.
    pub(crate) async fn cancel(
        &self,
        caller: Caller,
        job: String,
        action: ActionId,
    ) -> Result<bool, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Cancel { caller, job, action, reply }).await?;
        answer.await.map_err(|_| stopping())
    }

    /// Where a call stands, or with `wait` its end.
    pub(crate) async fn look(
        &self,
        caller: Caller,
        action: ActionId,
        wait: bool,
    ) -> Result<Looked, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Look { caller, action, wait, reply }).await?;
        answer.await.map_err(|_| stopping())?
    }

    /// For destructors: cancels a call that nobody can ask for again.
    pub(crate) fn give_up(&self, caller: Caller, action: ActionId) {
        let (reply, _) = oneshot::channel();
        let input = Input::Cancel { caller, job: String::new(), action, reply };
        if let Err(mpsc::error::TrySendError::Full(input)) = self.inbox.try_send(input) {
            let inbox = self.inbox.clone();
            // The pools drain their inbox to the end, so this ends too.
            tokio::spawn(async move { drop(inbox.send(input).await) });
        }
    }

    /// What the caller may know of the pools.
    pub(crate) async fn stats(
        &self,
        caller: Option<Caller>,
    ) -> Result<Vec<pb::GpuPoolStats>, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Stats { caller, reply }).await?;
        answer.await.map_err(|_| stopping())
    }
}
