//! How the servers talk to the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::stream::{self, Stream};
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::input::{Input, Reply, Subscriber, TransferEvent};
use crate::clock::Clock;
use crate::fault::{infrastructure, stopping};
use crate::gpu::GpuHandle;
use crate::mailbox::{Budget, LIMIT, Mailbox, Reader};
use crate::metrics::Metrics;
use crate::store::Store;
use rollwright_auth::Caller;

/// Bytes of small orders and file data that may wait for an agent.
const LINK_ROOM: usize = 256 << 20;
/// Largest piece of a file in one message.
const PIECE: usize = 256 << 10;

/// Cheap to clone; all calls end with a fault when the scheduler has stopped.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) inbox: mpsc::Sender<Input>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    pub(crate) budget: Arc<Budget>,
    /// Bytes of requests and outputs held at most.
    pub(crate) max_buffered_bytes: usize,
    /// Numbers of transfers and of waiting callers.
    pub(crate) numbers: Arc<AtomicU64>,
    /// Calls of reward services, and links of nodes with GPUs.
    pub(crate) gpu: GpuHandle,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when the queue stops.
    pub(crate) stopped: CancellationToken,
}

impl Handle {
    pub(crate) async fn send(&self, input: Input) -> Result<(), Fault> {
        self.inbox.send(input).await.map_err(|_| stopping())
    }

    /// For destructors: sends without waiting, or in the background.
    pub(crate) fn post(&self, input: Input) {
        if let Err(mpsc::error::TrySendError::Full(input)) = self.inbox.try_send(input) {
            let inbox = self.inbox.clone();
            // The scheduler drains its inbox to the end, so this ends too.
            tokio::spawn(async move { drop(inbox.send(input).await) });
        }
    }

    /// One call and its answer.
    pub(crate) async fn call<T>(&self, input: impl FnOnce(Reply<T>) -> Input) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(input(reply)).await?;
        answer.await.map_err(|_| stopping())?
    }

    pub(crate) fn mailbox<T: crate::mailbox::Weigh>(&self) -> Arc<Mailbox<T>> {
        Arc::new(Mailbox::new(Arc::clone(&self.budget), LIMIT))
    }

    /// For orders to an agent. What waits in it is bounded elsewhere: starts by the
    /// budget of requests, file data by its windows. Only an agent that does not
    /// read at all comes near this limit.
    pub(crate) fn link_mailbox(&self) -> Arc<Mailbox<pb::QueueMessage>> {
        let limit = self.max_buffered_bytes.saturating_mul(2).saturating_add(LINK_ROOM);
        Arc::new(Mailbox::new(Arc::clone(&self.budget), limit))
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Submits one action; the reader gets its events to the end.
    pub(crate) async fn execute(
        &self,
        caller: Caller,
        request: pb::ExecuteRequest,
    ) -> Result<Reader<pb::ActionEvent>, Fault> {
        let mailbox = self.mailbox();
        mailbox.expect(1);
        mailbox.complete();
        let to = Subscriber { mailbox: Arc::clone(&mailbox), single: true };
        self.send(Input::Execute { caller, requests: vec![request], to }).await?;
        Ok(Reader(mailbox))
    }

    /// Waits for a permit; giving up returns it.
    pub(crate) async fn acquire(
        &self,
        caller: Caller,
        request: pb::AcquireRequest,
    ) -> Result<pb::AcquireResponse, Fault> {
        let waiter = self.number();
        let mut guard =
            GiveUp { handle: self.clone(), permit_id: Some(request.permit_id.clone()), waiter };
        let acquired = self.call(|reply| Input::Acquire { caller, request, waiter, reply }).await;
        guard.permit_id = None;
        acquired
    }

    /// What the caller may know of the load; `None`: everything.
    pub(crate) async fn stats(&self, caller: Option<Caller>) -> Result<pb::StatsResponse, Fault> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Stats { caller: caller.clone(), reply }).await?;
        let mut stats = answer.await.map_err(|_| stopping())?;
        stats.gpu_pools = self.gpu.stats(caller).await?;
        Ok(stats)
    }

    /// Cancels an action or a call of a reward service.
    pub(crate) async fn cancel(
        &self,
        caller: Caller,
        job: String,
        action: ActionId,
    ) -> Result<bool, Fault> {
        if self.gpu.cancel(caller.clone(), job.clone(), action.clone()).await? {
            return Ok(true);
        }
        self.call(|reply| Input::Cancel { caller, job, action, reply }).await
    }

    /// Of a hello's calls those whose answers are stored.
    pub(crate) async fn answered(&self, calls: &[pb::LiveCall]) -> Result<Vec<String>, Fault> {
        let ids: Vec<String> = calls.iter().map(|call| call.action_id.clone()).collect();
        let (store, now) = (Arc::clone(&self.store), self.clock.now());
        let read = tokio::task::spawn_blocking(move || {
            let mut answered = Vec::new();
            for id in ids {
                if store.result(&id, now)?.is_some_and(|ended| ended.call.is_some()) {
                    answered.push(id);
                }
            }
            Ok(answered)
        });
        let read: Result<Vec<String>, crate::store::StoreError> =
            read.await.map_err(|_| stopping())?;
        read.map_err(|error| infrastructure("StoreFailed", error.to_string()))
    }

    /// A new link's first message.
    pub(crate) async fn link_up(
        &self,
        hello: pb::Hello,
        outbox: Arc<Mailbox<pb::QueueMessage>>,
    ) -> Result<(NodeId, u64), Fault> {
        self.call(|reply| Input::LinkUp { hello: Box::new(hello), outbox, reply }).await
    }

    /// Begins to move a file.
    pub(crate) async fn transfer(
        &self,
        caller: Caller,
        target: pb::FileTarget,
        put: bool,
    ) -> Result<Transfer, Fault> {
        let mailbox = self.mailbox();
        let to = Arc::clone(&mailbox);
        let transfer = self.number();
        // Made first: a caller that goes away while it waits ends the transfer too.
        let mut opened = Transfer {
            id: transfer,
            handle: self.clone(),
            events: Reader(mailbox),
            pending: std::collections::VecDeque::new(),
            window: 0,
            over: false,
        };
        let open = |reply| Input::FileOpen { transfer, caller, target, put, to, reply };
        match self.call(open).await {
            Ok(window) => opened.window = window,
            Err(fault) => {
                opened.over = true;
                return Err(fault);
            }
        }
        Ok(opened)
    }
}

/// Tells the scheduler that a caller went away while it waited for a permit.
struct GiveUp {
    handle: Handle,
    permit_id: Option<String>,
    waiter: u64,
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        let Some(permit_id) = self.permit_id.take() else { return };
        self.handle.post(Input::GiveUp { permit_id, waiter: self.waiter });
    }
}

/// One file on its way. Dropping it ends it on both sides.
pub(crate) struct Transfer {
    id: u64,
    handle: Handle,
    events: Reader<TransferEvent>,
    pending: std::collections::VecDeque<TransferEvent>,
    /// Bytes that may still be sent.
    window: u64,
    over: bool,
}

impl Transfer {
    async fn event(&mut self) -> Result<TransferEvent, Fault> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            match self.events.read().await {
                Some(Ok(events)) => self.pending.extend(events),
                Some(Err(fault)) => {
                    self.over = true;
                    return Err(fault);
                }
                None => return Err(stopping()),
            }
        }
    }

    /// Sends a piece of any size, as fast as the receiver takes it.
    pub(crate) async fn put(&mut self, mut data: Bytes) -> Result<(), Fault> {
        while !data.is_empty() {
            while self.window == 0 {
                self.await_credit().await?;
            }
            let window = usize::try_from(self.window).unwrap_or(PIECE);
            let piece = data.split_to(data.len().min(PIECE).min(window));
            self.window -= piece.len() as u64;
            let input = Input::FileData { transfer: self.id, data: piece, last: false };
            self.handle.send(input).await?;
        }
        Ok(())
    }

    async fn await_credit(&mut self) -> Result<(), Fault> {
        match self.event().await? {
            TransferEvent::Credit(bytes) => self.window = self.window.saturating_add(bytes),
            TransferEvent::Data(..) => {}
            TransferEvent::Done => {
                self.over = true;
                let message = "the agent ended the transfer before all was sent";
                return Err(infrastructure("TransferCut", message));
            }
        }
        Ok(())
    }

    /// Says that all was sent, and waits until it has arrived.
    pub(crate) async fn finish(mut self) -> Result<(), Fault> {
        let input = Input::FileData { transfer: self.id, data: Bytes::new(), last: true };
        self.handle.send(input).await?;
        loop {
            if let TransferEvent::Done = self.event().await? {
                self.over = true;
                return Ok(());
            }
        }
    }

    /// The next piece; `None` after the last.
    pub(crate) async fn get(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if self.over {
                return Ok(None);
            }
            match self.event().await? {
                TransferEvent::Data(data, last) => {
                    if last {
                        self.over = true;
                        let input = Input::FileEnd { transfer: self.id, complete: true };
                        self.handle.send(input).await?;
                    } else if !data.is_empty() {
                        let bytes = data.len() as u64;
                        let input = Input::FileCredit { transfer: self.id, bytes };
                        self.handle.send(input).await?;
                    }
                    if !data.is_empty() {
                        return Ok(Some(data));
                    }
                }
                TransferEvent::Done => self.over = true,
                TransferEvent::Credit(_) => {}
            }
        }
    }
}

impl Transfer {
    /// All pieces; an error ends them, so that the reader sees that it is not all.
    pub(crate) fn pieces(self) -> impl Stream<Item = Result<Bytes, Fault>> {
        stream::unfold(Some(self), |transfer| async move {
            let mut transfer = transfer?;
            match transfer.get().await {
                Ok(piece) => Some((Ok(piece?), Some(transfer))),
                Err(fault) => Some((Err(fault), None)),
            }
        })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.over {
            self.handle.post(Input::FileEnd { transfer: self.id, complete: false });
        }
    }
}
