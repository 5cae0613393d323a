//! An engine's reply on its way to the client, as it comes: nothing is read ahead of the
//! client, so a slow one holds back its engine and not our memory.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, SizeHint};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::router::Usage;
use tokio::time::Sleep;

use super::body::BoxError;
use super::exchange::Lease;
use super::incoming::EngineBody;
use super::reply::error_json;
use crate::dispatch::Slot;

/// A limit on the time between two events, armed only while one is waited for.
#[derive(Debug)]
pub(crate) struct Idle {
    limit: Duration,
    last: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, last: Instant::now(), sleep: None }
    }

    pub(crate) fn touch(&mut self) {
        self.last = Instant::now();
    }

    /// Ready when nothing happened for too long.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline = (self.last + self.limit).into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        while sleep.as_mut().poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            // Something happened since it was armed.
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// Reason of the fault of an engine that went silent.
pub(crate) const SILENT: &str = "EngineSilent";

/// The fault of an engine that went silent.
pub(crate) fn silent(limit: Duration) -> Fault {
    let message = format!("the engine sent nothing for {} s", limit.as_secs());
    Fault::new(FaultKind::Timeout, SILENT, message)
}

/// The fault of an engine whose reply broke off.
pub(crate) fn broke_off(error: &(impl std::fmt::Display + ?Sized)) -> Fault {
    let message = format!("the engine's reply broke off: {error}");
    Fault::new(FaultKind::Infrastructure, "EngineBroke", message)
}

/// A reply being relayed.
pub(crate) struct Relay {
    /// `None` when it has ended.
    flow: Option<Flow>,
    idle: Idle,
    /// Server-sent events, in which a fault can be told.
    events: bool,
    /// The last bytes sent: a fault is told only between two events.
    tail: [u8; 4],
}

struct Flow {
    // Dropped in this order: the engine's connection is closed before its slot is free.
    body: EngineBody,
    lease: Lease,
    slot: Option<Slot>,
}

impl Relay {
    /// `slot` is `None` for what took none.
    pub(crate) fn new(
        body: EngineBody,
        lease: Lease,
        slot: Option<Slot>,
        events: bool,
        limit: Duration,
    ) -> Self {
        let flow = Some(Flow { body, lease, slot });
        Self { flow, idle: Idle::new(limit), events, tail: *b"\n\n\n\n" }
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            let Some(flow) = &mut self.flow else { return Poll::Ready(None) };
            match Pin::new(&mut flow.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.idle.touch();
                    // Trailers are dropped.
                    let Ok(piece) = frame.into_data() else { continue };
                    if piece.is_empty() {
                        continue;
                    }
                    let end = &piece[piece.len().saturating_sub(self.tail.len())..];
                    self.tail.rotate_left(end.len());
                    let kept = self.tail.len() - end.len();
                    self.tail[kept..].copy_from_slice(end);
                    return Poll::Ready(Some(Ok(piece)));
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(self.fail(broke_off(&error)));
                }
                Poll::Ready(None) => {
                    if let Some(Flow { lease, slot, .. }) = self.flow.take() {
                        lease.give_back();
                        if let Some(slot) = slot {
                            slot.done(Usage::default(), None);
                        }
                    }
                    return Poll::Ready(None);
                }
                Poll::Pending => {}
            }
            let stop = flow.slot.as_ref().is_some_and(|slot| slot.poll_stop(context).is_ready());
            if stop {
                let message = "the turn was taken back after its beginning had been sent: send the request again";
                let fault = Fault::new(FaultKind::Infrastructure, "TakenBack", message);
                return Poll::Ready(self.fail(fault));
            }
            let limit = self.idle.limit;
            return match self.idle.poll(context) {
                Poll::Ready(()) => Poll::Ready(self.fail(silent(limit))),
                Poll::Pending => Poll::Pending,
            };
        }
    }

    /// Ends the engine's request; tells the client where that can be told, else closes its
    /// connection.
    fn fail(&mut self, fault: Fault) -> Option<Result<Bytes, BoxError>> {
        let Flow { body, lease, slot } = self.flow.take()?;
        drop((body, lease));
        if let Some(slot) = slot {
            slot.failed(fault.clone());
        }
        if self.events && (self.tail.ends_with(b"\n\n") || self.tail == *b"\r\n\r\n") {
            return Some(Ok(error_event(&fault)));
        }
        Some(Err(fault.into()))
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.flow.as_ref().map_or_else(SizeHint::default, |flow| flow.body.size_hint())
    }
}

/// A fault as a server-sent event; the `openai` package raises it.
pub(crate) fn error_event(fault: &Fault) -> Bytes {
    let mut event = b"data: ".to_vec();
    event.extend(error_json(fault));
    event.extend(b"\n\n");
    event.into()
}
