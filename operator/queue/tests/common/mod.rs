//! A queue on Unix sockets in a directory of its own, with simulated agents.
#![allow(dead_code)] // each test binary uses its part

pub mod simulated_agent;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_queue::{
    AgentListen, Listen, Listeners, QueueConfig, QueueError, QueueServer, Template,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};

pub type Client = ActionServiceClient<Channel>;

/// How long any condition may take: generous, since machines stall.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A running queue.
pub struct TestQueue {
    pub dir: PathBuf,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), QueueError>>,
}

pub fn config(dir: &Path) -> QueueConfig {
    let mut config = QueueConfig::new("test", dir.join("store"));
    let spec = pb::SandboxSpec { memory_bytes: 1 << 20, ..pb::SandboxSpec::default() };
    config.templates.insert("box".to_owned(), Template { spec, warm: 0 });
    config
}

pub fn listeners(dir: &Path) -> Listeners {
    Listeners {
        callers: Listen::Unix(dir.join("queue.sock")),
        agents: AgentListen::Unix(dir.join("agents.sock")),
        metrics: None,
    }
}

impl TestQueue {
    pub async fn start(config: QueueConfig, dir: &Path) -> Self {
        let server = QueueServer::start(config, listeners(dir)).await.unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.serve(shutdown.clone()));
        Self { dir: dir.to_owned(), shutdown, task }
    }

    pub async fn client(&self) -> Client {
        client(&self.dir).await
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

pub async fn channel(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://queue");
    until(|| {
        let (endpoint, connector) = (endpoint.clone(), connector.clone());
        async move { endpoint.connect_with_connector(connector).await.ok() }
    })
    .await
}

pub async fn client(dir: &Path) -> Client {
    ActionServiceClient::new(channel(dir.join("queue.sock")).await)
}

/// Repeats until there is something.
pub async fn until<T, F: Future<Output = Option<T>>>(mut attempt: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "the condition never came true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn open(client: &mut Client, trajectory: &str, job: &str) {
    let request = pb::OpenTrajectoryRequest {
        trajectory_id: trajectory.to_owned(),
        job: job.to_owned(),
        template: "box".to_owned(),
        ..pb::OpenTrajectoryRequest::default()
    };
    client.open_trajectory(request).await.unwrap();
}

pub fn action(id: &str, trajectory: &str, shell: &str) -> pb::ExecuteRequest {
    let program = pb::command::Program::Shell(shell.to_owned());
    pb::ExecuteRequest {
        action_id: id.to_owned(),
        trajectory_id: trajectory.to_owned(),
        command: Some(pb::Command { program: Some(program), ..pb::Command::default() }),
        ..pb::ExecuteRequest::default()
    }
}

/// Runs one action to its end and returns its events' names and its output.
pub async fn run(
    client: &mut Client,
    request: pb::ExecuteRequest,
) -> Result<(Vec<&'static str>, Vec<u8>), tonic::Status> {
    use pb::action_event::Event;
    let mut stream = client.execute(request).await?.into_inner();
    let (mut names, mut output) = (Vec::new(), Vec::new());
    while let Some(event) = stream.message().await? {
        names.push(match event.event.unwrap() {
            Event::Queued(_) => "queued",
            Event::Started(_) => "started",
            Event::Output(piece) => {
                output.extend_from_slice(&piece.data);
                "output"
            }
            Event::Finished(_) => "finished",
            Event::Failed(_) => "failed",
            Event::Cancelled(_) => "cancelled",
        });
    }
    Ok((names, output))
}

/// One HTTP/1.1 request by hand: status, head and body.
pub async fn http(dir: &Path, method: &str, path: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
    let stream = UnixStream::connect(dir.join("queue.sock")).await.unwrap();
    http_on(stream, method, path, "", body).await
}

pub async fn http_on(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> (u16, String, Vec<u8>) {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: queue\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head[9..12].parse().unwrap();
    let mut body = answer[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = unchunk(&body);
    }
    (status, head, body)
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    body
}
