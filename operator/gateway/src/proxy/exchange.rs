//! One request to one engine, until the head of its reply.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use rollwright_core::fault::{Fault, FaultKind};

use super::incoming::EngineBody;
use super::pool::{Pool, Sender, connect};
use super::relay::{Idle, silent};
use super::upload::{Budget, Kept, Upload};
use super::{Limits, Shard};
use crate::dispatch::{Slot, Stop};
use crate::engine::endpoint::Endpoint;

/// Headers of one connection only (RFC 9110, 7.6.1), and those that are ours to set.
static DROPPED: [HeaderName; 10] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Takes out what belongs to the connection that it came on.
pub(crate) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    // `Connection` may name further ones.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != header::CONTENT_TYPE && *name != header::HOST)
        .collect();
    for name in DROPPED.iter().chain([&KEEP_ALIVE]).chain(&named) {
        headers.remove(name);
    }
}

/// What is asked of an engine, whichever it will be.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    /// Path and query, without the engine's base.
    pub(crate) target: String,
    /// Without those of [`drop_hop_by_hop`].
    pub(crate) headers: HeaderMap,
}

impl Outgoing {
    fn request(&self, endpoint: &Endpoint, body: Upload) -> Result<Request<Upload>, Fault> {
        let mut request = Request::new(body);
        let target = if endpoint.base.is_empty() {
            self.target.parse::<Uri>()
        } else {
            format!("{}{}", endpoint.base, self.target).parse()
        };
        *request.uri_mut() = target.map_err(|error| {
            Fault::new(FaultKind::User, "InvalidPath", format!("the path is no URI: {error}"))
        })?;
        *request.method_mut() = self.method.clone();
        let mut headers = self.headers.clone();
        headers.insert(header::HOST, endpoint.host.clone());
        if let Some(key) = &endpoint.authorization {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The body that goes with it.
pub(crate) enum Payload {
    /// Can be sent again.
    Kept(Kept),
    /// Can be sent once; `None` when it was begun.
    Streamed(Option<Upload>, Arc<OnceLock<Fault>>),
}

impl Payload {
    /// As it comes from the client.
    pub(crate) fn streamed(body: Incoming, limits: &Limits) -> Self {
        let fault = Arc::new(OnceLock::new());
        Self::Streamed(Some(Upload::streamed(body, limits, Arc::clone(&fault))), fault)
    }

    /// True when another engine can still be asked.
    pub(crate) fn whole(&self) -> bool {
        !matches!(self, Self::Streamed(None, _))
    }

    /// All of it, so that it can be read, changed and sent again.
    pub(crate) async fn keep(
        &mut self,
        limits: &Limits,
        budget: &Arc<Budget>,
    ) -> Result<Kept, Fault> {
        let kept = match self.take() {
            Some(upload) => upload.read(limits, budget).await?,
            None => return Err(passed_on()),
        };
        *self = Self::Kept(kept.clone());
        Ok(kept)
    }

    fn take(&mut self) -> Option<Upload> {
        match self {
            Self::Kept(kept) => Some(Upload::kept(kept)),
            Self::Streamed(upload, _) => upload.take(),
        }
    }

    fn restore(&mut self, unsent: Upload) {
        if let Self::Streamed(upload, _) = self {
            *upload = Some(unsent);
        }
    }

    /// Why the client's side of it ended.
    fn client_fault(&self) -> Option<Fault> {
        match self {
            Self::Kept(_) => None,
            Self::Streamed(_, fault) => fault.get().cloned(),
        }
    }
}

/// A connection in use; closed when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<Pool>,
    pub(crate) endpoint: Arc<Endpoint>,
    sender: Sender,
}

impl Lease {
    /// The reply was read to its end.
    pub(crate) fn give_back(self) {
        self.pool.give_back(&self.endpoint, self.sender);
    }
}

/// How an attempt went.
pub(crate) enum Attempt {
    /// The head of the reply is there.
    Reply(Response<EngineBody>, Lease),
    /// The core wants it back.
    Stopped(Stop),
    /// The engine failed.
    Failed(Fault),
    /// The engine failed that was to do the prefill for another one.
    PrefillFailed(Fault),
    /// The client failed.
    Client(Fault),
}

fn passed_on() -> Fault {
    let message = "the request's body had been passed on and cannot be sent again";
    Fault::new(FaultKind::Infrastructure, "EngineBroke", message)
}

/// What ends the wait for a reply.
// It lives for a moment; a box would cost more.
#[allow(clippy::large_enum_variant)]
enum Heard {
    Engine(Result<Response<Incoming>, TrySendError<Request<Upload>>>),
    Core(Stop),
    Nothing,
}

/// Sends a request and waits for the head of the reply. A connection that had been idle
/// and was closed by the engine before any byte of a reply is replaced by a new one, once.
pub(crate) async fn exchange(
    shard: &Shard,
    endpoint: &Arc<Endpoint>,
    slot: Option<&Slot>,
    outgoing: &Outgoing,
    payload: &mut Payload,
) -> Attempt {
    let limits = shard.limits();
    let mut idle = shard.pool.take(endpoint);
    loop {
        let reused = idle.is_some();
        let mut sender = match idle.take() {
            Some(sender) => sender,
            None => match Box::pin(connect(endpoint, limits)).await {
                Ok(sender) => sender,
                Err(fault) => return Attempt::Failed(fault),
            },
        };
        let Some(body) = payload.take() else {
            return Attempt::Failed(passed_on());
        };
        let request = match outgoing.request(endpoint, body) {
            Ok(request) => request,
            Err(fault) => return Attempt::Client(fault),
        };
        let mut silence = Idle::new(limits.first_byte_timeout);
        let mut reply = pin!(sender.try_send_request(request));
        let event = poll_fn(|context| {
            if let Poll::Ready(reply) = reply.as_mut().poll(context) {
                return Poll::Ready(Heard::Engine(reply));
            }
            if let Some(Poll::Ready(stop)) = slot.map(|slot| slot.poll_stop(context)) {
                return Poll::Ready(Heard::Core(stop));
            }
            silence.poll(context).map(|()| Heard::Nothing)
        })
        .await;
        let mut error = match event {
            Heard::Engine(Ok(response)) => {
                let pool = Arc::clone(&shard.pool);
                return Attempt::Reply(
                    response.map(EngineBody::from),
                    Lease { pool, endpoint: Arc::clone(endpoint), sender },
                );
            }
            Heard::Engine(Err(error)) => error,
            Heard::Core(stop) => return Attempt::Stopped(stop),
            Heard::Nothing => return Attempt::Failed(silent(limits.first_byte_timeout)),
        };
        if let Some(unsent) = error.take_message() {
            payload.restore(unsent.into_body());
        }
        if let Some(fault) = payload.client_fault() {
            return Attempt::Client(fault);
        }
        if !reused || !payload.whole() {
            let message =
                format!("worker `{}` gave no reply: {}", endpoint.worker, error.into_error());
            return Attempt::Failed(Fault::new(FaultKind::Infrastructure, "EngineBroke", message));
        }
    }
}

/// `Content-Length`, where it is known to be at most `most`.
pub(crate) fn short(response: &Response<EngineBody>, most: u64) -> bool {
    use http_body::Body as _;
    response.body().size_hint().exact().is_some_and(|length| length <= most)
}

/// True when the reply is a stream of server-sent events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    let event_stream = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    headers.get(header::CONTENT_TYPE).is_some_and(event_stream)
}
