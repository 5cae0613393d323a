//! Engines whose service this queue does not have: they are ended, and their GPUs are given
//! to nobody before they are gone.

use std::time::Duration;

use rollwright_core::gpu::Event;
use rollwright_core::ids::NodeId;
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::queue_message::Message as ToAgent;

use super::actor::Gpu;
use super::pool::Node;
use super::wire;

/// For an order to end one.
const LIMIT: Duration = Duration::from_secs(30);
/// An order without a report is given again after so long.
const SILENCE: Duration = Duration::from_secs(40);

/// An engine of no service.
#[derive(Debug)]
pub(super) struct Stray {
    gpus: Vec<u32>,
    /// Tries to end it that failed.
    failed: u32,
    /// When it is to be ended, or to be ended again.
    due: Time,
}

impl Stray {
    pub(super) fn new(live: &pb::LiveEngine, now: Time) -> Self {
        let gpus = live.first_gpu..live.first_gpu.saturating_add(live.degree.min(8));
        Self { gpus: gpus.collect(), failed: 0, due: now }
    }
}

impl Node {
    /// GPUs that nobody is to have: those that fell off, and those of strays.
    pub(super) fn withheld(&self) -> impl Iterator<Item = u32> {
        self.strays.values().flat_map(|stray| &stray.gpus).chain(&self.lost).copied()
    }
}

impl Gpu {
    /// Orders the ends that are due.
    pub(super) fn end_strays(&mut self, now: Time) {
        let mut orders = Vec::new();
        for (name, node) in self.pools.iter_mut().flat_map(|pool| &mut pool.nodes) {
            let due = node.strays.iter_mut().filter(|(_, stray)| node.linked && stray.due <= now);
            for (engine, stray) in due {
                stray.due = now + SILENCE;
                orders.push((name.clone(), *engine));
            }
        }
        for (node, engine) in orders {
            let stop = pb::StopEngine { engine, order: 0, limit: wire::duration(LIMIT) };
            self.send(&node, ToAgent::StopEngine(stop));
        }
    }

    /// When [`Self::end_strays`] has something to do.
    pub(super) fn strays_due(&self) -> Option<Time> {
        let nodes = self.pools.iter().flat_map(|pool| pool.nodes.values());
        let strays = nodes.filter(|node| node.linked).flat_map(|node| node.strays.values());
        strays.map(|stray| stray.due).min()
    }

    /// A report of an engine; false where it is no stray.
    pub(super) fn stray_report(
        &mut self,
        at: usize,
        node: &NodeId,
        report: &pb::EngineReport,
    ) -> bool {
        let now = self.now();
        let Some(known) = self.pools[at].nodes.get_mut(node) else { return false };
        let Some(stray) = known.strays.get_mut(&report.engine) else { return false };
        if report.result != Some(pb::engine_report::Result::HeldBytes(0)) {
            tracing::warn!(%node, engine = report.engine, "an engine of no service was not ended");
            // One second, then twice as long each time, up to a minute.
            stray.due = now + Duration::from_secs((1 << stray.failed.min(6)).min(60));
            stray.failed = stray.failed.saturating_add(1);
            return true;
        }
        let gpus = std::mem::take(&mut stray.gpus);
        known.strays.remove(&report.engine);
        let withheld: Vec<u32> = known.withheld().collect();
        for gpu in gpus.into_iter().filter(|gpu| !withheld.contains(gpu)) {
            let node = node.clone();
            self.events.push_back((at, Event::Gpu { node, gpu, lost: false }));
        }
        true
    }
}
