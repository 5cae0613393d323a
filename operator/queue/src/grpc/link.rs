//! `AgentLink`: one stream of each node's agent.

use std::pin::Pin;
use std::time::Duration;

use futures::stream::{self, Stream};
use pb::agent_message::Message;
use rollwright_core::fault::Fault;
use rollwright_core::ids::NodeId;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_server::AgentLink;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use crate::fault::{status, stopping, user};
use crate::gpu;
use crate::mailbox::Reader;
use crate::scheduler::{Handle, Input};

/// Heartbeats that may be missing before a link is given up.
const MISSING: u32 = 3;
/// Time for the first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The service.
pub(crate) struct LinkApi {
    handle: Handle,
    heartbeat: Duration,
    /// Name that every agent's certificate must have; `None`: its node's.
    agent_name: Option<String>,
}

impl LinkApi {
    pub(crate) fn new(handle: Handle, heartbeat: Duration, agent_name: Option<String>) -> Self {
        Self { handle, heartbeat, agent_name }
    }
}

#[tonic::async_trait]
impl AgentLink for LinkApi {
    type LinkStream = Pin<Box<dyn Stream<Item = Result<pb::QueueBatch, Status>> + Send>>;

    async fn link(
        &self,
        request: Request<Streaming<pb::AgentBatch>>,
    ) -> Result<Response<Self::LinkStream>, Status> {
        let certificates = request.peer_certs();
        let mut incoming = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, incoming.message()).await;
        let first = first.map_err(|_| invalid("no hello came within 10 s"))??;
        let mut messages = first.map(|batch| batch.messages).unwrap_or_default().into_iter();
        let Some(Message::Hello(hello)) = messages.next().and_then(|first| first.message) else {
            return Err(invalid("the first message must be hello"));
        };
        if let Some(certificates) = certificates {
            let name = self.agent_name.as_ref().unwrap_or(&hello.node);
            check_name(name, certificates.first())?;
        }
        let gpu = hello.gpu.clone().map(|mut gpu| {
            if gpu.pool.is_empty() {
                gpu.pool.clone_from(&hello.pool);
            }
            gpu
        });
        // One whose name is none is refused below.
        if let (Some(gpu), Ok(node)) = (&gpu, NodeId::new(&hello.node)) {
            let may = self.handle.gpu.may_link(node, gpu.agent.clone()).await;
            may.map_err(|fault| status(&fault))?;
        }
        let outbox = self.handle.link_mailbox();
        let reader = Reader(std::sync::Arc::clone(&outbox));
        let (handle, patience) = (self.handle.clone(), self.heartbeat * MISSING);
        let rest = messages.collect();
        let (linked_tx, linked) = oneshot::channel();
        // In a task of its own, which nobody cancels: whoever says that a link is up
        // also says when it is down.
        tokio::spawn(async move {
            match handle.link_up(hello, std::sync::Arc::clone(&outbox)).await {
                Ok((node, epoch)) => {
                    let has_gpus = gpu.is_some();
                    if let Some(gpu) = gpu {
                        let linked = gpus_up(&handle, &node, epoch, gpu, outbox).await;
                        if let Err(fault) = linked {
                            tracing::warn!(%node, %fault, "its GPUs are not linked");
                        }
                    }
                    // When the handler has gone, the stream breaks and ends the task.
                    let _gone = linked_tx.send(Ok(()));
                    Receiver { handle, node, epoch, has_gpus, patience }.run(rest, incoming).await;
                }
                // Who has gone does not want the answer.
                Err(fault) => drop(linked_tx.send(Err(fault))),
            }
        });
        let linked = linked.await.unwrap_or_else(|_| Err(stopping()));
        linked.map_err(|fault| status(&fault))?;
        let outgoing = stream::unfold(reader, |reader| async move {
            let read = reader.read().await?;
            let batch = read.map(|messages| pb::QueueBatch { messages });
            Some((batch.map_err(|fault| status(&fault)), reader))
        });
        Ok(Response::new(Box::pin(outgoing)))
    }
}

/// Tells the GPU pools of a node, and what is stored of the calls that it has.
async fn gpus_up(
    handle: &Handle,
    node: &NodeId,
    epoch: u64,
    gpu: pb::GpuNode,
    outbox: std::sync::Arc<crate::mailbox::Mailbox<pb::QueueMessage>>,
) -> Result<(), Fault> {
    let answered = handle.answered(&gpu.calls).await?;
    let (node, gpu) = (node.clone(), Box::new(gpu));
    handle.gpu.send(gpu::Input::LinkUp { node, epoch, gpu, answered, outbox }).await
}

/// Whether the GPU pools are told of a message.
fn of_gpus(message: &pb::AgentMessage) -> bool {
    matches!(
        message.message,
        Some(
            Message::EngineReport(_)
                | Message::EngineBroke(_)
                | Message::GpuChanged(_)
                | Message::CallEnded(_)
                | Message::Leaving(_)
        )
    )
}

/// A certificate speaks for the node, or for the agents of the queue, that it names as a
/// subject alternative name, and for no other.
#[allow(clippy::result_large_err)] // as tonic's own
fn check_name(name: &str, certificate: Option<&CertificateDer<'static>>) -> Result<(), Status> {
    let named = certificate.is_some_and(|certificate| {
        let parsed = webpki::EndEntityCert::try_from(certificate).ok();
        parsed.zip(ServerName::try_from(name).ok()).is_some_and(|(certificate, name)| {
            certificate.verify_is_valid_for_subject_name(&name).is_ok()
        })
    });
    if named {
        return Ok(());
    }
    let message = format!(
        "the agent's certificate does not name `{name}`: issue one with that DNS subject alternative name"
    );
    Err(status(&user("Forbidden", message)))
}

fn invalid(message: &str) -> Status {
    status(&user("InvalidLink", message))
}

/// Passes on what an agent sends, until it is silent for too long.
struct Receiver {
    handle: Handle,
    node: NodeId,
    epoch: u64,
    /// The GPU pools are told of it too.
    has_gpus: bool,
    patience: Duration,
}

impl Receiver {
    async fn run(self, rest: Vec<pb::AgentMessage>, mut incoming: Streaming<pb::AgentBatch>) {
        let mut messages = rest;
        loop {
            let (gpu, messages_left): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|message| self.has_gpus && of_gpus(message));
            if !gpu.is_empty() {
                let (node, epoch) = (self.node.clone(), self.epoch);
                let input = gpu::Input::LinkBatch { node, epoch, messages: gpu };
                if self.handle.gpu.send(input).await.is_err() {
                    return;
                }
            }
            if !messages_left.is_empty() {
                let (node, epoch) = (self.node.clone(), self.epoch);
                let input = Input::LinkBatch { node, epoch, messages: messages_left };
                if self.handle.send(input).await.is_err() {
                    return;
                }
            }
            let message = tokio::select! {
                message = tokio::time::timeout(self.patience, incoming.message()) => message,
                () = self.handle.stopped.cancelled() => return,
            };
            match message {
                Ok(Ok(Some(batch))) => messages = batch.messages,
                Ok(Ok(None)) => break,
                Ok(Err(status)) => {
                    tracing::debug!(node = %self.node, %status, "an agent's stream broke");
                    break;
                }
                Err(_) => {
                    tracing::warn!(node = %self.node, "no heartbeat came");
                    break;
                }
            }
        }
        let (node, epoch) = (self.node, self.epoch);
        if self.has_gpus {
            let down = gpu::Input::LinkDown { node: node.clone(), epoch };
            if self.handle.gpu.send(down).await.is_err() {
                tracing::debug!("the queue is shutting down");
            }
        }
        if self.handle.send(Input::LinkDown { node, epoch }).await.is_err() {
            tracing::debug!("the queue is shutting down");
        }
    }
}
