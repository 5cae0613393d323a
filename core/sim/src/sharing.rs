//! Actions that share a node's cores as the kernel would share them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Cluster, PoolKind};
use crate::workload::{Action, UNIT};
use crate::world::World;

/// Running actions by node, and how far each is.
pub(crate) struct Sharing<'a> {
    /// Cores that an action uses at most.
    limit: f64,
    /// By pool, cores of a node.
    cores: Vec<f64>,
    nodes: BTreeMap<(usize, usize), Running<'a>>,
    /// Where something changed at this instant.
    changed: BTreeSet<(usize, usize)>,
}

/// What runs on a node, those that can use least first.
#[derive(Default)]
struct Running<'a> {
    actions: BTreeMap<Place, Share<'a>>,
    since: u64,
}

/// Bits of the most cores that an action can use, which are ordered as they are; and
/// its trajectory.
type Place = (u64, usize);

struct Share<'a> {
    action: &'a Action,
    /// The part that is still to do.
    left: f64,
    /// Cores, since the last change.
    cores: f64,
    /// Nanoseconds of the whole action at these cores.
    whole: f64,
    /// Nanoseconds that are left at these cores.
    end: u64,
}

impl Share<'_> {
    fn run_on(&mut self, cores: f64) {
        self.cores = cores;
        self.whole = self.action.seconds(cores) / cores.min(1.0) * 1e9;
        self.end = (self.left * self.whole).round() as u64;
    }
}

impl<'a> Sharing<'a> {
    pub(crate) fn new(cluster: &Cluster, limit: f64) -> Self {
        let cores = cluster.pools.iter().map(|pool| match pool.kind {
            PoolKind::Cpu { cores, .. } => cores as f64,
            PoolKind::Gpu { .. } | PoolKind::Quota(_) => 0.0,
        });
        Self { limit, cores: cores.collect(), nodes: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// Where an action stands in its node.
    fn place(&self, of: usize, action: &Action) -> Place {
        (self.limit.min(action.largest() as f64 / UNIT as f64).to_bits(), of)
    }

    pub(crate) fn start(
        &mut self,
        of: usize,
        action: &'a Action,
        node: usize,
        world: &mut World<'a>,
    ) {
        let place = self.place(of, action);
        let running = self.nodes.entry((action.pool, node)).or_default();
        running.progress(action.pool, world);
        let share = Share { action, left: 1.0, cores: 0.0, whole: 0.0, end: 0 };
        running.actions.insert(place, share);
        self.changed.insert((action.pool, node));
        world.begin(of, 0);
    }

    pub(crate) fn finished(
        &mut self,
        of: usize,
        action: &Action,
        node: usize,
        world: &mut World<'a>,
    ) {
        let place = self.place(of, action);
        if let Some(running) = self.nodes.get_mut(&(action.pool, node)) {
            running.progress(action.pool, world);
            running.actions.remove(&place);
            self.changed.insert((action.pool, node));
        }
    }

    /// Shares anew where something changed. Only the next ends are timed: they change
    /// the shares of all others.
    pub(crate) fn settle(&mut self, world: &mut World<'a>) {
        for node in std::mem::take(&mut self.changed) {
            let Some(running) = self.nodes.get_mut(&node) else { continue };
            running.share(self.cores[node.0]);
            let next = running.actions.values().map(|share| share.end).min();
            for (&(_, of), share) in &running.actions {
                if Some(share.end) == next {
                    world.time(of, share.end);
                } else {
                    world.untime(of);
                }
            }
        }
    }
}

impl Running<'_> {
    /// Brings everything up to now.
    fn progress(&mut self, pool: usize, world: &mut World<'_>) {
        let passed = (world.now - self.since) as f64;
        self.since = world.now;
        if passed == 0.0 {
            return;
        }
        for share in self.actions.values_mut() {
            share.left = (share.left - passed / share.whole).max(0.0);
            world.usage[pool].busy.add_area(passed * share.cores);
        }
    }

    /// Water-filling: equal parts, but no more than each can use.
    fn share(&mut self, cores: f64) {
        let (mut left, mut waiting) = (cores, self.actions.len());
        for (&(most, _), share) in &mut self.actions {
            let cores = f64::from_bits(most).min(left / waiting as f64);
            share.run_on(cores);
            left -= cores;
            waiting -= 1;
        }
    }
}
