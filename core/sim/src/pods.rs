//! `static:N` and `kubernetes:R:L`: pods from arrival to end, resident replicas, and
//! quota calls that back off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollwright_core::quota::Quota;
use rollwright_core::time::Time;

use crate::cluster::{Bytes, Cluster, PoolKind};
use crate::engine::Scheduler;
use crate::replicas::Replicas;
use crate::sharing::Sharing;
use crate::workload::{Action, Trajectory, UNIT};
use crate::world::{Event, World};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Seconds before a refused quota call tries again, by number of refusals.
const BACK_OFF: [u64; 7] = [1, 2, 4, 8, 16, 32, 60];

/// Pods, replicas and quotas.
pub(crate) struct Pods<'a> {
    /// Millionths of cores that a pod reserves.
    request: u64,
    pools: Vec<Pool>,
    replicas: Replicas<'a>,
    /// Where each trajectory needs a pod.
    pool_of: Vec<Option<usize>>,
    /// Trajectory -> node of its pod.
    node_of: BTreeMap<usize, usize>,
    /// Calls that try at this instant.
    calls: Vec<(usize, &'a Action)>,
    refusals: BTreeMap<usize, usize>,
    /// Actions that start at this instant in their pods.
    starting: Vec<(usize, &'a Action)>,
    /// How running actions share a node; `None` where each has its pod's cores.
    sharing: Option<Sharing<'a>>,
}

/// What a pool consists of, and who waits for it.
enum Pool {
    Cpu { nodes: Vec<PodNode>, line: VecDeque<usize> },
    Gpu,
    Quota(Calls),
}

/// A quota, and when its running calls end, with their trajectories.
struct Calls {
    quota: Quota,
    ends: BTreeSet<(u64, usize)>,
}

impl Calls {
    /// The first instant at which a call that is refused now might not be.
    fn room_at(&self, now: u64) -> u64 {
        let limit = self.quota.limit();
        if limit.concurrency.is_some_and(|most| self.quota.held() >= most) {
            return self.ends.first().map_or(now, |&(end, _)| end);
        }
        self.quota.next_room(Time::from_nanos(now)).map_or(now, Time::as_nanos)
    }
}

/// When a call tries again that was refused `refusals` times before, given that all are
/// refused before `room`. Counts the refusals until then.
fn next_try(now: u64, room: u64, refusals: &mut usize) -> u64 {
    let mut at = now;
    loop {
        let wait = BACK_OFF[(*refusals).min(BACK_OFF.len() - 1)] * SECOND;
        // Once the waits grow no more, those that end before there is room are skipped.
        let skipped = if *refusals < BACK_OFF.len() {
            0
        } else {
            (room.saturating_sub(at) / wait).saturating_sub(1)
        };
        *refusals += 1;
        at = at.saturating_add(wait.saturating_mul(skipped + 1));
        if at >= room {
            return at;
        }
    }
}

/// What pods leave of a node.
#[derive(Clone)]
struct PodNode {
    cores: u64,
    memory: Bytes,
}

impl<'a> Pods<'a> {
    pub(crate) fn new(
        cluster: &Cluster,
        workload: &[Trajectory],
        request: u64,
        limit: Option<f64>,
        dealt: &[usize],
    ) -> Self {
        let pools = cluster.pools.iter().map(|pool| match pool.kind {
            PoolKind::Cpu { nodes, cores, memory } => {
                let node = PodNode { cores: cores * UNIT, memory };
                // A pod takes one at most, the first of those that nobody uses.
                let nodes = nodes.min(workload.len() as u64) as usize;
                Pool::Cpu { nodes: vec![node; nodes], line: VecDeque::new() }
            }
            PoolKind::Gpu { .. } => Pool::Gpu,
            PoolKind::Quota(limit) => {
                Pool::Quota(Calls { quota: Quota::new(limit), ends: BTreeSet::new() })
            }
        });
        let on_cpu =
            |action: &&Action| matches!(cluster.pools[action.pool].kind, PoolKind::Cpu { .. });
        let pool_of = workload
            .iter()
            .map(|trajectory| trajectory.actions().find(on_cpu).map(|action| action.pool));
        Self {
            request,
            pools: pools.collect(),
            replicas: Replicas::new(dealt),
            pool_of: pool_of.collect(),
            node_of: BTreeMap::new(),
            calls: Vec::new(),
            refusals: BTreeMap::new(),
            starting: Vec::new(),
            sharing: limit.map(|limit| Sharing::new(cluster, limit)),
        }
    }

    /// Calls that are refused use no quota.
    fn call(&mut self, world: &mut World<'a>) {
        let now = Time::from_nanos(world.now);
        self.calls.sort_unstable_by_key(|&(of, _)| of);
        for (of, action) in self.calls.drain(..) {
            let Pool::Quota(calls) = &mut self.pools[action.pool] else { continue };
            if calls.quota.try_take(1, now) {
                self.refusals.remove(&of);
                world.usage[action.pool].held.add(UNIT, world.now);
                let nanos = action.nanos(action.smallest());
                calls.ends.insert((world.now.saturating_add(nanos), of));
                world.start(of, action, UNIT, nanos);
            } else {
                let refusals = self.refusals.entry(of).or_insert(0);
                let next = next_try(world.now, calls.room_at(world.now), refusals);
                world.after(next - world.now, Event::Retries(of));
            }
        }
    }
}

impl<'a> Scheduler<'a> for Pods<'a> {
    fn arrived(&mut self, of: usize, _world: &mut World<'a>) -> bool {
        let Some(pool) = self.pool_of[of] else { return true };
        if let Pool::Cpu { line, .. } = &mut self.pools[pool] {
            line.push_back(of);
        }
        false
    }

    /// Pods in arrival order, each on the node with the most free memory that holds it.
    fn admit(&mut self, world: &mut World<'a>) -> Vec<usize> {
        let mut admitted = Vec::new();
        for (i, pool) in self.pools.iter_mut().enumerate() {
            let Pool::Cpu { nodes, line } = pool else { continue };
            while let Some(&of) = line.front() {
                let Bytes(memory) = world.trajectories[of].memory;
                let fits = |node: &PodNode| node.cores >= self.request && node.memory.0 >= memory;
                let fitting = (0..nodes.len()).filter(|&node| fits(&nodes[node]));
                let Some(node) = fitting.rev().max_by_key(|&node| nodes[node].memory) else {
                    break;
                };
                line.pop_front();
                nodes[node].cores -= self.request;
                nodes[node].memory.0 -= memory;
                self.node_of.insert(of, node);
                world.usage[i].held.add(self.request, world.now);
                world.waited_for_pod(of, world.now - world.trajectories[of].arrival);
                admitted.push(of);
            }
        }
        admitted
    }

    fn submitted(&mut self, of: usize, action: &'a Action, _world: &mut World<'a>) {
        match &self.pools[action.pool] {
            Pool::Cpu { .. } => self.starting.push((of, action)),
            Pool::Gpu => self.replicas.submitted(of, action),
            Pool::Quota(_) => self.calls.push((of, action)),
        }
    }

    fn finished(&mut self, of: usize, action: &'a Action, units: u64, world: &mut World<'a>) {
        match &mut self.pools[action.pool] {
            Pool::Cpu { .. } => {
                if let (Some(sharing), Some(&node)) = (&mut self.sharing, self.node_of.get(&of)) {
                    return sharing.finished(of, action, node, world);
                }
            }
            Pool::Gpu => self.replicas.finished(action),
            Pool::Quota(calls) => {
                calls.quota.release(1);
                calls.ends.remove(&(world.now, of));
                world.usage[action.pool].held.remove(UNIT, world.now);
            }
        }
        world.usage[action.pool].busy.remove(units, world.now);
    }

    fn left(&mut self, of: usize, world: &mut World<'a>) {
        let (Some(pool), Some(node)) = (self.pool_of[of], self.node_of.remove(&of)) else { return };
        if let Pool::Cpu { nodes, .. } = &mut self.pools[pool] {
            nodes[node].cores += self.request;
            nodes[node].memory.0 += world.trajectories[of].memory.0;
            world.usage[pool].held.remove(self.request, world.now);
        }
    }

    fn round(&mut self, world: &mut World<'a>) {
        for (of, action) in self.starting.drain(..) {
            if let (Some(sharing), Some(&node)) = (&mut self.sharing, self.node_of.get(&of)) {
                sharing.start(of, action, node, world);
            } else {
                let units = action.largest_up_to(self.request).unwrap_or(action.smallest());
                world.start(of, action, units, action.nanos(units));
            }
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.settle(world);
        }
        self.replicas.round(world);
        self.call(world);
    }
}
