//! Docker's events, and the disk.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::models::EventMessage;
use futures::StreamExt as _;
use tokio::sync::mpsc;

use super::actor::{Actor, Entry, Event};
use crate::docker::Engine;
use crate::fault;

/// Pause between two looks for an engine that went away.
const ENGINE_PAUSE: Duration = Duration::from_secs(1);

/// Follows the engine's events for as long as the node works. An engine that
/// went away is waited for, and what it no longer runs is then found out.
pub(super) async fn watch(engine: Engine, agent: String, events_tx: mpsc::Sender<Event>) {
    loop {
        let mut deaths = engine.deaths(&agent).boxed();
        // What happened before the stream stood is in the list.
        if let Ok(found) = engine.sandboxes(&agent).await {
            let running = found.into_iter().filter(|found| found.running);
            let running = running.map(|found| found.name).collect();
            if events_tx.send(Event::EngineBack { running }).await.is_err() {
                return;
            }
        }
        while let Some(Ok(death)) = deaths.next().await {
            let Some(name) = name_of(death) else { continue };
            if events_tx.send(Event::Died { name }).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(ENGINE_PAUSE).await;
    }
}

fn name_of(death: EventMessage) -> Option<String> {
    death.actor?.attributes?.remove("name")
}

impl Actor {
    pub(super) async fn died(&mut self, name: &str) {
        if let Some(trajectory) = self.trajectories.get(name).cloned() {
            let fault = fault::infrastructure(
                "SandboxLost",
                "Docker says that the sandbox's container ended under its actions",
            );
            self.lose(&trajectory, &fault).await;
        } else if let Some(made) = self.warm.remove(|made| *made.sandbox.name == *name) {
            self.remove_in_background(made.sandbox);
            self.refill();
        }
    }

    /// What is not in the list does not run.
    pub(super) async fn engine_back(&mut self, running: &[String]) {
        let running: HashSet<&str> = running.iter().map(String::as_str).collect();
        let up = self.trajectories.keys().map(Arc::clone);
        let warm = self.warm.ready().map(|made| Arc::clone(&made.sandbox.name));
        let gone: Vec<Arc<str>> =
            up.chain(warm).filter(|name| !running.contains(name.as_ref())).collect();
        for name in gone {
            // The list may be older than the sandbox.
            if matches!(self.ground.engine.running(&name).await, Ok(None)) {
                self.died(&name).await;
            }
        }
    }

    pub(super) fn look_at_disk(&self) {
        let Some(disk) = super::free_bytes(&self.root_dir) else { return };
        self.disk_free.store(disk.free, Ordering::Relaxed);
        let free = i64::try_from(disk.free).unwrap_or(i64::MAX);
        self.ground.metrics.disk_free_bytes.set(free);
        let gc = self.ground.config.images.clone();
        if part(disk) >= gc.low {
            return;
        }
        let ready = self.sandboxes.values().filter_map(|entry| match entry {
            Entry::Ready(ready) => Some(ready.sandbox.spec.image.clone()),
            Entry::Opening { .. } | Entry::Closing => None,
        });
        let warm = self.warm.ready().map(|made| made.sandbox.spec.image.clone());
        let in_use: Vec<String> = ready.chain(warm).collect();
        let (ground, root) = (Arc::clone(&self.ground), self.root_dir.clone());
        tokio::spawn(async move {
            let enough = || super::free_bytes(&root).is_none_or(|disk| part(disk) >= gc.high);
            let removed = ground.images.collect(&in_use, gc.idle, enough).await;
            ground.metrics.images_removed.inc_by(removed as u64);
            tracing::info!(removed, "the disk was low: removed unused images");
        });
    }
}

fn part(disk: super::Disk) -> f64 {
    disk.free as f64 / (disk.all.max(1)) as f64
}
