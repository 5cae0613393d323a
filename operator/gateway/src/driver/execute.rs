//! The driver's task: commands in their order. What must be on disk before anything that
//! follows is waited for; all else goes its own way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollwright_core::buffer::SettledGroup;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::rollout::{Command, Event};
use rollwright_core::tokens::TokenLog;
use rollwright_core::trajectory::{Announcement, Keep, Purpose, State};
use tokio::sync::mpsc;

use super::{Driver, Order, record};
use crate::events;
use crate::store::{GroupMeta, RecordMeta, StoreError, TakenBatch, Weights};

/// Between two tries to write to a full disk.
const FULL_DISK: Duration = Duration::from_secs(5);

impl Driver {
    /// Runs until nobody can give an order any more.
    pub(crate) async fn run(self: Arc<Self>, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Do(command) => self.execute(command).await,
                // Whoever asked may have left.
                Order::Barrier(done_tx) => drop(done_tx.send(())),
            }
        }
    }

    async fn execute(self: &Arc<Self>, command: Command) {
        match command {
            Command::Send { .. } | Command::Refuse { .. } | Command::TakeBack { .. } => {
                tracing::error!("a request's command came to the driver");
            }
            Command::Fallback { task, wanted, got } => {
                self.metrics.fell_back(wanted != got);
                tracing::warn!(%task, %wanted, %got, "affinity: the task is served by this class");
            }
            Command::Lacks(Some(role)) => {
                let alone = self.config.rollout.router.alone;
                tracing::warn!(
                    lacks = role.as_str(),
                    alone,
                    "no healthy worker does this part; alone: those of the other part do both, else requests wait"
                );
            }
            Command::Lacks(None) => tracing::info!("prefill and decode have workers again"),
            Command::Drained(worker) => self.drained(&worker),
            Command::Weights(command) => self.update(command).await,
            Command::Version { version, source } => {
                let source = record::source_text(&source);
                self.written("version", self.store.set_weights(Weights { version, source }).await);
            }
            Command::RecordGroup { group, numbers } => self.record_group(group, numbers).await,
            Command::DropGroup(group) => {
                self.state().payloads.remove(&group);
                self.written("group", self.store.end_group(group).await);
                self.changed();
            }
            Command::Keep { keep, log } => {
                let driver = Arc::clone(self);
                self.keeps.spawn(async move { driver.keep(keep, log).await });
            }
            Command::Drop(trajectory) => self.drop_record(trajectory).await,
            Command::Settle(group) => self.settle(group).await,
            Command::Deliver { batch, takers, again } => {
                if !again {
                    let groups = batch.groups.iter().map(|group| group.group.clone()).collect();
                    let taken = TakenBatch { id: batch.id, version: batch.version, groups };
                    if let Err(error) = self.store.take(taken).await {
                        self.written("batch", Err(error.clone()));
                        return self.not_delivered(&takers, &error.into());
                    }
                }
                self.deliver(&batch, &takers);
            }
            Command::Remove { batch, groups: _ } => {
                self.written("acknowledgement", self.store.acknowledge(batch).await);
                // There is room for groups.
                self.changed();
            }
            Command::Evict(group) => {
                self.metrics.evicted(group.trajectories.len());
                self.written("group", self.store.end_group(group.group).await);
            }
            Command::CloseSandbox(trajectory) => {
                if let Some(actions) = &self.actions {
                    actions.close_later(&trajectory);
                }
            }
            Command::CallReward { call, trajectory, service, attempt } => {
                self.call_reward(call, trajectory, service, attempt);
            }
            Command::CancelReward(call) => self.cancel_reward(call),
            Command::RewardCircuit { service, open } => {
                let name = self.config.rewards.get(service.0).map(|of| of.name.as_str());
                tracing::warn!(service = name, open, "a reward service's circuit has changed");
            }
            Command::Announce(news) => self.announce(news),
        }
    }

    /// A write that cannot be done without: after it has failed, the core and the disk
    /// disagree, and only a new process makes them agree again.
    fn written(&self, what: &str, result: Result<(), StoreError>) {
        if let Err(error) = result {
            self.metrics.store_failed();
            tracing::error!(what, %error, "not written: the gateway stops");
            self.broken.cancel();
        }
    }

    async fn record_group(&self, group: GroupId, numbers: u32) {
        let Some(meta) = self.view(|core| {
            let known = core.trajectories().group(group.as_str())?;
            let settings = known.settings();
            Some(GroupMeta {
                id: group.clone(),
                task: settings.task.clone(),
                needed: settings.needed,
                start: known.start(),
                numbers,
                version: known.version(),
                evaluation: matches!(settings.purpose, Purpose::Evaluation { .. }),
                tokens: settings.recorded,
            })
        }) else {
            return;
        };
        let payload = self.state().payloads.remove(&group);
        if let Err(error) = self.store.open_group(meta, payload).await {
            let fault = Fault::from(error);
            tracing::error!(%group, %fault, "the group is not on disk and is aborted");
            self.state().failed.insert(group.clone(), fault);
            self.tell(Event::AbortGroup(group));
        }
    }

    async fn keep(&self, keep: Keep, log: Option<Box<TokenLog>>) {
        let trajectory = keep.trajectory.clone();
        let (metadata, taught) = {
            let mut state = self.state();
            (state.metadata.remove(&trajectory), state.taught.remove(&trajectory))
        };
        let built = tokio::task::spawn_blocking(move || {
            let taught = taught.unwrap_or_default();
            record::build(&keep, log.as_deref(), metadata.as_deref(), &taught)
        });
        let result = match built.await {
            Ok(Ok((meta, bytes))) => self.keep_patiently(meta, bytes).await,
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::new(
                FaultKind::Infrastructure,
                "RecordFailed",
                "the record could not be made: see the log",
            )),
        };
        let kept = result.is_ok();
        if let Err(fault) = &result {
            tracing::warn!(%trajectory, %fault, "a record is not on disk");
        }
        self.tell(Event::Kept { trajectory: trajectory.clone(), result });
        if kept && !self.is_wanted(&trajectory) {
            // It was aborted meanwhile: it must not come back after a restart.
            self.drop_record(trajectory.clone()).await;
        }
        self.state().waiting.kept(&trajectory);
        self.changed();
    }

    /// Writes a record; a full disk is waited for, as long as the trajectory is wanted.
    async fn keep_patiently(&self, meta: RecordMeta, bytes: Bytes) -> Result<(), Fault> {
        loop {
            match self.store.keep(meta.clone(), bytes.clone()).await {
                Err(error @ StoreError::Full { .. }) if self.is_wanted(&meta.trajectory) => {
                    self.metrics.store_failed();
                    tracing::warn!(trajectory = %meta.trajectory, %error, "a record waits for the disk");
                    tokio::select! {
                        () = tokio::time::sleep(FULL_DISK) => {}
                        () = self.stopping.cancelled() => return Err(error.into()),
                    }
                }
                done => return done.map_err(Fault::from),
            }
        }
    }

    fn is_wanted(&self, trajectory: &TrajectoryId) -> bool {
        self.view(|core| {
            let known = core.trajectories().trajectory(trajectory.as_str());
            known.is_none_or(|known| known.state() != State::Aborted)
        })
    }

    async fn drop_record(&self, trajectory: TrajectoryId) {
        {
            let mut state = self.state();
            state.metadata.remove(&trajectory);
            state.taught.remove(&trajectory);
        }
        let group = self.view(|core| {
            let known = core.trajectories().trajectory(trajectory.as_str())?;
            // Only a scored trajectory may have a record.
            known.reward().is_some().then(|| known.group().clone())
        });
        if let Some(group) = group {
            self.written("drop", self.store.drop_records(group, vec![trajectory]).await);
        }
    }

    async fn settle(&self, group: SettledGroup) {
        let kept = group.trajectories.into_iter().map(|member| member.trajectory).collect();
        self.written("settled group", self.store.settle(group.group, kept).await);
    }

    fn announce(&self, news: Announcement) {
        let event = match news {
            Announcement::Start { trajectory, group } => events::Event::Start { trajectory, group },
            Announcement::Abort { trajectory, group, fault } => {
                events::Event::Abort { trajectory, group, reason: fault.message }
            }
            Announcement::Settled { group, kept } => {
                self.changed();
                events::Event::Settled { group, kept }
            }
            // Its trajectories were each announced.
            Announcement::GroupAborted { .. } => return self.changed(),
        };
        self.hub.publish(&event);
        self.changed();
    }
}
