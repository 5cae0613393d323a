//! A caller of the queue over its unix socket.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use hyper_util::rt::TokioIo;
use rollwright_proto::v1::action_event::Event;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::{
    ActionEvent, CallRequest, CallResponse, CancelRequest, CloseTrajectoryRequest, Command,
    ExecuteRequest, Fault, FileTarget, Finished, GetFileRequest, OpenTrajectoryRequest,
    OpenTrajectoryResponse, PutFileRequest, Started, StatsRequest, StatsResponse, command::Program,
    output::Stream as OutputStream, put_file_request::Part,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Bytes of an answer: what a reward service may say, and more.
const MAX_ANSWER: usize = 16 << 20;

/// A gRPC channel over a unix socket.
pub async fn channel(socket: &Path) -> anyhow::Result<Channel> {
    let path = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The name is never looked up: the connector above decides where it goes.
    let endpoint = Endpoint::from_static("http://queue.local");
    endpoint
        .connect_with_connector(connect)
        .await
        .with_context(|| format!("no queue answers at `{}`", socket.display()))
}

/// How an action ended, and what it said until then.
#[derive(Debug, Default)]
pub struct Run {
    /// Its grant.
    pub started: Option<Started>,
    /// Kept standard output.
    pub stdout: Vec<u8>,
    /// Kept standard error.
    pub stderr: Vec<u8>,
    /// Bytes dropped from both.
    pub dropped: u64,
    /// Its end.
    pub end: Option<End>,
}

/// The three ends of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The program ended by itself.
    Finished(Finished),
    /// It did not.
    Failed(Fault),
    /// Somebody cancelled it.
    Cancelled,
}

impl Run {
    fn take(&mut self, event: ActionEvent) {
        match event.event {
            Some(Event::Started(started)) => self.started = Some(started),
            Some(Event::Output(output)) => {
                self.dropped += output.dropped_before;
                if output.stream() == OutputStream::Stderr {
                    self.stderr.extend_from_slice(&output.data);
                } else {
                    self.stdout.extend_from_slice(&output.data);
                }
            }
            Some(Event::Finished(finished)) => self.end = Some(End::Finished(finished)),
            Some(Event::Failed(fault)) => self.end = Some(End::Failed(fault)),
            Some(Event::Cancelled(_)) => self.end = Some(End::Cancelled),
            Some(Event::Queued(_)) | None => {}
        }
    }

    /// The report of a program that ended by itself.
    pub fn finished(&self) -> anyhow::Result<&Finished> {
        match &self.end {
            Some(End::Finished(finished)) => Ok(finished),
            other => bail!("expected a finished program, got {other:?}"),
        }
    }

    /// The fault of an action that did not finish.
    pub fn fault(&self) -> anyhow::Result<&Fault> {
        match &self.end {
            Some(End::Failed(fault)) => Ok(fault),
            other => bail!("expected a fault, got {other:?}"),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A request to run `shell` in a trajectory's sandbox.
pub fn shell(action: &str, trajectory: &str, shell: &str) -> ExecuteRequest {
    let program = Some(Program::Shell(shell.to_owned()));
    ExecuteRequest {
        action_id: action.to_owned(),
        trajectory_id: trajectory.to_owned(),
        command: Some(Command { program, ..Command::default() }),
        ..ExecuteRequest::default()
    }
}

/// The typed fault in a refusal.
pub fn fault_of(status: &Status) -> anyhow::Result<Fault> {
    use tonic::codegen::Bytes;
    let value = status
        .metadata()
        .get_bin("rollwright-fault-bin")
        .ok_or_else(|| anyhow!("no fault in {status:?}"))?;
    let bytes: Bytes = value.to_bytes().context("the fault is not base64")?;
    Ok(prost::Message::decode(bytes)?)
}

/// A caller.
#[derive(Debug, Clone)]
pub struct Client {
    service: ActionServiceClient<Channel>,
}

impl Client {
    /// Connects to a queue's unix socket.
    pub async fn connect(socket: &Path) -> anyhow::Result<Self> {
        let service = ActionServiceClient::new(channel(socket).await?);
        Ok(Self { service: service.max_decoding_message_size(MAX_ANSWER) })
    }

    /// Opens a trajectory and waits until its sandbox is ready.
    pub async fn open(
        &mut self,
        id: &str,
        template: &str,
    ) -> Result<OpenTrajectoryResponse, Status> {
        let request = OpenTrajectoryRequest {
            trajectory_id: id.to_owned(),
            template: template.to_owned(),
            env: HashMap::new(),
            ..OpenTrajectoryRequest::default()
        };
        Ok(self.service.open_trajectory(request).await?.into_inner())
    }

    /// Closes a trajectory and waits until its sandbox is gone.
    pub async fn close(&mut self, id: &str) -> Result<(), Status> {
        let request = CloseTrajectoryRequest { trajectory_id: id.to_owned(), job: String::new() };
        self.service.close_trajectory(request).await.map(drop)
    }

    /// Submits an action; its events follow.
    pub async fn submit(
        &mut self,
        request: ExecuteRequest,
    ) -> Result<Streaming<ActionEvent>, Status> {
        Ok(self.service.execute(request).await?.into_inner())
    }

    /// Runs an action to its end.
    pub async fn run(&mut self, request: ExecuteRequest) -> Result<Run, Status> {
        finish(self.submit(request).await?).await
    }

    /// Cancels an action.
    pub async fn cancel(&mut self, id: &str) -> Result<bool, Status> {
        let request = CancelRequest { action_id: id.to_owned(), job: String::new() };
        Ok(self.service.cancel(request).await?.into_inner().cancelled)
    }

    /// A call of a reward service.
    pub async fn call(&mut self, request: CallRequest) -> Result<CallResponse, Status> {
        Ok(self.service.call(request).await?.into_inner())
    }

    /// Writes a file, or unpacks a tar at `path`.
    pub async fn put(
        &mut self,
        trajectory: &str,
        path: &str,
        tar: bool,
        data: Vec<u8>,
    ) -> Result<u64, Status> {
        let target = FileTarget {
            trajectory_id: trajectory.to_owned(),
            path: path.to_owned(),
            tar,
            mode: 0,
        };
        let mut parts = vec![Part::Target(target)];
        parts.extend(data.chunks(32 << 10).map(|chunk| Part::Data(chunk.to_vec().into())));
        let parts = parts.into_iter().map(|part| PutFileRequest { part: Some(part) });
        let reply = self.service.put_file(tokio_stream::iter(parts)).await?;
        Ok(reply.into_inner().bytes)
    }

    /// Reads a file, or a tar of `path`.
    pub async fn get(
        &mut self,
        trajectory: &str,
        path: &str,
        tar: bool,
    ) -> Result<Vec<u8>, Status> {
        let request =
            GetFileRequest { trajectory_id: trajectory.to_owned(), path: path.to_owned(), tar };
        let mut chunks = self.service.get_file(request).await?.into_inner();
        let mut data = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            data.extend_from_slice(&chunk.data);
        }
        Ok(data)
    }

    /// What the queue holds.
    pub async fn stats(&mut self) -> Result<StatsResponse, Status> {
        Ok(self.service.stats(StatsRequest {}).await?.into_inner())
    }

    /// Waits until nothing is held: no trajectory, core, share or byte of memory.
    pub async fn wait_until_empty(&mut self) -> anyhow::Result<()> {
        crate::wait::until("the queue holds nothing", Duration::from_mins(1), async || {
            let stats = self.stats().await?;
            let nodes = stats.nodes.iter().all(|node| {
                node.exclusive_cores == 0
                    && node.shared_cores == 0
                    && node.memory_reserved_bytes == 0
            });
            Ok(nodes && stats.trajectories == 0 && stats.running == 0 && stats.waiting == 0)
        })
        .await
    }
}

/// Reads a stream of events to its end.
pub async fn finish(mut events: Streaming<ActionEvent>) -> Result<Run, Status> {
    let mut run = Run::default();
    while let Some(event) = events.message().await? {
        run.take(event);
    }
    Ok(run)
}

/// Reads events until the program runs.
pub async fn until_started(events: &mut Streaming<ActionEvent>) -> anyhow::Result<Started> {
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Started(started)) => return Ok(started),
            Some(Event::Failed(fault)) => bail!("it failed before it started: {fault:?}"),
            _ => {}
        }
    }
    bail!("the stream ended before the action started")
}

/// Reads events until standard output holds `text`.
pub async fn until_output(events: &mut Streaming<ActionEvent>, text: &str) -> anyhow::Result<()> {
    let mut run = Run::default();
    while let Some(event) = events.message().await? {
        run.take(event);
        if run.text().contains(text) {
            return Ok(());
        }
        if let Some(end) = &run.end {
            bail!("it ended before it said {text:?}: {end:?}, output {:?}", run.text());
        }
    }
    bail!("the stream ended before it said {text:?}")
}
