//! Callers that wait for what the core has not decided yet.

use std::collections::HashMap;

use rollwright_core::buffer::{self, Taker};
use rollwright_core::fault::Fault;
use rollwright_core::version::{BatchId, Version};
use rollwright_core::weights::Committed;
use tokio::sync::oneshot;

/// An answer to come.
type Answer<T> = oneshot::Sender<Result<T, Fault>>;

/// Who waits. Bounded by the callers' connections; whoever leaves is swept with the next
/// answer of his kind.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) takers: HashMap<Taker, Answer<buffer::Batch>>,
    acks: HashMap<BatchId, Vec<Answer<()>>>,
    begins: HashMap<Version, Vec<Answer<()>>>,
    commits: HashMap<Version, Vec<Answer<Committed>>>,
}

impl Waiting {
    pub(super) fn for_ack(&mut self, batch: BatchId) -> oneshot::Receiver<Result<(), Fault>> {
        wait(self.acks.entry(batch).or_default())
    }

    pub(super) fn acknowledged(&mut self, batch: BatchId, result: &Result<(), Fault>) {
        answer(self.acks.remove(&batch), result);
    }

    pub(super) fn for_begin(&mut self, version: Version) -> oneshot::Receiver<Result<(), Fault>> {
        wait(self.begins.entry(version).or_default())
    }

    pub(super) fn begun(&mut self, version: Version, result: &Result<(), Fault>) {
        answer(self.begins.remove(&version), result);
    }

    pub(super) fn for_commit(
        &mut self,
        version: Version,
    ) -> oneshot::Receiver<Result<Committed, Fault>> {
        wait(self.commits.entry(version).or_default())
    }

    pub(super) fn committed(&mut self, version: Version, result: &Result<Committed, Fault>) {
        answer(self.commits.remove(&version), result);
    }
}

fn wait<T>(answers: &mut Vec<Answer<T>>) -> oneshot::Receiver<Result<T, Fault>> {
    answers.retain(|answer| !answer.is_closed());
    let (answer_tx, answer) = oneshot::channel();
    answers.push(answer_tx);
    answer
}

fn answer<T: Clone>(waiting: Option<Vec<Answer<T>>>, result: &Result<T, Fault>) {
    for answer in waiting.into_iter().flatten() {
        // Whoever left does not mind.
        let _ = answer.send(result.clone());
    }
}
