//! The stream to the queue. The agent dials, says what it holds, and dials again
//! when the stream ends; sandboxes and actions do not notice.

mod backoff;
mod endpoint;

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{AgentBatch, AgentMessage, Heartbeat, QueueBatch};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use crate::metrics::Metrics;
use crate::node::NodeHandle;
use backoff::Backoff;
pub use endpoint::{Endpoint, EndpointError, TlsEndpoint, TlsFiles};

/// Messages on their way from the node to the stream.
const OUTBOX: usize = 1024;
/// Most messages of one batch.
const BATCH_MESSAGES: usize = 512;
/// A batch is closed when it has so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Largest batch that is taken from the queue, in bytes.
const MAX_BATCH_BYTES: usize = 64 << 20;
/// Heartbeat where the queue does not say.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a queue may take to answer the hello.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("the queue refused the stream: {0}")]
    Refused(tonic::Status),
    #[error("the stream broke: {0}")]
    Broken(tonic::Status),
    #[error("the queue ended the stream")]
    Closed,
    #[error("the queue's first message was not a welcome")]
    NoWelcome,
    #[error("the node stopped")]
    NodeGone,
}

/// Keeps a stream to the queue until `shutdown`.
pub async fn run(
    endpoint: Endpoint,
    node: NodeHandle,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::default();
    loop {
        let end = tokio::select! {
            () = left(&node, &shutdown) => return,
            end = stream(&endpoint, &node, &metrics, &mut backoff) => end,
        };
        metrics.link_up.set(0);
        node.link_down().await;
        if matches!(end, StreamEnd::NodeGone) {
            return;
        }
        let pause = backoff.next(rand::random());
        tracing::warn!(reason = %end, retry_in = ?pause, "no stream to the queue");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The shutdown, and then the end of what would end with the agent: the stream goes on for it.
async fn left(node: &NodeHandle, shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    node.leave(false).await;
}

/// One stream from its connection to its end.
async fn stream(
    endpoint: &Endpoint,
    node: &NodeHandle,
    metrics: &Metrics,
    backoff: &mut Backoff,
) -> StreamEnd {
    match try_stream(endpoint, node, metrics, backoff).await {
        Ok(never) => match never {},
        Err(end) => end,
    }
}

async fn try_stream(
    endpoint: &Endpoint,
    node: &NodeHandle,
    metrics: &Metrics,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, StreamEnd> {
    let channel = endpoint.connect().await?;
    let mut client = AgentLinkClient::new(channel)
        .max_decoding_message_size(MAX_BATCH_BYTES)
        .max_encoding_message_size(MAX_BATCH_BYTES);
    // node --messages--> batches
    let (outbox_tx, outbox_rx) = mpsc::channel(OUTBOX);
    // batches --> the stream; few, so that a slow queue is felt by the node
    let (batch_tx, batch_rx) = mpsc::channel(2);
    let heartbeats = outbox_tx.clone();
    node.link_up(outbox_tx).await.map_err(|()| StreamEnd::NodeGone)?;
    let _batching = Abort(tokio::spawn(batch(outbox_rx, batch_tx)));
    let opened = client.link(ReceiverStream::new(batch_rx)).await;
    let mut incoming = opened.map_err(StreamEnd::Refused)?.into_inner();
    let welcome = tokio::time::timeout(WELCOME_TIMEOUT, incoming.message()).await;
    let first = welcome.map_err(|_| StreamEnd::NoWelcome)?.map_err(StreamEnd::Broken)?;
    let mut messages = first.ok_or(StreamEnd::Closed)?.messages.into_iter();
    let Some(FromQueue::Welcome(welcome)) = messages.next().and_then(|first| first.message) else {
        return Err(StreamEnd::NoWelcome);
    };
    let every = welcome.heartbeat.and_then(|every| every.try_into().ok());
    let every: Duration =
        every.filter(|every| !Duration::is_zero(every)).unwrap_or(DEFAULT_HEARTBEAT);
    tracing::info!(epoch = welcome.epoch, "the queue welcomed this node");
    metrics.link_connects.inc();
    metrics.link_up.set(1);
    backoff.reset();
    let _beating = Abort(tokio::spawn(beat(node.clone(), heartbeats, every)));
    for message in messages {
        node.handle(message).await.map_err(|()| StreamEnd::NodeGone)?;
    }
    receive(&mut incoming, node).await
}

async fn receive(
    incoming: &mut Streaming<QueueBatch>,
    node: &NodeHandle,
) -> Result<std::convert::Infallible, StreamEnd> {
    while let Some(batch) = incoming.message().await.map_err(StreamEnd::Broken)? {
        for message in batch.messages {
            node.handle(message).await.map_err(|()| StreamEnd::NodeGone)?;
        }
    }
    Err(StreamEnd::Closed)
}

/// Puts what is ready into one batch; waits only when nothing is.
async fn batch(mut outbox: mpsc::Receiver<AgentMessage>, batches: mpsc::Sender<AgentBatch>) {
    while let Some(first) = outbox.recv().await {
        let mut bytes = first.encoded_len();
        let mut messages = vec![first];
        while bytes < BATCH_BYTES && messages.len() < BATCH_MESSAGES {
            let Ok(next) = outbox.try_recv() else { break };
            bytes += next.encoded_len();
            messages.push(next);
        }
        if batches.send(AgentBatch { messages }).await.is_err() {
            return;
        }
    }
}

async fn beat(node: NodeHandle, outbox: mpsc::Sender<AgentMessage>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let heartbeat = Heartbeat { disk_free_bytes: node.disk_free_bytes() };
        let message = AgentMessage { message: Some(FromAgent::Heartbeat(heartbeat)) };
        if outbox.send(message).await.is_err() {
            return;
        }
    }
}

/// Ends a task with the stream that it serves.
struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
