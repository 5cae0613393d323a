//! Services as a static deployment has them: replicas that stay.

use std::collections::VecDeque;

use rollwright_core::arrange::Chunks;

use crate::cluster::{Cluster, PoolKind, Service};
use crate::workload::{Action, UNIT};
use crate::world::World;

/// Replicas of each service at its smallest degree: dealt round-robin over the
/// services of a pool until no more fit.
pub(crate) fn replicas(cluster: &Cluster) -> Vec<usize> {
    let mut dealt = vec![0; cluster.services.len()];
    for (pool, kind) in cluster.pools.iter().map(|pool| pool.kind).enumerate() {
        let PoolKind::Gpu { nodes, gpus } = kind else { continue };
        let mut free = free_chunks(nodes, gpus);
        let on_pool = |(_, service): &(usize, &Service)| service.pool == pool;
        let mut any = true;
        while any {
            any = false;
            for (i, service) in cluster.services.iter().enumerate().filter(on_pool) {
                if let Some(rest) = free.take(service.degrees[0]) {
                    free = rest;
                    dealt[i] += 1;
                    any = true;
                }
            }
        }
    }
    dealt
}

/// The first service of which no replica fits its pool beside those of the others.
pub fn without_replica(cluster: &Cluster) -> Option<usize> {
    replicas(cluster).iter().position(|&count| count == 0)
}

/// All aligned chunks, the largest first.
fn free_chunks(nodes: u64, gpus: u64) -> Chunks {
    let times = |count: u64| u32::try_from(nodes.saturating_mul(count)).unwrap_or(u32::MAX);
    Chunks::new([gpus & 1, gpus >> 1 & 1, gpus >> 2 & 1, gpus >> 3].map(times))
}

/// Actions that wait for a replica of their own service.
#[derive(Debug)]
pub(crate) struct Replicas<'a> {
    free: Vec<usize>,
    waiting: Vec<VecDeque<(usize, &'a Action)>>,
}

impl<'a> Replicas<'a> {
    pub(crate) fn new(dealt: &[usize]) -> Self {
        Self { free: dealt.to_vec(), waiting: vec![VecDeque::new(); dealt.len()] }
    }

    pub(crate) fn submitted(&mut self, of: usize, action: &'a Action) {
        if let Some(service) = action.service {
            self.waiting[service].push_back((of, action));
        }
    }

    pub(crate) fn finished(&mut self, action: &Action) {
        if let Some(service) = action.service {
            self.free[service] += 1;
        }
    }

    pub(crate) fn round(&mut self, world: &mut World<'a>) {
        for (service, (waiting, free)) in self.waiting.iter_mut().zip(&mut self.free).enumerate() {
            let units = world.cluster.services[service].degrees[0] * UNIT;
            while *free > 0
                && let Some((of, action)) = waiting.pop_front()
            {
                *free -= 1;
                world.start(of, action, units, action.nanos(units));
            }
        }
    }
}
