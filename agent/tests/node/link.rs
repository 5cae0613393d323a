//! The whole agent against a queue of a few lines, over a unix socket.

use std::path::Path;
use std::time::Duration;

use rollwright_agent::link::TlsFiles;
use rollwright_agent::{AgentConfig, Endpoint};
use rollwright_proto::v1::agent_link_server::{AgentLink, AgentLinkServer};
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{
    AgentBatch, OpenSandbox, QueueBatch, QueueMessage, StartAction, Welcome,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::common::{LIMIT, TestNode, action, finished, spec};

/// One stream of an agent, as the queue has it.
struct Stream {
    agent: Streaming<AgentBatch>,
    queue_tx: mpsc::Sender<Result<QueueBatch, Status>>,
    seen: Vec<FromAgent>,
}

impl Stream {
    async fn say(&self, message: FromQueue) {
        let messages = vec![QueueMessage { message: Some(message) }];
        self.queue_tx.send(Ok(QueueBatch { messages })).await.unwrap();
    }

    async fn expect<T>(&mut self, wanted: impl Fn(&FromAgent) -> Option<T>) -> T {
        loop {
            if let Some(at) = self.seen.iter().position(|message| wanted(message).is_some()) {
                return wanted(&self.seen.remove(at)).unwrap();
            }
            let batch = tokio::time::timeout(LIMIT, self.agent.message()).await.unwrap();
            let batch = batch.unwrap().expect("the agent ended the stream");
            self.seen.extend(batch.messages.into_iter().filter_map(|message| message.message));
        }
    }
}

struct Queue {
    streams_tx: mpsc::Sender<Stream>,
}

#[tonic::async_trait]
impl AgentLink for Queue {
    type LinkStream = ReceiverStream<Result<QueueBatch, Status>>;

    async fn link(
        &self,
        request: Request<Streaming<AgentBatch>>,
    ) -> Result<Response<Self::LinkStream>, Status> {
        let (queue_tx, queue_rx) = mpsc::channel(16);
        let stream = Stream { agent: request.into_inner(), queue_tx, seen: Vec::new() };
        let heartbeat = Some(Duration::from_millis(100).try_into().unwrap());
        stream.say(FromQueue::Welcome(Welcome { epoch: 1, heartbeat })).await;
        self.streams_tx.send(stream).await.map_err(|_| Status::unavailable("the test ended"))?;
        Ok(Response::new(ReceiverStream::new(queue_rx)))
    }
}

/// A queue on a socket; its streams come out of the channel.
fn serve(path: &Path, end: CancellationToken) -> mpsc::Receiver<Stream> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let (streams_tx, streams_rx) = mpsc::channel(16);
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(AgentLinkServer::new(Queue { streams_tx }))
            .serve_with_incoming_shutdown(listener, end.cancelled_owned()),
    );
    streams_rx
}

#[tokio::test]
async fn actions_survive_a_queue_that_is_killed() {
    let Some(other) = TestNode::start().await else { return };
    let dir = tempfile::Builder::new().prefix("rwt").tempdir().unwrap();
    let socket = dir.path().join("queue.sock");
    let mut config =
        AgentConfig { node: format!("{}-link", other.config.node), ..other.config.clone() };
    config.state_dir = dir.path().join("state");
    other.finish().await;
    let first_end = CancellationToken::new();
    let mut streams = serve(&socket, first_end.clone());
    let shutdown = CancellationToken::new();
    let endpoint = Endpoint::parse(&format!("unix:{}", socket.display()), TlsFiles::default());
    let agent = tokio::spawn(rollwright_agent::run(config, endpoint.unwrap(), shutdown.clone()));

    let mut stream = streams.recv().await.unwrap();
    let hello = |message: &FromAgent| match message {
        FromAgent::Hello(hello) => Some(hello.clone()),
        _ => None,
    };
    assert!(stream.expect(hello).await.sandboxes.is_empty());
    let open = OpenSandbox { trajectory_id: "t".into(), spec: Some(spec()) };
    stream.say(FromQueue::OpenSandbox(open)).await;
    stream.expect(|m| matches!(m, FromAgent::SandboxReady(_)).then_some(())).await;
    stream.expect(|m| matches!(m, FromAgent::Heartbeat(_)).then_some(())).await;
    let start: StartAction = action("a", "t", "until [ -e go ]; do sleep 0.05; done; echo done");
    stream.say(FromQueue::StartAction(start)).await;
    stream.expect(|m| matches!(m, FromAgent::ActionStarted(_)).then_some(())).await;
    drop((stream, streams));
    first_end.cancel();

    let second_end = CancellationToken::new();
    let mut streams = serve(&socket, second_end.clone());
    let mut stream = streams.recv().await.unwrap();
    let again = stream.expect(hello).await;
    assert_eq!(again.sandboxes.len(), 1);
    assert!(again.actions.iter().any(|live| live.action_id == "a" && !live.ended));
    stream.say(FromQueue::StartAction(action("b", "t", "touch go"))).await;
    let ended = stream
        .expect(|message| match message {
            FromAgent::ActionEnded(ended) if ended.action_id == "a" => Some(ended.clone()),
            _ => None,
        })
        .await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    shutdown.cancel();
    agent.await.unwrap().unwrap();
    second_end.cancel();
}
