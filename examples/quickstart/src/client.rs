//! The calls of `ActionService` that the workload makes, over a unix socket.

use std::path::Path;
use std::sync::Arc;

use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::{
    ActionEvent, CloseTrajectoryRequest, ExecuteRequest, Fault, FileTarget, Finished,
    GetFileRequest, OpenTrajectoryRequest, OpenTrajectoryResponse, PutFileRequest, Started,
    StatsRequest, StatsResponse, action_event, fault, output, put_file_request,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Most of an action's output that is kept for its reader, in bytes.
const OUTPUT_KEPT: usize = 256 * 1024;
/// Bytes of a file sent in one message.
const FILE_PIECE: usize = 64 * 1024;

/// Why a call brought no result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Trouble {
    pub(crate) kind: fault::Kind,
    reason: String,
    message: String,
}

impl Trouble {
    /// Trying again may help: it was not the caller and not the program.
    pub(crate) fn is_infrastructure(&self) -> bool {
        self.kind == fault::Kind::Infrastructure
    }

    fn broken_stream() -> Self {
        Self {
            kind: fault::Kind::Infrastructure,
            reason: "StreamEnded".to_owned(),
            message: "the queue ended the stream before the action had ended".to_owned(),
        }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self { kind: fault.kind(), reason: fault.reason, message: fault.message }
    }
}

impl From<tonic::Status> for Trouble {
    fn from(status: tonic::Status) -> Self {
        let detail = status
            .metadata()
            .get_bin("rollwright-fault-bin")
            .and_then(|value| value.to_bytes().ok())
            .and_then(|bytes| Fault::decode(bytes).ok());
        match detail {
            Some(fault) => fault.into(),
            None => Self {
                kind: fault::Kind::Infrastructure,
                reason: format!("{:?}", status.code()),
                message: status.message().to_owned(),
            },
        }
    }
}

/// How an action ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) finished: Finished,
    pub(crate) cores: Vec<u32>,
    /// Standard output, lossily decoded.
    pub(crate) stdout: String,
}

/// A connection to one queue.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    service: ActionServiceClient<Channel>,
}

impl Client {
    /// Connects to the queue's unix socket.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let socket: Arc<Path> = Arc::from(socket);
        // The address is not used: the connector goes to the socket.
        let channel = Endpoint::from_static("http://queue.invalid")
            .connect_with_connector(tower::service_fn(move |_| {
                let socket = Arc::clone(&socket);
                async move { UnixStream::connect(&socket).await.map(TokioIo::new) }
            }))
            .await?;
        Ok(Self { service: ActionServiceClient::new(channel) })
    }

    /// Opens a trajectory and waits until its sandbox is ready.
    pub(crate) async fn open(
        &self,
        id: &str,
        template: &str,
    ) -> Result<OpenTrajectoryResponse, Trouble> {
        let request = OpenTrajectoryRequest {
            trajectory_id: id.to_owned(),
            job: "quickstart".to_owned(),
            template: template.to_owned(),
            ..OpenTrajectoryRequest::default()
        };
        Ok(self.service.clone().open_trajectory(request).await?.into_inner())
    }

    /// Closes a trajectory, whatever its state.
    pub(crate) async fn close(&self, id: &str) -> Result<(), Trouble> {
        let request = CloseTrajectoryRequest { trajectory_id: id.to_owned() };
        self.service.clone().close_trajectory(request).await?;
        Ok(())
    }

    /// Runs an action to its end; `on_start` is called when it starts.
    pub(crate) async fn execute(
        &self,
        request: ExecuteRequest,
        mut on_start: impl FnMut(&Started),
    ) -> Result<Ended, Trouble> {
        let mut events = self.service.clone().execute(request).await?.into_inner();
        let mut cores = Vec::new();
        let mut stdout = Vec::new();
        while let Some(event) = events.next().await {
            let ActionEvent { event: Some(event), .. } = event? else { continue };
            match event {
                action_event::Event::Queued(_) => {}
                action_event::Event::Started(started) => {
                    on_start(&started);
                    cores = started.cores;
                }
                action_event::Event::Output(piece) => {
                    if piece.stream() == output::Stream::Stdout {
                        stdout.extend_from_slice(&piece.data);
                        let surplus = stdout.len().saturating_sub(OUTPUT_KEPT);
                        stdout.drain(..surplus);
                    }
                }
                action_event::Event::Finished(finished) => {
                    let stdout = String::from_utf8_lossy(&stdout).into_owned();
                    return Ok(Ended { finished, cores, stdout });
                }
                action_event::Event::Failed(fault) => return Err(fault.into()),
                action_event::Event::Cancelled(_) => {
                    return Err(Trouble {
                        kind: fault::Kind::Cancelled,
                        reason: "Cancelled".to_owned(),
                        message: "the action was cancelled".to_owned(),
                    });
                }
            }
        }
        Err(Trouble::broken_stream())
    }

    /// Reads a file as a tar out of a sandbox.
    pub(crate) async fn get_tar(&self, id: &str, path: &str) -> Result<Vec<u8>, Trouble> {
        let request =
            GetFileRequest { trajectory_id: id.to_owned(), path: path.to_owned(), tar: true };
        let mut chunks = self.service.clone().get_file(request).await?.into_inner();
        let mut data = Vec::new();
        while let Some(chunk) = chunks.next().await {
            data.extend_from_slice(&chunk?.data);
        }
        Ok(data)
    }

    /// Unpacks a tar in a directory of a sandbox.
    pub(crate) async fn put_tar(
        &self,
        id: &str,
        directory: &str,
        tar: &[u8],
    ) -> Result<(), Trouble> {
        let target = FileTarget {
            trajectory_id: id.to_owned(),
            path: directory.to_owned(),
            tar: true,
            mode: 0,
        };
        let mut parts = vec![put_file_request::Part::Target(target)];
        parts.extend(
            tar.chunks(FILE_PIECE).map(|piece| put_file_request::Part::Data(piece.to_vec().into())),
        );
        let requests = parts.into_iter().map(|part| PutFileRequest { part: Some(part) });
        self.service.clone().put_file(futures::stream::iter(requests)).await?;
        Ok(())
    }

    /// What the queue holds at this moment.
    pub(crate) async fn stats(&self) -> Result<StatsResponse, Trouble> {
        Ok(self.service.clone().stats(StatsRequest {}).await?.into_inner())
    }
}
