//! A request's hold on a worker's slot.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use rollwright_core::fault::Fault;
use rollwright_core::rollout::Event;
use rollwright_core::router::{Outcome, Usage};
use rollwright_core::tokens::Finish;
use rollwright_core::version::{RequestId, Version};

use super::mailbox::{Answer, Mailbox};
use super::{Dispatch, Placement};

/// Reason of the fault of an engine that takes no connection.
pub(crate) const UNREACHABLE: &str = "EngineUnreachable";

/// An order to end a request on its worker; to be answered by [`Slot::back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// What was generated is dropped: when it is sent again, it starts again.
    pub restart: bool,
}

/// A place at a worker. Dropping it withdraws the request.
#[derive(Debug)]
pub struct Slot {
    held: Held,
    placement: Placement,
}

/// The part that exists while it waits, too.
#[derive(Debug)]
pub(super) struct Held {
    dispatch: Arc<Dispatch>,
    request: RequestId,
    mailbox: Arc<Mailbox>,
    ended: bool,
}

impl Slot {
    /// The number of the request.
    pub fn request(&self) -> RequestId {
        self.held.request
    }

    /// Where it was sent.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Its priority: higher is served first.
    pub fn priority(&self) -> i64 {
        self.placement.priority
    }

    /// Ready when the core wants it back.
    pub fn poll_stop(&self, context: &mut Context<'_>) -> Poll<Stop> {
        self.held.mailbox.poll_stop(context)
    }

    /// The prompt, as the engine sees it. Refused when it does not extend the trajectory's
    /// token log: then the request must be ended as failed.
    pub fn prompted(&self, prompt: Vec<u32>) -> Result<(), Fault> {
        self.held.dispatch.event(Event::Prompted { request: self.held.request, prompt })
    }

    /// Tokens that were generated; `said` is the version that the engine names, if it does.
    pub fn generated(
        &self,
        ids: Vec<u32>,
        logprobs: Vec<f32>,
        said: Option<Version>,
    ) -> Result<(), Fault> {
        let request = self.held.request;
        self.held.dispatch.event(Event::Generated { request, ids, logprobs, said })
    }

    /// What was generated is dropped: the turn starts again from its prompt.
    pub fn restarted(&self) -> Result<(), Fault> {
        self.held.dispatch.event(Event::Restarted(self.held.request))
    }

    /// The prefill worker has done its part: its slot is free.
    pub fn prefilled(&self) {
        if let Err(fault) = self.held.dispatch.event(Event::Prefilled(self.held.request)) {
            tracing::error!(%fault, request = %self.held.request, "the core refused a prefill's end");
        }
    }

    /// It was generated.
    pub fn done(mut self, usage: Usage, finish: Option<Finish>) {
        self.held.finish(Outcome::Done(usage), finish);
    }

    /// It failed for good: its client is told.
    pub fn failed(mut self, fault: Fault) {
        self.held.finish(Outcome::Failed { fault, resumable: false, prefill: false }, None);
    }

    /// It failed here and may be sent again: waits for the next place. `prefill`: by the
    /// prefill worker of the pair.
    pub async fn retry(self, fault: Fault, prefill: bool) -> Result<Self, Fault> {
        let outcome = if fault.reason == UNREACHABLE {
            Outcome::Unreached { fault, prefill }
        } else {
            Outcome::Failed { fault, resumable: true, prefill }
        };
        self.again(outcome).await
    }

    /// It ended before its time because the core or the engine wanted so: waits for the
    /// next place, first in line.
    pub async fn back(self) -> Result<Self, Fault> {
        self.again(Outcome::Back).await
    }

    async fn again(self, outcome: Outcome) -> Result<Self, Fault> {
        self.held.mailbox.land();
        self.held.dispatch.end(self.held.request, outcome, None, false);
        self.held.wait().await
    }
}

impl Held {
    pub(super) fn new(dispatch: Arc<Dispatch>, request: RequestId, mailbox: Arc<Mailbox>) -> Self {
        Self { dispatch, request, mailbox, ended: false }
    }

    pub(super) async fn wait(mut self) -> Result<Slot, Fault> {
        match poll_fn(|context| self.mailbox.poll_answer(context)).await {
            Answer::Placed(placement) => Ok(Slot { held: self, placement }),
            Answer::Refused(fault) => {
                self.leave();
                Err(fault)
            }
        }
    }

    fn finish(&mut self, outcome: Outcome, finish: Option<Finish>) {
        self.ended = true;
        self.mailbox.land();
        self.dispatch.end(self.request, outcome, finish, true);
    }

    fn leave(&mut self) {
        self.ended = true;
        self.dispatch.withdraw(self.request);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.ended {
            self.leave();
        }
    }
}
