//! Actions that share a node's cores as the kernel would share them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Cluster, PoolKind, nanos};
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

/// What runs on a node, by trajectory.
#[derive(Default)]
struct Running<'a> {
    actions: BTreeMap<usize, Share<'a>>,
    since: u64,
}

struct Share<'a> {
    action: &'a Action,
    /// The part that is still to do.
    left: f64,
    /// Cores, since the last change.
    cores: f64,
}

impl Share<'_> {
    /// Nanoseconds of the whole action at the present cores.
    fn whole(&self) -> f64 {
        let seconds = if self.cores < 1.0 {
            self.action.seconds(1.0) / self.cores
        } else {
            self.action.seconds(self.cores)
        };
        seconds * 1e9
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

    pub(crate) fn start(
        &mut self,
        of: usize,
        action: &'a Action,
        node: usize,
        world: &mut World<'a>,
    ) {
        let place = (action.pool, node);
        let running = self.nodes.entry(place).or_default();
        running.progress(action.pool, world);
        running.actions.insert(of, Share { action, left: 1.0, cores: 0.0 });
        self.changed.insert(place);
        world.begin(of, 0);
    }

    pub(crate) fn finished(&mut self, of: usize, pool: usize, node: usize, world: &mut World<'a>) {
        if let Some(running) = self.nodes.get_mut(&(pool, node)) {
            running.progress(pool, world);
            running.actions.remove(&of);
            self.changed.insert((pool, node));
        }
    }

    /// Shares anew where something changed, and times the ends.
    pub(crate) fn settle(&mut self, world: &mut World<'a>) {
        for place in std::mem::take(&mut self.changed) {
            if let Some(running) = self.nodes.get_mut(&place) {
                running.share(self.cores[place.0], self.limit);
                for (&of, share) in &running.actions {
                    world.time(of, nanos(share.left * share.whole() / 1e9));
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
            share.left = (share.left - passed / share.whole()).max(0.0);
            world.usage[pool].busy.add_area(passed * share.cores);
        }
    }

    /// Water-filling: equal parts, but no more than each can use.
    fn share(&mut self, cores: f64, limit: f64) {
        let mut shares: Vec<(f64, &mut Share<'_>)> = self
            .actions
            .values_mut()
            .map(|share| (limit.min(share.action.largest() as f64 / UNIT as f64), share))
            .collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut left, mut waiting) = (cores, shares.len());
        for (most, share) in shares {
            share.cores = most.min(left / waiting as f64);
            left -= share.cores;
            waiting -= 1;
        }
    }
}
