//! What the queue says in one file transfer, between the node and the transfer's
//! task: never more than the window, however many pieces it comes in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

/// Bytes that a sender may have in flight beyond the credit it was given.
pub(super) const WINDOW: u64 = 1 << 20;

/// What came since it was last asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    /// Content into the sandbox.
    pub(super) data: Bytes,
    /// It was all of it.
    pub(super) last: bool,
    /// Bytes more that may be sent out of the sandbox.
    pub(super) credit: u64,
}

/// How the queue's side of a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It, or its stream, ended the transfer.
    Away,
    /// It sent more than its window.
    Exceeded,
}

#[derive(Debug)]
struct State {
    data: BytesMut,
    last: bool,
    credit: u64,
    /// Bytes that may still come.
    window: u64,
    ended: Option<Ended>,
}

/// The task's end.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Shared>);

/// The node's end; dropped, the transfer ends.
#[derive(Debug)]
pub(super) struct Sender(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ready: Notify,
}

/// Both ends of a new inbox: node --content and credit--> transfer.
pub(super) fn inbox() -> (Sender, Inbox) {
    let state =
        State { data: BytesMut::new(), last: false, credit: 0, window: WINDOW, ended: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), ready: Notify::new() });
    (Sender(Arc::clone(&shared)), Inbox(shared))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// Content for the sandbox. What exceeds the window ends the transfer.
    pub(super) fn data(&self, data: &[u8], last: bool) {
        let mut state = self.0.lock();
        if state.ended.is_none() {
            match state.window.checked_sub(data.len() as u64) {
                Some(left) if !state.last => {
                    state.window = left;
                    state.data.extend_from_slice(data);
                    state.last = last;
                }
                _ => {
                    state.data.clear();
                    state.ended = Some(Ended::Exceeded);
                }
            }
        }
        self.0.ready.notify_one();
    }

    /// So many bytes more may be sent out of the sandbox.
    pub(super) fn credit(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.credit = state.credit.saturating_add(bytes);
        self.0.ready.notify_one();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended.get_or_insert(Ended::Away);
        self.0.ready.notify_one();
    }
}

impl Inbox {
    /// What has come; waits where nothing has.
    pub(super) async fn next(&self) -> Result<Came, Ended> {
        loop {
            let ready = self.0.ready.notified();
            if let Some(came) = self.take() {
                return came;
            }
            ready.await;
        }
    }

    fn take(&self) -> Option<Result<Came, Ended>> {
        let mut state = self.0.lock();
        let credit = std::mem::take(&mut state.credit);
        let data = state.data.split().freeze();
        let last = state.last;
        if data.is_empty() && credit == 0 && !last {
            return state.ended.map(Err);
        }
        if state.ended == Some(Ended::Exceeded) {
            return Some(Err(Ended::Exceeded));
        }
        Some(Ok(Came { data, last, credit }))
    }

    /// The sender is told that so many bytes more may come.
    pub(super) fn grant(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.window = state.window.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn content_arrives_whole_and_in_order_within_the_window(
            steps in proptest::collection::vec((0usize..300_000, any::<bool>()), 1..12),
        ) {
            let (sender, inbox) = inbox();
            let (mut sent, mut got, mut window) = (Vec::new(), Vec::new(), WINDOW);
            let mut take = |window: &mut u64| {
                if let Some(Ok(came)) = inbox.next().now_or_never() {
                    got.extend_from_slice(&came.data);
                    inbox.grant(came.data.len() as u64);
                    *window += came.data.len() as u64;
                }
            };
            for (length, taken) in steps {
                let length = length.min(usize::try_from(window).unwrap());
                let piece = vec![sent.len() as u8; length];
                sender.data(&piece, false);
                window -= length as u64;
                sent.extend(piece);
                if taken {
                    take(&mut window);
                }
            }
            sender.data(&[], true);
            take(&mut window);
            prop_assert!(sent == got);
        }
    }

    #[test]
    fn more_than_the_window_ends_the_transfer() {
        let (sender, inbox) = inbox();
        sender.data(&vec![0; WINDOW as usize], false);
        sender.data(&[0], false);
        assert_eq!(inbox.next().now_or_never(), Some(Err(Ended::Exceeded)));
    }

    #[test]
    fn credit_adds_up_and_the_end_of_the_stream_is_the_end() {
        let (sender, inbox) = inbox();
        assert_eq!(inbox.next().now_or_never(), None);
        sender.credit(3);
        sender.credit(4);
        let came = Came { credit: 7, ..Came::default() };
        assert_eq!(inbox.next().now_or_never(), Some(Ok(came)));
        drop(sender);
        assert_eq!(inbox.next().now_or_never(), Some(Err(Ended::Away)));
    }
}
