//! Batches on their way to the trainer.

use std::sync::Arc;
use std::time::Duration;

use rollwright_core::buffer::{self, Taker};
use rollwright_core::fault::Fault;
use rollwright_core::rollout::Event;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Driver;
use crate::api::rollouts::{Batch, BatchGroup};

/// Somebody who waits for a batch; leaves when he is dropped.
struct Waiter {
    driver: Arc<Driver>,
    taker: Taker,
    gone: bool,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.gone {
            self.driver.state().waiting.takers.remove(&self.taker);
            self.driver.tell(Event::Leave(self.taker));
        }
    }
}

impl Driver {
    pub(super) async fn take(
        self: &Arc<Self>,
        groups: Option<usize>,
        wait: Duration,
    ) -> Result<Option<Batch>, Fault> {
        let taker = Taker(self.taker());
        let (batch_tx, batch) = oneshot::channel();
        self.state().waiting.takers.insert(taker, batch_tx);
        let mut waiter = Waiter { driver: Arc::clone(self), taker, gone: false };
        self.event(Event::Take { taker, groups })?;
        // A larger batch than the job's makes room for groups.
        self.changed();
        let answer = tokio::select! {
            answer = timeout(wait, batch) => answer,
            // Not "none in time": whoever asks again gets it of the next process.
            () = self.stopping.cancelled() => {
                return Err(crate::fault::infrastructure("Stopping", "the gateway is stopping"));
            }
        };
        let Ok(answer) = answer else { return Ok(None) };
        waiter.gone = true;
        // The sender is only dropped with the whole gateway.
        let Ok(batch) = answer else { return Ok(None) };
        self.read(batch?).await.map(Some)
    }

    pub(super) fn deliver(&self, batch: &buffer::Batch, takers: &[Taker]) {
        let mut state = self.state();
        for taker in takers {
            if let Some(answer) = state.waiting.takers.remove(taker) {
                // Whoever left gets it the next time.
                let _ = answer.send(Ok(batch.clone()));
            }
        }
    }

    pub(super) fn not_delivered(&self, takers: &[Taker], fault: &Fault) {
        let mut state = self.state();
        for taker in takers {
            if let Some(answer) = state.waiting.takers.remove(taker) {
                let _ = answer.send(Err(fault.clone()));
            }
        }
    }

    /// The batch with its records, which are read as they are sent.
    async fn read(&self, batch: buffer::Batch) -> Result<Batch, Fault> {
        let mut groups = Vec::with_capacity(batch.groups.len());
        let mut records = Vec::new();
        for group in batch.groups {
            let payload = self.store.payload(&group.group).await.map_err(Fault::from)?;
            let trajectories = group.trajectories.len();
            groups.push(BatchGroup { id: group.group, task: group.task, payload, trajectories });
            records.extend(group.trajectories.into_iter().map(|member| member.trajectory));
        }
        Ok(Batch {
            id: batch.id,
            version: batch.version,
            groups,
            waited: batch.waited,
            records: self.store.records(records),
        })
    }
}
