//! Bodies of replies to clients.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

use super::relay::Relay;

/// Why a body broke off; the client's connection is closed, so that it sees that.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

/// The body of a reply.
pub(crate) struct Body(Kind);

enum Kind {
    /// What is left of it, in one piece.
    Whole(Option<Bytes>),
    /// An engine's bytes as they come.
    Relay(Box<Relay>),
    /// A recorded turn: an engine's bytes, read and perhaps rewritten.
    Pieces(Pieces),
    /// From `/rollout/v1`.
    Api(axum::body::Body),
}

impl Body {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    pub(crate) fn relay(relay: Relay) -> Self {
        Self(Kind::Relay(Box::new(relay)))
    }

    pub(crate) fn pieces(
        pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
    ) -> Self {
        Self(Kind::Pieces(Box::pin(pieces)))
    }

    pub(crate) fn api(body: axum::body::Body) -> Self {
        Self(Kind::Api(body))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Relay(relay) => relay.poll(context).map_ok(Frame::data),
            Kind::Pieces(pieces) => {
                let piece = ready!(pieces.as_mut().poll_next(context));
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
            }
            Kind::Api(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Api(body) => body.is_end_stream(),
            Kind::Relay(_) | Kind::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Relay(relay) => relay.size_hint(),
            Kind::Pieces(_) => SizeHint::default(),
            Kind::Api(body) => body.size_hint(),
        }
    }
}
