//! Callers that wait for what the core has not decided yet.

use std::collections::HashMap;

use rollwright_core::buffer::{self, Taker};
use rollwright_core::fault::Fault;
use rollwright_core::ids::TrajectoryId;
use rollwright_core::version::Version;
use rollwright_core::weights::Committed;
use tokio::sync::oneshot;

/// An answer to come.
type Answer<T> = oneshot::Sender<Result<T, Fault>>;

/// Who waits. Bounded by the callers' connections; whoever leaves is swept with the next
/// answer of his kind.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) takers: HashMap<Taker, Answer<buffer::Batch>>,
    keeps: HashMap<TrajectoryId, Vec<oneshot::Sender<()>>>,
    begins: HashMap<Version, Vec<Answer<()>>>,
    commits: HashMap<Version, Vec<Answer<Committed>>>,
}

impl Waiting {
    pub(super) fn for_kept(&mut self, trajectory: TrajectoryId) -> oneshot::Receiver<()> {
        let (answer_tx, answer) = oneshot::channel();
        self.keeps.entry(trajectory).or_default().push(answer_tx);
        answer
    }

    pub(super) fn kept(&mut self, trajectory: &TrajectoryId) {
        for answer in self.keeps.remove(trajectory).into_iter().flatten() {
            // Whoever left does not mind.
            let _ = answer.send(());
        }
    }

    pub(super) fn for_begin(&mut self, version: Version) -> oneshot::Receiver<Result<(), Fault>> {
        wait(&mut self.begins, version)
    }

    pub(super) fn begun(&mut self, version: Version, result: &Result<(), Fault>) {
        answer(self.begins.remove(&version), result);
    }

    pub(super) fn for_commit(
        &mut self,
        version: Version,
    ) -> oneshot::Receiver<Result<Committed, Fault>> {
        wait(&mut self.commits, version)
    }

    pub(super) fn committed(&mut self, version: Version, result: &Result<Committed, Fault>) {
        answer(self.commits.remove(&version), result);
    }
}

fn wait<T>(
    waiting: &mut HashMap<Version, Vec<Answer<T>>>,
    version: Version,
) -> oneshot::Receiver<Result<T, Fault>> {
    // Those that were refused or have left.
    waiting.retain(|_, answers| {
        answers.retain(|answer| !answer.is_closed());
        !answers.is_empty()
    });
    let (answer_tx, answer) = oneshot::channel();
    waiting.entry(version).or_default().push(answer_tx);
    answer
}

fn answer<T: Clone>(waiting: Option<Vec<Answer<T>>>, result: &Result<T, Fault>) {
    for answer in waiting.into_iter().flatten() {
        // Whoever left does not mind.
        let _ = answer.send(result.clone());
    }
}
