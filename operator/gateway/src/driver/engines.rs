//! What the watchers of the engines see, told to the core.

use std::sync::Arc;

use rollwright_core::ids::WorkerId;
use rollwright_core::rollout::Event;
use rollwright_core::version::Version;
use tokio::sync::mpsc;

use super::Driver;
use crate::workers::{Change, WorkerEvent};

impl Driver {
    /// Runs until the watchers have ended.
    pub(crate) async fn observe(self: Arc<Self>, mut events: mpsc::Receiver<WorkerEvent>) {
        let mut joined = std::collections::HashSet::new();
        while let Some(WorkerEvent { worker, change }) = events.recv().await {
            match change {
                Change::Fresh { version } => {
                    if joined.insert(worker.clone()) {
                        self.join(&worker, version);
                    } else {
                        tracing::warn!(%worker, ?version, "the engine was started anew");
                        self.tell(Event::WorkerRestarted { worker, version });
                    }
                }
                // Before first contact there is nothing to route to.
                Change::Healthy if joined.contains(&worker) => {
                    tracing::info!(%worker, "the engine can serve");
                    self.tell(Event::WorkerHealthy(worker));
                }
                Change::Unhealthy { fault } if joined.contains(&worker) => {
                    tracing::warn!(%worker, %fault, "the engine cannot serve");
                    self.tell(Event::WorkerUnhealthy { worker, reason: fault.message });
                }
                Change::Unhealthy { fault } => {
                    tracing::warn!(%worker, %fault, "the engine does not answer yet");
                }
                Change::Healthy => {}
                Change::Load(load) => self.metrics.engine_load(&worker, &load),
            }
        }
    }

    fn join(&self, worker: &WorkerId, version: Option<Version>) {
        let Some(known) = self.config.workers.iter().find(|known| known.worker == *worker) else {
            return;
        };
        let spec = rollwright_core::router::WorkerSpec { version, ..known.spec.clone() };
        let endpoint = match self.config.endpoint(known) {
            Ok(endpoint) => endpoint,
            Err(error) => return tracing::error!(%error, "the worker is left out"),
        };
        tracing::info!(%worker, url = known.url, ?version, "the engine answers");
        if let Err(fault) = self.dispatch.join(endpoint, spec) {
            tracing::error!(%worker, %fault, "the worker is left out");
        }
    }
}
