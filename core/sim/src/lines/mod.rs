//! One line for each CPU node, each GPU pool and each quota: what `fixed:N`, `tangram`
//! and the elastic policies share. A [`Discipline`] says who of a line starts, and with
//! what.

mod calls;
mod cpu;
mod gpu;

pub(crate) use cpu::{Change, CpuLine, CpuNode, Nodes};
pub(crate) use gpu::{GpuLine, GpuPool};

use calls::Calls;

use rollwright_core::elastic::Newcomers;
use rollwright_core::time::Time;

use crate::cluster::{Cluster, PoolKind, Service};
use crate::engine::Scheduler;
use crate::workload::{Action, Trajectory};
use crate::world::World;

/// An action that waits in a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued<'a> {
    /// Place of its trajectory in the workload.
    pub(crate) of: usize,
    pub(crate) action: &'a Action,
    pub(crate) trajectory: &'a Trajectory,
    /// Its place in the trajectory.
    pub(crate) phase: usize,
    /// Nanoseconds.
    pub(crate) submitted: u64,
    /// Place among all submissions.
    pub(crate) order: u64,
}

/// How a policy serves its lines.
pub(crate) trait Discipline<'a> {
    /// The line of a node.
    type Cpu: CpuLine<'a>;
    /// The line of a GPU pool.
    type Gpu: GpuLine<'a>;
    /// An empty line of a node with that many cores.
    fn cpu(&self, cores: u64) -> Self::Cpu;
    /// An empty line of a GPU pool.
    fn gpu(&self, services: &'a [Service]) -> Self::Gpu;
    /// Millionths of units on which a quota call is timed; it takes one permit.
    fn call(&self, action: &Action) -> u64;
}

/// The lines of a cluster.
pub(crate) struct Lines<'a, D: Discipline<'a>> {
    discipline: D,
    pools: Vec<Pool<'a, D>>,
    /// Submissions so far.
    orders: u64,
    crowd: Crowd,
}

/// Which trajectories there are, and were.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    /// When the first began, in nanoseconds.
    first: Option<u64>,
    /// Those that began after that instant.
    began: usize,
    /// Those that have begun and not ended.
    live: usize,
}

impl Crowd {
    /// The part of one of `lines` in those that may come; `known` have come.
    fn newcomers(self, known: usize, lines: u64) -> Newcomers {
        let part = |count: usize| count as f64 / lines as f64;
        Newcomers {
            first: Time::from_nanos(self.first.unwrap_or(0)),
            began: part(self.began),
            to_come: part(self.live.saturating_sub(known)).ceil(),
        }
    }
}

enum Pool<'a, D: Discipline<'a>> {
    Cpu(Nodes<'a, D::Cpu>),
    Gpu(GpuPool, D::Gpu),
    Quota(Calls<'a>),
}

impl<'a, D: Discipline<'a>> Lines<'a, D> {
    pub(crate) fn new(cluster: &'a Cluster, discipline: D) -> Self {
        let pools = cluster.pools.iter().map(|pool| match pool.kind {
            PoolKind::Cpu { nodes, cores, memory } => Pool::Cpu(Nodes::new(nodes, cores, memory)),
            PoolKind::Gpu { nodes, gpus } => {
                Pool::Gpu(GpuPool::new(nodes, gpus), discipline.gpu(&cluster.services))
            }
            PoolKind::Quota(limit) => Pool::Quota(Calls::new(limit)),
        });
        let pools = pools.collect();
        Self { discipline, pools, orders: 0, crowd: Crowd::default() }
    }
}

impl<'a, D: Discipline<'a>> Scheduler<'a> for Lines<'a, D> {
    fn arrived(&mut self, _of: usize, world: &mut World<'a>) -> bool {
        self.crowd.live += 1;
        if *self.crowd.first.get_or_insert(world.now) < world.now {
            self.crowd.began += 1;
        }
        true
    }

    fn admit(&mut self, _world: &mut World<'a>) -> Vec<usize> {
        Vec::new()
    }

    fn submitted(&mut self, of: usize, action: &'a Action, world: &mut World<'a>) {
        self.orders += 1;
        let queued = Queued {
            of,
            action,
            trajectory: &world.trajectories[of],
            phase: world.phase_index(of),
            submitted: world.now,
            order: self.orders,
        };
        match &mut self.pools[action.pool] {
            Pool::Cpu(nodes) => nodes.submitted(queued, self.crowd),
            Pool::Gpu(pool, line) => {
                pool.submitted(self.crowd);
                line.submitted(queued, pool);
            }
            Pool::Quota(calls) => calls.submitted(queued),
        }
    }

    fn finished(&mut self, of: usize, action: &'a Action, units: u64, world: &mut World<'a>) {
        match &mut self.pools[action.pool] {
            Pool::Cpu(nodes) => nodes.finished(of, world),
            Pool::Gpu(pool, _) => pool.finished(of, units, action.pool, world),
            Pool::Quota(calls) => calls.finished(action.pool, world),
        }
    }

    fn left(&mut self, of: usize, world: &mut World<'a>) {
        self.crowd.live -= 1;
        for pool in &mut self.pools {
            if let Pool::Cpu(nodes) = pool {
                nodes.left(of, world.trajectories[of].memory);
            }
        }
    }

    fn round(&mut self, world: &mut World<'a>) {
        for (place, pool) in self.pools.iter_mut().enumerate() {
            match pool {
                Pool::Cpu(nodes) => nodes.round(&self.discipline, self.crowd, world),
                Pool::Gpu(pool, line) => pool.round(line, self.crowd, world),
                Pool::Quota(calls) => calls.round(place, &self.discipline, world),
            }
        }
    }
}
