//! What the core has decided about one request, until its task reads it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use rollwright_core::fault::Fault;

use super::{Placement, Stop};

/// Whether and where a request is sent.
#[derive(Debug)]
pub(super) enum Answer {
    Placed(Placement),
    Refused(Fault),
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    letters: Mutex<Letters>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Letters {
    answer: Option<Answer>,
    stop: Option<Stop>,
    /// It was sent to a worker, and the core has not heard of its end.
    in_flight: bool,
}

impl Mailbox {
    /// The later answer counts: a refusal may overtake a placement that nobody has read.
    pub(super) fn answer(&self, answer: Answer) {
        let mut letters = self.letters();
        if matches!(answer, Answer::Placed(_)) {
            letters.in_flight = true;
            // It was for the attempt before.
            letters.stop = None;
        }
        letters.answer = Some(answer);
    }

    pub(super) fn stop(&self, stop: Stop) {
        self.letters().stop = Some(stop);
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// True once for each time that it was sent: its end is now being told.
    pub(super) fn land(&self) -> bool {
        std::mem::take(&mut self.letters().in_flight)
    }

    pub(super) fn poll_answer(&self, context: &mut Context<'_>) -> Poll<Answer> {
        if let Some(answer) = self.letters().answer.take() {
            return Poll::Ready(answer);
        }
        self.waker.register(context.waker());
        self.letters().answer.take().map_or(Poll::Pending, Poll::Ready)
    }

    pub(super) fn poll_stop(&self, context: &mut Context<'_>) -> Poll<Stop> {
        self.waker.register(context.waker());
        self.letters().stop.map_or(Poll::Pending, Poll::Ready)
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
