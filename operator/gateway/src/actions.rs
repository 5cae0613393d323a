//! The gateway as a caller of the `ActionQueue`: it closes the sandbox of a trajectory that
//! has ended, and runs what scores one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::TrajectoryId;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::action_event::Event;
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::output::Stream as OutputStream;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::bearer::{Bearer, Credential};

const CONNECT: Duration = Duration::from_secs(5);
/// A connection on which nothing comes is asked whether it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long a call that the queue did not answer is tried again.
const PATIENCE: Duration = Duration::from_mins(2);
/// Back-off between tries: the first, doubled up to the last.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Releases in the background at once; beyond, a sandbox waits for its template's TTL.
const MAX_RELEASING: usize = 10_000;
/// Bytes of the answer of a reward service that is taken, at most.
const MOST: usize = 33 << 20;
/// Bytes kept of the end of standard output and of standard error.
const TAIL: usize = 64 << 10;

type Service = ActionServiceClient<InterceptedService<Channel, Bearer>>;

/// A caller of one queue. Cheap to clone; connects when it is first used.
#[derive(Clone)]
pub struct Actions {
    service: Service,
    job: Arc<str>,
    releasing: TaskTracker,
}

impl std::fmt::Debug for Actions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actions").field("job", &self.job).finish_non_exhaustive()
    }
}

/// What is given back when nobody waits for it any more.
#[derive(Debug)]
pub(crate) enum Release {
    /// A sandbox is closed.
    Sandbox(String),
    /// An action is cancelled.
    Action(String),
}

/// An action that its program ended.
#[derive(Debug, Default)]
pub struct Run {
    /// Exit code, signal, memory.
    pub finished: pb::Finished,
    /// The end of standard output, 64 KiB at most.
    pub stdout: Vec<u8>,
    /// The end of standard error, 64 KiB at most.
    pub stderr: Vec<u8>,
}

impl Actions {
    /// Of the queue behind a unix socket, for `job` in fair share.
    pub fn unix(socket: &Path, job: &str) -> Self {
        let socket = socket.to_owned();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
        });
        // The name is never looked up: the connector above decides where it goes.
        let endpoint = settled(Endpoint::from_static("http://queue.local"));
        Self::new(endpoint.connect_with_connector_lazy(connect), Bearer::None, job)
    }

    /// Of the queue at `url`, such as `http://queue.rollwright:7000`, for `job`.
    pub fn tcp(url: &str, credential: &Credential, job: &str) -> Result<Self, Fault> {
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| {
            let message = format!(
                "`{url}` is no queue's address: write for example \"http://queue.rollwright:7000\""
            );
            Fault::new(FaultKind::User, "InvalidQueueUrl", message)
        })?;
        Ok(Self::new(settled(endpoint).connect_lazy(), Bearer::new(credential)?, job))
    }

    fn new(channel: Channel, bearer: Bearer, job: &str) -> Self {
        let service = ActionServiceClient::with_interceptor(channel, bearer);
        Self { service, job: job.into(), releasing: TaskTracker::new() }
    }

    /// Makes a sandbox ready.
    pub async fn open(&self, trajectory: &str, template: &str) -> Result<(), Fault> {
        let request = pb::OpenTrajectoryRequest {
            trajectory_id: trajectory.to_owned(),
            job: self.job.to_string(),
            template: template.to_owned(),
            ..pb::OpenTrajectoryRequest::default()
        };
        self.patiently(|mut service| {
            let request = request.clone();
            async move { service.open_trajectory(request).await.map(drop) }
        })
        .await
    }

    /// Ends what a trajectory runs and removes its sandbox. One that was never opened is
    /// closed already.
    pub async fn close(&self, trajectory: &str) -> Result<(), Fault> {
        self.patiently(|mut service| {
            // Of any job: agents may have opened it without naming ours.
            let request = pb::CloseTrajectoryRequest {
                trajectory_id: trajectory.to_owned(),
                job: String::new(),
            };
            async move { service.close_trajectory(request).await.map(drop) }
        })
        .await
    }

    /// Cancels an action wherever it is; one that has ended is left as it is.
    pub async fn cancel(&self, action: &str) -> Result<(), Fault> {
        self.patiently(|mut service| {
            let request = pb::CancelRequest { action_id: action.to_owned(), job: String::new() };
            async move { service.cancel(request).await.map(drop) }
        })
        .await
    }

    /// [`Self::close`] in the background.
    pub fn close_later(&self, trajectory: &TrajectoryId) {
        self.later(Release::Sandbox(trajectory.to_string()));
    }

    /// Gives something back in the background.
    pub(crate) fn later(&self, release: Release) {
        if self.releasing.len() >= MAX_RELEASING {
            tracing::warn!(?release, "too much is given back at once: it stays until its TTL");
            return;
        }
        let actions = self.clone();
        self.releasing.spawn(async move {
            let released = match &release {
                Release::Sandbox(id) => actions.close(id).await,
                Release::Action(id) => actions.cancel(id).await,
            };
            if let Err(fault) = released {
                tracing::warn!(?release, %fault, "it could not be given back: it stays until its TTL");
            }
        });
    }

    /// Returns when nothing is being given back in the background: the end of a shutdown.
    pub async fn released(&self) {
        self.releasing.close();
        self.releasing.wait().await;
        self.releasing.reopen();
    }

    /// Runs an action to its end. Where the connection breaks, the same id is attached to
    /// again, so that it never runs twice.
    pub async fn run(&self, request: &pb::ExecuteRequest) -> Result<Run, Fault> {
        self.patiently(|service| follow(service, request.clone())).await
    }

    /// Calls a reward service on GPUs. Where the connection breaks, the same id is attached
    /// to again, so that nothing is called twice.
    pub(crate) async fn call(&self, mut call: pb::CallRequest) -> Result<pb::CallResponse, Fault> {
        call.job = self.job.to_string();
        self.patiently(|service| {
            let (mut service, call) = (service.max_decoding_message_size(MOST), call.clone());
            async move { service.call(call).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// A tar of `path` in the sandbox of `trajectory`.
    pub(crate) async fn get_tar(
        &self,
        trajectory: &str,
        path: &str,
    ) -> Result<Streaming<pb::FileChunk>, Fault> {
        let (trajectory_id, path) = (trajectory.to_owned(), path.to_owned());
        let request = pb::GetFileRequest { trajectory_id, path, tar: true };
        let chunks = self.service.clone().get_file(request).await;
        Ok(chunks.map_err(|status| fault_of(&status))?.into_inner())
    }

    /// Sends the parts of an upload. Dropping the future breaks it off.
    pub(crate) async fn put(
        &self,
        parts: impl Stream<Item = pb::PutFileRequest> + Send + 'static,
    ) -> Result<(), Fault> {
        let put = self.service.clone().put_file(parts).await;
        put.map(drop).map_err(|status| fault_of(&status))
    }

    /// Repeats an idempotent call that the queue did not answer, or refused for now.
    async fn patiently<T, C>(&self, call: impl Fn(Service) -> C) -> Result<T, Fault>
    where
        C: Future<Output = Result<T, Status>>,
    {
        let until = Instant::now() + PATIENCE;
        let mut wait = BACK_OFF.0;
        loop {
            let fault = match call(self.service.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => fault_of(&status),
            };
            let again = matches!(
                fault.reason.as_ref(),
                UNREACHABLE | DENIED | "QueueFull" | "QueueStopping"
            );
            let pause = fault.retry_after.unwrap_or(wait);
            if !again || Instant::now() + pause >= until {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(BACK_OFF.1);
        }
    }
}

/// Gives something back when it is dropped, so also when nobody waits any more.
pub(crate) struct Guard<'a> {
    actions: &'a Actions,
    release: Option<Release>,
}

impl<'a> Guard<'a> {
    /// Gives `release` back unless it is kept.
    pub(crate) fn new(actions: &'a Actions, release: Release) -> Self {
        Self { actions, release: Some(release) }
    }

    /// There is nothing to give back any more.
    pub(crate) fn keep(mut self) {
        self.release = None;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            self.actions.later(release);
        }
    }
}

fn settled(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}

/// The events of an action until its program has ended.
async fn follow(mut service: Service, request: pb::ExecuteRequest) -> Result<Run, Status> {
    let mut events = service.execute(request).await?.into_inner();
    let mut run = Run::default();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Output(output)) => {
                let to = match output.stream() {
                    OutputStream::Stderr => &mut run.stderr,
                    OutputStream::Stdout | OutputStream::Unspecified => &mut run.stdout,
                };
                keep_tail(to, &output.data);
            }
            Some(Event::Finished(finished)) => return Ok(Run { finished, ..run }),
            Some(Event::Failed(fault)) => return Err(carry(&fault)),
            Some(Event::Cancelled(_)) => {
                let message = "the action was cancelled".to_owned();
                let (kind, reason) = (Kind::Cancelled.into(), "ActionCancelled".to_owned());
                return Err(carry(&pb::Fault { kind, reason, message, retry_after: None }));
            }
            Some(Event::Queued(_) | Event::Started(_)) | None => {}
        }
    }
    Err(Status::unavailable("the events of the action ended before it did"))
}

/// Keeps the last [`TAIL`] bytes.
fn keep_tail(tail: &mut Vec<u8>, data: &[u8]) {
    let data = &data[data.len().saturating_sub(TAIL)..];
    let over = (tail.len() + data.len()).saturating_sub(TAIL);
    tail.drain(..over);
    tail.extend_from_slice(data);
}

/// Reason of a call that got no answer of the queue's own.
const UNREACHABLE: &str = "QueueUnreachable";
/// Reason of a call that the queue refused for this gateway's own credential: its token has
/// run out, or the queue does not know the newest key yet.
const DENIED: &str = "QueueDenied";
/// When such a call is tried again: a key takes minutes to be known everywhere.
const AGAIN: Duration = Duration::from_secs(5);
/// Metadata key of the fault beside a gRPC status.
const FAULT_METADATA: &str = "rollwright-fault-bin";

/// A fault as the queue would send it.
fn carry(fault: &pb::Fault) -> Status {
    let mut status = Status::unknown(fault.message.clone());
    let value = MetadataValue::from_bytes(&fault.encode_to_vec());
    status.metadata_mut().insert_bin(FAULT_METADATA, value);
    status
}

/// The queue's typed fault; without one it is the connection that failed.
pub(crate) fn fault_of(status: &Status) -> Fault {
    let value = status.metadata().get_bin(FAULT_METADATA).and_then(|value| value.to_bytes().ok());
    if let Some(fault) = value.and_then(|bytes| pb::Fault::decode(bytes).ok()) {
        if matches!(fault.reason.as_str(), "Unauthenticated" | "Forbidden") {
            // Nothing that a trajectory or its scoring did wrong.
            let message = format!("the queue refuses this gateway: {}", fault.message);
            // That it passes by itself keeps it from the count of a scoring's tries.
            let mut denied = Fault::new(FaultKind::Infrastructure, DENIED, message);
            denied.retry_after = Some(AGAIN);
            return denied;
        }
        let kind = match fault.kind() {
            Kind::User => FaultKind::User,
            Kind::Action => FaultKind::Action,
            Kind::Timeout => FaultKind::Timeout,
            Kind::Cancelled => FaultKind::Cancelled,
            Kind::Stale => FaultKind::Stale,
            Kind::Infrastructure | Kind::Unspecified => FaultKind::Infrastructure,
        };
        let retry_after = fault.retry_after.and_then(|after| after.try_into().ok());
        return Fault { kind, reason: fault.reason.into(), message: fault.message, retry_after };
    }
    let message = format!("the queue does not answer: {}", status.message());
    Fault::new(FaultKind::Infrastructure, UNREACHABLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_long_output_is_kept() {
        let mut tail = Vec::new();
        let all: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        for piece in all.chunks(70_001) {
            keep_tail(&mut tail, piece);
        }
        assert_eq!(tail, all[all.len() - TAIL..]);
        keep_tail(&mut tail, b"end");
        assert_eq!(tail[TAIL - 3..], *b"end");
    }

    #[test]
    fn faults_come_through_as_they_were() {
        let fault = pb::Fault {
            kind: Kind::Timeout.into(),
            reason: "Deadline".to_owned(),
            message: "too late".to_owned(),
            retry_after: Duration::from_secs(3).try_into().ok(),
        };
        let back = fault_of(&carry(&fault));
        assert_eq!((back.kind, back.reason.as_ref()), (FaultKind::Timeout, "Deadline"));
        assert_eq!(back.retry_after, Some(Duration::from_secs(3)));
        let back = fault_of(&Status::unavailable("refused"));
        assert_eq!((back.kind, back.reason.as_ref()), (FaultKind::Infrastructure, UNREACHABLE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_that_is_refused_is_tried_again() {
        let actions = Actions::unix(Path::new("/nonexistent"), "job");
        for reason in ["Unauthenticated", "Forbidden"] {
            let refusal = pb::Fault {
                kind: Kind::User.into(),
                reason: reason.to_owned(),
                message: "the signing key is not known".to_owned(),
                retry_after: None,
            };
            let fault = fault_of(&carry(&refusal));
            assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Infrastructure, DENIED));
            let calls = std::cell::Cell::new(0);
            let answer = actions.patiently(|_| {
                calls.set(calls.get() + 1);
                let first = calls.get() == 1;
                let refusal = carry(&refusal);
                async move { if first { Err(refusal) } else { Ok(()) } }
            });
            answer.await.unwrap();
            assert_eq!(calls.get(), 2, "{reason}");
        }
    }
}
