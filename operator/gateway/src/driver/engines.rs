//! What the watchers of the engines see, told to the core.

use std::sync::Arc;

use rollwright_core::rollout::Event;
use tokio::sync::mpsc;

use super::Driver;
use crate::workers::{Change, WorkerEvent};

impl Driver {
    /// Runs until the watchers have ended.
    pub(crate) async fn observe(self: Arc<Self>, mut events: mpsc::Receiver<WorkerEvent>) {
        while let Some(event) = events.recv().await {
            self.saw(event);
        }
    }

    fn saw(&self, event: WorkerEvent) {
        let mut fleet = self.fleet();
        let Some(member) = fleet.seen(&event) else { return };
        let joined = member.joined();
        let WorkerEvent { worker, change, .. } = event;
        match change {
            Change::Fresh { version } => {
                if let Err(fault) = member.fresh(version, &self.config, &self.dispatch) {
                    tracing::error!(%worker, %fault, "the worker is left out");
                }
            }
            // Before first contact there is nothing to route to.
            Change::Healthy if joined => {
                tracing::info!(%worker, "the engine can serve");
                self.tell(Event::WorkerHealthy(worker));
            }
            Change::Unhealthy { fault } if joined => {
                tracing::warn!(%worker, %fault, "the engine cannot serve");
                self.tell(Event::WorkerUnhealthy { worker, reason: fault.message });
            }
            Change::Unhealthy { fault } => {
                tracing::warn!(%worker, %fault, "the engine does not answer yet");
            }
            Change::Healthy => {}
            Change::Load(load) => self.metrics.engine_load(&worker, member.index(), &load),
        }
    }
}
