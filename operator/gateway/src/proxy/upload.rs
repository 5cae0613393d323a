//! Bodies of requests: taken in from the client, and sent to engines.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use rollwright_core::fault::{Fault, FaultKind};

use super::Limits;
use super::body::BoxError;

/// A body that is here as a whole, in the pieces in which it came. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    pieces: Vec<Bytes>,
    length: usize,
    /// Its share of the memory for large bodies.
    _share: Option<Arc<Share>>,
}

impl Kept {
    /// In one piece.
    pub(crate) fn joined(&self) -> Bytes {
        match self.pieces.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut joined = BytesMut::with_capacity(self.length);
                for piece in many {
                    joined.extend_from_slice(piece);
                }
                joined.freeze()
            }
        }
    }
}

impl From<Bytes> for Kept {
    fn from(bytes: Bytes) -> Self {
        Self { length: bytes.len(), pieces: vec![bytes], _share: None }
    }
}

/// The memory that large bodies, which must be read as a whole, may take together.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Result<Share, Fault> {
        let mut left = self.left.load(Ordering::Relaxed);
        loop {
            let Some(rest) = left.checked_sub(bytes) else {
                let message = "too many large requests at once: try again, or name the trajectory in a header, so that the body need not be read here";
                let mut fault = Fault::new(FaultKind::Infrastructure, "Overloaded", message);
                fault.retry_after = Some(Duration::from_secs(1));
                return Err(fault);
            };
            let order = Ordering::Relaxed;
            match self.left.compare_exchange_weak(left, rest, order, order) {
                Ok(_) => return Ok(Share { budget: Arc::clone(self), bytes }),
                Err(now) => left = now,
            }
        }
    }
}

#[derive(Debug)]
struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

fn too_large(limits: &Limits) -> Fault {
    let message = format!("the body is longer than {} bytes", limits.max_body);
    Fault::new(FaultKind::User, "BodyTooLarge", message)
}

fn broken(error: &hyper::Error) -> Fault {
    Fault::new(FaultKind::User, "BodyBroken", format!("the body ended too early: {error}"))
}

fn timed_out(limit: Duration) -> Fault {
    let message = format!("the body did not arrive within {} s", limit.as_secs());
    Fault::new(FaultKind::User, "BodyTimeout", message)
}

/// Refuses at once what says that it is too long.
pub(crate) fn check_length(body: &Incoming, limits: &Limits) -> Result<(), Fault> {
    if body.size_hint().lower() > limits.max_body as u64 {
        return Err(too_large(limits));
    }
    Ok(())
}

/// Reads a body to its end.
pub(crate) async fn read(
    mut body: Incoming,
    limits: &Limits,
    budget: &Arc<Budget>,
) -> Result<Kept, Fault> {
    check_length(&body, limits)?;
    let (mut pieces, mut length) = (Vec::new(), 0);
    let mut share: Option<Share> = None;
    let mut deadline = None;
    loop {
        let frame = poll_fn(|context| {
            match Pin::new(&mut body).poll_frame(context) {
                Poll::Ready(frame) => return Poll::Ready(Ok(frame)),
                Poll::Pending => {}
            }
            let sleep =
                deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limits.body_timeout)));
            sleep.as_mut().poll(context).map(|()| Err(timed_out(limits.body_timeout)))
        })
        .await?;
        let Some(frame) = frame.transpose().map_err(|error| broken(&error))? else { break };
        let Ok(piece) = frame.into_data() else { continue };
        length += piece.len();
        if length > limits.max_body {
            return Err(too_large(limits));
        }
        if length > limits.max_kept && share.is_none() {
            // What a chunked body will grow to is not known: count its most.
            let upper = body.size_hint().upper().map_or(limits.max_body, |left| left as usize);
            share = Some(budget.take((length + upper).min(limits.max_body))?);
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
    }
    Ok(Kept { pieces, length, _share: share.map(Arc::new) })
}

/// A body of our own making, in the memory that large bodies may take.
pub(crate) fn made(body: Bytes, limits: &Limits, budget: &Arc<Budget>) -> Result<Kept, Fault> {
    let share = (body.len() > limits.max_kept).then(|| budget.take(body.len())).transpose()?;
    Ok(Kept { _share: share.map(Arc::new), ..Kept::from(body) })
}

/// A body on its way to an engine.
pub(crate) enum Upload {
    /// A kept body.
    Kept {
        /// All of it.
        kept: Kept,
        /// The piece that comes next.
        next: usize,
    },
    /// As it comes from the client.
    Streamed(Box<Streamed>),
}

/// A long body that nobody here has to read.
pub(crate) struct Streamed {
    body: Incoming,
    taken: usize,
    max: usize,
    deadline: Pin<Box<tokio::time::Sleep>>,
    /// Why the client's side ended it.
    fault: Arc<std::sync::OnceLock<Fault>>,
    limits: Limits,
}

impl Upload {
    /// All of it, which is read now where it still comes from the client.
    pub(crate) async fn read(self, limits: &Limits, budget: &Arc<Budget>) -> Result<Kept, Fault> {
        match self {
            Self::Kept { kept, .. } => Ok(kept),
            Self::Streamed(streamed) => read(streamed.body, limits, budget).await,
        }
    }

    pub(crate) fn kept(kept: &Kept) -> Self {
        Self::Kept { kept: kept.clone(), next: 0 }
    }

    /// Where the client's side ends it, `fault` says why.
    pub(crate) fn streamed(
        body: Incoming,
        limits: &Limits,
        fault: Arc<std::sync::OnceLock<Fault>>,
    ) -> Self {
        Self::Streamed(Box::new(Streamed {
            body,
            taken: 0,
            max: limits.max_body,
            deadline: Box::pin(tokio::time::sleep(limits.body_timeout)),
            fault,
            limits: limits.clone(),
        }))
    }
}

impl Streamed {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                let limit = self.limits.body_timeout;
                return self.deadline.as_mut().poll(context).map(|()| Some(Err(timed_out(limit))));
            };
            return Poll::Ready(match frame {
                None => None,
                Some(Err(error)) => Some(Err(broken(&error))),
                Some(Ok(frame)) => {
                    let Some(piece) = frame.data_ref() else { continue };
                    self.taken += piece.len();
                    if self.taken > self.max {
                        Some(Err(too_large(&self.limits)))
                    } else {
                        Some(Ok(frame))
                    }
                }
            });
        }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Kept { kept, next } => {
                let piece = kept.pieces.get(*next).cloned();
                *next += 1;
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Streamed(streamed) => streamed.poll(context).map(|frame| {
                frame.map(|frame| {
                    frame.map_err(|fault| {
                        let _ = streamed.fault.set(fault.clone());
                        BoxError::from(fault)
                    })
                })
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Kept { kept, next } => *next >= kept.pieces.len(),
            Self::Streamed(streamed) => streamed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Kept { kept, .. } => SizeHint::with_exact(kept.length as u64),
            Self::Streamed(streamed) => streamed.body.size_hint(),
        }
    }
}
