//! An engine's reply on its way in.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// The body of an engine's reply, of which a first piece may have been looked at.
pub(crate) struct EngineBody {
    first: Option<Bytes>,
    rest: Incoming,
}

impl EngineBody {
    /// Waits for the first piece and shows it; it still comes first. `None` when there is
    /// none.
    pub(crate) fn poll_first(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<&Bytes>, hyper::Error>> {
        while self.first.is_none() {
            match ready!(Pin::new(&mut self.rest).poll_frame(context)).transpose()? {
                None => break,
                Some(frame) => self.first = frame.into_data().ok(),
            }
        }
        Poll::Ready(Ok(self.first.as_ref()))
    }
}

impl From<Incoming> for EngineBody {
    fn from(rest: Incoming) -> Self {
        Self { first: None, rest }
    }
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (first, rest) =
            (self.first.as_ref().map_or(0, Bytes::len) as u64, self.rest.size_hint());
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower() + first);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + first);
        }
        hint
    }
}
