//! `SGLang`: both engines get the request at once, and the KV goes from the one to the other.
//!
//! The prefill engine answers when the KV has gone. Until then, or until the decode engine
//! has made something of it, the client hears nothing, so that both can still be replaced.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt as _;
use rollwright_core::fault::Fault;
use tokio_util::task::AbortOnDropHandle;

use super::{Pair, broke};
use crate::dispatch::Stop;
use crate::engine::endpoint::{Bootstrap, Endpoint};
use crate::engine::handover;
use crate::fault::infrastructure;
use crate::proxy::Shard;
use crate::proxy::abort::AbortByName;
use crate::proxy::exchange::{Attempt, Lease, Outgoing, Payload, exchange, is_event_stream};
use crate::proxy::generate::error_within;
use crate::proxy::incoming::EngineBody;
use crate::proxy::relay::{Idle, SILENT, broke_off, silent};
use crate::proxy::upload::Kept;

/// How long a prefill may take to tell its own end, when the decode engine has failed.
const GRACE: Duration = Duration::from_secs(1);

/// How a prefill has ended.
// It lives for a moment; a box would cost more.
#[allow(clippy::large_enum_variant)]
enum Prefilled {
    /// The KV has gone.
    Done,
    /// The request is wrong: in the engine's own words.
    Refused(Response<EngineBody>, Lease),
    Failed(Fault),
}

/// A prefill on its way: dropped, it is aborted.
struct Prefill {
    /// The head of its reply is there.
    headed: Arc<AtomicBool>,
    // Dropped in this order: the connection is closed, then the engine is told by name.
    task: AbortOnDropHandle<Prefilled>,
    abort: Option<AbortByName>,
}

/// What happens next.
#[allow(clippy::large_enum_variant)]
enum Next {
    Prefill(Prefilled),
    Decode(Attempt),
    /// The decode engine has made something, so the KV is there.
    Begun,
    Stopped(Stop),
    Failed(Fault),
}

impl Pair<'_> {
    /// `None`: the request cannot be split.
    pub(super) async fn at_once(&self, at: &Bootstrap, kept: &Kept) -> Option<Attempt> {
        let body = kept.joined();
        let room = rand::random::<u64>() >> 1;
        let both = match self.made(handover::with_room(&body, at, room)?) {
            Ok(both) => both,
            Err(fault) => return Some(Attempt::Client(fault)),
        };
        let mut prefill = Some(self.start(both.clone(), handover::rid(&body)));
        let mut payload = Payload::Kept(both);
        let mut decode = pin!(self.decode(&mut payload));
        let mut reply: Option<(Response<EngineBody>, Lease)> = None;
        let limit = self.shard.limits().first_byte_timeout;
        let mut silence = Idle::new(limit);
        loop {
            let next = poll_fn(|context| {
                if let Some(prefill) = &mut prefill
                    && let Poll::Ready(ended) = prefill.poll(context)
                {
                    return Poll::Ready(Next::Prefill(ended));
                }
                let Some((response, _)) = &mut reply else {
                    return decode.as_mut().poll(context).map(Next::Decode);
                };
                if let Poll::Ready(first) = response.body_mut().poll_first(context) {
                    return Poll::Ready(match first {
                        Ok(first) => match first.and_then(error_within) {
                            Some(fault) => Next::Failed(fault),
                            None => Next::Begun,
                        },
                        Err(error) => Next::Failed(broke_off(&error)),
                    });
                }
                if let Poll::Ready(stop) = self.slot.poll_stop(context) {
                    return Poll::Ready(Next::Stopped(stop));
                }
                silence.poll(context).map(|()| Next::Failed(silent(limit)))
            });
            match next.await {
                Next::Prefill(Prefilled::Done) | Next::Begun => {
                    if let Some(prefill) = prefill.take() {
                        prefill.leave();
                    }
                    self.done();
                }
                Next::Prefill(Prefilled::Refused(response, lease)) => {
                    return Some(Attempt::Reply(response, lease));
                }
                Next::Prefill(Prefilled::Failed(fault)) => {
                    return Some(Attempt::PrefillFailed(fault));
                }
                Next::Decode(Attempt::Reply(response, lease)) => {
                    if response.status().is_server_error()
                        && let Some(prefill) = prefill.take()
                    {
                        let ended = Attempt::Reply(response, lease);
                        return Some(prefill.behind(ended).await);
                    }
                    let whole = !is_event_stream(response.headers());
                    if whole && response.status().is_success() {
                        if let Some(prefill) = prefill.take() {
                            prefill.leave();
                        }
                        self.done();
                    }
                    if whole || prefill.is_none() {
                        return Some(Attempt::Reply(response, lease));
                    }
                    reply = Some((response, lease));
                }
                Next::Decode(Attempt::Failed(fault)) | Next::Failed(fault) => {
                    let headed = reply.is_some();
                    return Some(match prefill.take() {
                        Some(prefill) if fault.reason == SILENT => prefill.silence(fault, headed),
                        Some(prefill) => prefill.behind(Attempt::Failed(fault)).await,
                        None => Attempt::Failed(fault),
                    });
                }
                Next::Decode(ended) => return Some(ended),
                Next::Stopped(stop) => return Some(Attempt::Stopped(stop)),
            }
            if prefill.is_none()
                && let Some((response, lease)) = reply.take()
            {
                return Some(Attempt::Reply(response, lease));
            }
        }
    }

    /// The prefill worker is free.
    fn done(&self) {
        self.shard.parts().metrics.prefilled.inc();
        self.slot.prefilled();
    }

    fn start(&self, body: Kept, rid: Option<String>) -> Prefill {
        let (shard, prefill) = (Arc::clone(self.shard), Arc::clone(self.prefill));
        let outgoing = Outgoing {
            method: self.outgoing.method.clone(),
            target: self.outgoing.target.clone(),
            headers: self.outgoing.headers.clone(),
        };
        let abort = rid.map(|rid| AbortByName::new(&shard, &prefill, rid));
        let headed = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&headed);
        let run = async move { run(&shard, &prefill, &outgoing, body, &heard).await };
        Prefill { headed, task: AbortOnDropHandle::new(tokio::spawn(run)), abort }
    }
}

impl Prefill {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Prefilled> {
        Pin::new(&mut self.task).poll(context).map(|ended| {
            ended.unwrap_or_else(|error| {
                let message = format!("the prefill has ended before its time: {error}");
                Prefilled::Failed(infrastructure("PrefillLost", message))
            })
        })
    }

    /// Whose fault it is that the decode engine has ended so: it is told of a lost KV before
    /// the prefill's own end is seen here.
    async fn behind(self, decode: Attempt) -> Attempt {
        match tokio::time::timeout(GRACE, self.task).await {
            Ok(Ok(Prefilled::Failed(fault))) => Attempt::PrefillFailed(fault),
            Ok(Ok(Prefilled::Refused(response, lease))) => Attempt::Reply(response, lease),
            Ok(Ok(Prefilled::Done) | Err(_)) | Err(_) => decode,
        }
    }

    /// Whose fault it is that the decode engine is silent while the KV has not gone: its own
    /// if it alone has not answered at all, else it waits for the prefill.
    fn silence(self, fault: Fault, decode_headed: bool) -> Attempt {
        if self.headed.load(Ordering::Relaxed) && !decode_headed {
            Attempt::Failed(fault)
        } else {
            Attempt::PrefillFailed(fault)
        }
    }

    /// It has done its part: the rest of its answer is read in its own time, so that the
    /// connection can be used again.
    fn leave(self) {
        drop(self.task.detach());
        if let Some(abort) = self.abort {
            abort.defuse();
        }
    }
}

/// Sends the request to the prefill engine, and reads its answer to the end.
async fn run(
    shard: &Arc<Shard>,
    prefill: &Arc<Endpoint>,
    outgoing: &Outgoing,
    body: Kept,
    headed: &AtomicBool,
) -> Prefilled {
    let mut payload = Payload::Kept(body);
    let (response, lease) = match exchange(shard, prefill, None, outgoing, &mut payload).await {
        Attempt::Reply(response, lease) => (response, lease),
        Attempt::Failed(fault) | Attempt::PrefillFailed(fault) | Attempt::Client(fault) => {
            return Prefilled::Failed(fault);
        }
        Attempt::Stopped(_) => {
            // Nobody can stop what has no slot.
            return Prefilled::Failed(infrastructure("Stopped", "the prefill was stopped"));
        }
    };
    headed.store(true, Ordering::Relaxed);
    if let Some(fault) = broke(response.status(), prefill) {
        return Prefilled::Failed(fault);
    }
    if !response.status().is_success() {
        return Prefilled::Refused(response, lease);
    }
    let mut reply = response.into_body();
    let limit = shard.limits().idle_timeout;
    loop {
        match tokio::time::timeout(limit, reply.frame()).await {
            Ok(Some(Ok(frame))) => {
                let error = frame.data_ref().and_then(error_within);
                if let Some(fault) = error {
                    return Prefilled::Failed(fault);
                }
            }
            Ok(Some(Err(error))) => return Prefilled::Failed(broke_off(&error)),
            Ok(None) => break,
            Err(_) => return Prefilled::Failed(silent(limit)),
        }
    }
    lease.give_back();
    Prefilled::Done
}
