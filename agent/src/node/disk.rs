//! The disk: what is free, and what goes when it is low.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::actor::{Actor, Entry, Event};
use crate::fault;

/// Smallest writable layer that a sandbox is ended for, in bytes.
const LEAST_LAYER: u64 = 1 << 20;

impl Actor {
    /// Notes how much is free. Below the policy's mark the sandbox that wrote most
    /// is looked for: nothing else bounds a layer without quota.
    pub(super) fn look_at_disk(&mut self) {
        let Some(disk) = free_bytes(&self.root_dir) else { return };
        self.disk_free.store(disk.free, Ordering::Relaxed);
        let free = i64::try_from(disk.free).unwrap_or(i64::MAX);
        self.ground.metrics.disk_free_bytes.set(free);
        if disk.free >= self.ground.config.policy.min_free_disk_bytes || self.sizing {
            return;
        }
        self.sizing = true;
        let (ground, events_tx) = (Arc::clone(&self.ground), self.events_tx.clone());
        tokio::spawn(async move {
            let sizes = ground.engine.layer_bytes(&ground.owner).await;
            let sizes = sizes.inspect_err(|fault| {
                tracing::warn!(%fault, "the disk is low and no sandbox's size is known");
            });
            // A node that has ended asks nothing.
            let _ = events_tx.send(Event::Sized { sizes: sizes.unwrap_or_default() }).await;
        });
    }

    /// Ends the sandbox that wrote most, if the disk is still low.
    pub(super) async fn sized(&mut self, sizes: Vec<(String, u64)>) {
        self.sizing = false;
        let low = self.ground.config.policy.min_free_disk_bytes;
        let Some(disk) = free_bytes(&self.root_dir).filter(|disk| disk.free < low) else { return };
        let held = sizes.into_iter().filter_map(|(name, bytes)| {
            Some((bytes, self.trajectories.get(name.as_str())?.clone()))
        });
        let Some((bytes, trajectory)) = held.max().filter(|(bytes, _)| *bytes >= LEAST_LAYER)
        else {
            tracing::warn!(free = disk.free, low, "the disk is low, but not by any sandbox");
            return;
        };
        let fault = fault::infrastructure(
            "DiskPressure",
            format!(
                "the node's disk has {} bytes left, below its mark of {low}, and this sandbox \
                 wrote the most ({bytes} bytes): bound it by diskBytes, or by readOnlyRoot with \
                 tmpfs",
                disk.free
            ),
        );
        let Some(sandbox) = self.take_out(&trajectory, &fault).await else { return };
        tracing::warn!(trajectory, sandbox = %sandbox.name, %fault, "a sandbox is lost");
        // No second one goes before what the first one wrote is free.
        self.sizing = true;
        let (ground, events_tx) = (Arc::clone(&self.ground), self.events_tx.clone());
        self.ground.tracker.spawn(async move {
            ground.remove(sandbox.into()).await;
            // A node that has ended asks nothing.
            let _ = events_tx.send(Event::DiskFreed).await;
        });
        self.say_failed(trajectory, &fault).await;
    }

    /// Removes images when the disk is low, and networks that nothing uses.
    pub(super) fn look_for_unused(&self) {
        let networks = Arc::clone(&self.ground.networks);
        tokio::spawn(async move {
            // The next look tries again.
            if let Err(fault) = networks.collect().await {
                tracing::debug!(%fault, "cannot look for unused networks");
            }
        });
        let Some(disk) = free_bytes(&self.root_dir) else { return };
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
            let enough = || free_bytes(&root).is_none_or(|disk| part(disk) >= gc.high);
            let removed = ground.images.collect(&in_use, gc.idle, enough).await;
            ground.metrics.images_removed.inc_by(removed as u64);
            tracing::info!(removed, "the disk was low: removed unused images");
        });
    }
}

fn part(disk: Disk) -> f64 {
    disk.free as f64 / (disk.all.max(1)) as f64
}

/// Size of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Disk {
    /// Free bytes for everyone.
    pub(super) free: u64,
    /// Bytes in all.
    all: u64,
}

pub(super) fn free_bytes(path: &Path) -> Option<Disk> {
    // Docker's root may be out of this process's sight: then nothing is known.
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(Disk { free: stat.f_bavail * stat.f_frsize, all: stat.f_blocks * stat.f_frsize })
}
