//! `ActionService`: every call is one input of the scheduler.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt as _};
use rollwright_core::fault::Fault;
use rollwright_core::ids::{ActionId, TrajectoryId};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::action_service_server::ActionService;
use tonic::{Request, Response, Status, Streaming};

use crate::convert;
use crate::fault::{status, stopping, user};
use crate::mailbox::Reader;
use crate::scheduler::{Handle, Input, Subscriber};
use rollwright_auth::Caller;

type Answer<T> = Result<Response<T>, Status>;
type Out<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service.
pub(crate) struct ActionApi {
    handle: Handle,
}

impl ActionApi {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

/// Put there by the authentication in front of every route.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| status(&user("Unauthenticated", "the caller is not known")))
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn refused(fault: Fault) -> Status {
    status(&fault)
}

/// The batches of a mailbox as a stream.
fn batches(
    reader: Reader<pb::ActionEvent>,
) -> impl Stream<Item = Result<Vec<pb::ActionEvent>, Status>> {
    stream::unfold(reader, |reader| async move {
        let read = reader.read().await?;
        Some((read.map_err(refused), reader))
    })
}

#[tonic::async_trait]
impl ActionService for ActionApi {
    async fn open_trajectory(
        &self,
        request: Request<pb::OpenTrajectoryRequest>,
    ) -> Answer<pb::OpenTrajectoryResponse> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let opened = self.handle.call(|reply| Input::Open { caller, request, reply }).await;
        opened.map(Response::new).map_err(refused)
    }

    async fn close_trajectory(
        &self,
        request: Request<pb::CloseTrajectoryRequest>,
    ) -> Answer<pb::CloseTrajectoryResponse> {
        let caller = caller(&request)?;
        let pb::CloseTrajectoryRequest { trajectory_id, job } = request.into_inner();
        let trajectory =
            TrajectoryId::new(&trajectory_id).map_err(|error| refused(convert::bad_id(error)))?;
        let closed =
            self.handle.call(|reply| Input::Close { caller, job, trajectory, reply }).await;
        closed.map(|()| Response::new(pb::CloseTrajectoryResponse {})).map_err(refused)
    }

    type ExecuteStream = Out<pb::ActionEvent>;

    async fn execute(&self, request: Request<pb::ExecuteRequest>) -> Answer<Self::ExecuteStream> {
        let caller = caller(&request)?;
        let reader = self.handle.execute(caller, request.into_inner()).await.map_err(refused)?;
        // The first event decides whether the call itself is refused.
        let first = reader.read().await.unwrap_or_else(|| Err(stopping())).map_err(refused)?;
        let events = stream::iter([Ok(first)]).chain(batches(reader)).flat_map(|batch| {
            let (events, error) = match batch {
                Ok(events) => (events, None),
                Err(status) => (Vec::new(), Some(status)),
            };
            stream::iter(events.into_iter().map(Ok).chain(error.map(Err)))
        });
        Ok(Response::new(Box::pin(events)))
    }

    type ExecuteManyStream = Out<pb::ActionEventBatch>;

    async fn execute_many(
        &self,
        request: Request<Streaming<pb::ExecuteBatch>>,
    ) -> Answer<Self::ExecuteManyStream> {
        let caller = caller(&request)?;
        let mut requests = request.into_inner();
        let mailbox = self.handle.mailbox();
        let read = Arc::clone(&mailbox);
        let to = Subscriber { mailbox, single: false };
        let handle = self.handle.clone();
        // Ends with the caller's stream, or when nobody reads the events any more.
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = requests.message() => message,
                    () = handle.stopped.cancelled() => return to.mailbox.close(Some(stopping())),
                };
                match message {
                    Ok(Some(batch)) if !to.mailbox.is_closed() => {
                        to.mailbox.expect(batch.requests.len());
                        let (caller, requests) = (caller.clone(), batch.requests);
                        let input = Input::Execute { caller, requests, to: to.clone() };
                        if let Err(fault) = handle.send(input).await {
                            return to.mailbox.close(Some(fault));
                        }
                    }
                    Ok(Some(_)) => return,
                    Ok(None) => return to.mailbox.complete(),
                    Err(status) => {
                        tracing::debug!(%status, "a caller's stream broke");
                        return to.mailbox.close(None);
                    }
                }
            }
        });
        let reader = Reader(read);
        let events =
            batches(reader).map(|batch| batch.map(|events| pb::ActionEventBatch { events }));
        Ok(Response::new(Box::pin(events)))
    }

    async fn call(&self, request: Request<pb::CallRequest>) -> Answer<pb::CallResponse> {
        let caller = caller(&request)?;
        let answered = self.handle.gpu.call(caller, request.into_inner()).await;
        answered.map(Response::new).map_err(refused)
    }

    async fn cancel(&self, request: Request<pb::CancelRequest>) -> Answer<pb::CancelResponse> {
        let caller = caller(&request)?;
        let pb::CancelRequest { action_id, job } = request.into_inner();
        let action = ActionId::new(&action_id).map_err(|error| refused(convert::bad_id(error)))?;
        let cancelled = self.handle.cancel(caller, job, action).await.map_err(refused)?;
        Ok(Response::new(pb::CancelResponse { cancelled }))
    }

    async fn put_file(
        &self,
        request: Request<Streaming<pb::PutFileRequest>>,
    ) -> Answer<pb::PutFileResponse> {
        use pb::put_file_request::Part;
        let caller = caller(&request)?;
        let mut parts = request.into_inner();
        let first = parts.message().await?.and_then(|message| message.part);
        let Some(Part::Target(target)) = first else {
            return Err(refused(user("InvalidUpload", "the first message must carry target")));
        };
        let mut transfer = self.handle.transfer(caller, target, true).await.map_err(refused)?;
        let mut bytes = 0;
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Part::Data(data)) => {
                    bytes += data.len() as u64;
                    transfer.put(data).await.map_err(refused)?;
                }
                Some(Part::Target(_)) | None => {
                    let message = "messages after the first must carry data";
                    return Err(refused(user("InvalidUpload", message)));
                }
            }
        }
        transfer.finish().await.map_err(refused)?;
        Ok(Response::new(pb::PutFileResponse { bytes }))
    }

    type GetFileStream = Out<pb::FileChunk>;

    async fn get_file(&self, request: Request<pb::GetFileRequest>) -> Answer<Self::GetFileStream> {
        let caller = caller(&request)?;
        let pb::GetFileRequest { trajectory_id, path, tar } = request.into_inner();
        let target = pb::FileTarget { trajectory_id, path, tar, mode: 0 };
        let mut transfer = self.handle.transfer(caller, target, false).await.map_err(refused)?;
        // The first piece decides whether the call itself is refused.
        let first = transfer.get().await.map_err(refused)?;
        let chunks = stream::iter(first.map(Ok)).chain(transfer.pieces());
        let chunks = chunks.map(|data| data.map(|data| pb::FileChunk { data }).map_err(refused));
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn acquire(&self, request: Request<pb::AcquireRequest>) -> Answer<pb::AcquireResponse> {
        let caller = caller(&request)?;
        let acquired = self.handle.acquire(caller, request.into_inner()).await;
        acquired.map(Response::new).map_err(refused)
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Answer<pb::ReleaseResponse> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let released = self.handle.call(|reply| Input::Release { caller, request, reply }).await;
        released.map(|()| Response::new(pb::ReleaseResponse {})).map_err(refused)
    }

    async fn stats(&self, request: Request<pb::StatsRequest>) -> Answer<pb::StatsResponse> {
        let caller = caller(&request)?;
        self.handle.stats(Some(caller)).await.map(Response::new).map_err(refused)
    }
}
