//! Updates of the weights: the steps as calls of the engines.

use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::WorkerId;
use rollwright_core::rollout::Event;
use rollwright_core::version::Version;
use rollwright_core::weights::{self, Command, Source, Step};

use super::Driver;
use crate::engine::control;
use crate::events;
use crate::fault::infrastructure;

impl Driver {
    pub(super) async fn update(self: &Arc<Self>, command: Command) {
        match command {
            Command::Call { worker, call, step } => {
                let driver = Arc::clone(self);
                tokio::spawn(async move {
                    let result = driver.step(&worker, &step).await;
                    if let Err(fault) = &result {
                        tracing::warn!(%worker, ?step, %fault, "a step of a weight update failed");
                    }
                    let answered = weights::Event::Answered { worker, call, result };
                    driver.tell(Event::Weights(answered));
                });
            }
            Command::Begun { version, workers } => {
                // A trainer that moves the weights itself may write them from now on.
                let fleet = self.fleet();
                for worker in workers.iter().filter_map(|worker| fleet.get(worker)) {
                    worker.watch.updating(version);
                }
                drop(fleet);
                self.state().waiting.begun(version, &Ok(()));
            }
            Command::Committed(committed) => {
                let version = committed.version;
                for (worker, fault) in &committed.failed {
                    tracing::warn!(%worker, %fault, %version, "a worker is out of service after a commit");
                }
                self.metrics.committed(&committed);
                self.keep_buckets().await;
                let mut state = self.state();
                state.waiting.begun(version, &Ok(()));
                state.waiting.committed(version, &Ok(committed));
                drop(state);
                self.hub.publish(&events::Event::Version(version));
                self.changed();
            }
            Command::Aborted { version, fault } => {
                tracing::warn!(%version, %fault, "an update of the weights has ended without effect");
                for worker in self.view(|core| {
                    let workers = core.weights().workers();
                    let out = workers.filter(|worker| worker.state == weights::WorkerState::Out);
                    out.map(|worker| worker.id.clone()).collect::<Vec<_>>()
                }) {
                    tracing::warn!(%worker, "out of service, its weights unknown: commit a version, or start the engine anew");
                }
                self.puller.forget().await;
                self.keep_buckets().await;
                let mut state = self.state();
                state.waiting.begun(version, &Err(fault.clone()));
                state.waiting.committed(version, &Err(fault));
            }
            Command::Hold { .. }
            | Command::TakeBack { .. }
            | Command::SetVersion { .. }
            | Command::Reserve { .. }
            | Command::Release { .. }
            | Command::PinLost { .. } => {
                tracing::error!(?command, "a router's command came to the driver");
            }
        }
    }

    /// Buckets of versions that nobody can ask for any more are deleted.
    async fn keep_buckets(&self) {
        let keep = self.versions_in_use();
        if let Err(fault) = self.buckets.retain(&keep).await {
            tracing::warn!(%fault, "old buckets of weights are not deleted");
        }
    }

    /// The current version, the begun one, and those that evaluations pin.
    fn versions_in_use(&self) -> Vec<Version> {
        self.view(|core| {
            let weights = core.weights();
            let begun = weights.begun().map(|(version, _)| version);
            weights.pinned_versions().into_iter().chain([weights.current()]).chain(begun).collect()
        })
    }

    /// One call of an engine; `Some` version only from [`Step::Verify`].
    async fn step(&self, id: &WorkerId, step: &Step) -> Result<Option<Version>, Fault> {
        let known =
            self.fleet().get(id).map(|worker| (worker.control.clone(), Arc::clone(&worker.watch)));
        let (control, watch) = known
            .ok_or_else(|| infrastructure("WorkerUnknown", format!("worker `{id}` has left")))?;
        match step {
            Step::Pull { version } => {
                let pulled = self.puller.pull(*version, &self.versions_in_use()).await?;
                self.metrics.pulled(&pulled);
            }
            Step::Pause => control.pause(control::PauseMode::Abort).await?,
            Step::Update { version, source } => {
                watch.updating(*version);
                let source = self.engine_source(source, *version)?;
                let updated = control.update(&source, *version).await;
                watch.holds(updated.is_ok().then_some(*version));
                updated?;
            }
            Step::FlushCache => control.flush_cache().await?,
            Step::Verify => return control.version().await,
            Step::Resume => control.resume().await?,
        }
        Ok(None)
    }

    /// Where an engine of this machine finds the weights.
    fn engine_source(&self, source: &Source, version: Version) -> Result<control::Source, Fault> {
        match source {
            Source::Disk(path) => Ok(control::Source::Disk { path: path.to_string() }),
            Source::Store => {
                let path = self.config.pulled_dir().join(version.0.to_string());
                Ok(control::Source::Disk { path: path.display().to_string() })
            }
            Source::External => Ok(control::Source::External),
            Source::Launch => Err(infrastructure(
                "WeightsGone",
                "the engine has to be started anew with the model's own weights",
            )),
        }
    }
}
