//! `fixed:N`: first come first served within each line.

use std::collections::{BTreeMap, VecDeque};

use rollwright_core::quota::Quota;
use rollwright_core::time::Time;

use crate::chunks::{Chunk, Gpus};
use crate::cluster::{Bytes, Cluster, PoolKind};
use crate::engine::Scheduler;
use crate::node::{Node, roomiest};
use crate::workload::{Action, UNIT};
use crate::world::{Event, World};

/// One line for each CPU node, each GPU pool and each quota.
pub(crate) struct Fixed<'a> {
    limit: u64,
    pools: Vec<Lines<'a>>,
    /// Actions in the order of their submission.
    arrivals: u64,
}

/// The lines of a pool, and what they are served from.
enum Lines<'a> {
    Cpu(Nodes<'a>),
    Gpu { gpus: Gpus, line: VecDeque<(usize, &'a Action)>, running: BTreeMap<usize, Chunk> },
    Quota { quota: Quota, line: VecDeque<(usize, &'a Action)>, wakes_at: Option<Time> },
}

/// Sandboxes, and the line of each node.
struct Nodes<'a> {
    free: Vec<Node>,
    lines: Vec<BTreeMap<u64, (usize, &'a Action)>>,
    /// Those that wait for memory, in order.
    outside: VecDeque<(u64, usize, &'a Action)>,
    /// Trajectory -> the node of its sandbox.
    sandboxes: BTreeMap<usize, usize>,
}

impl Fixed<'_> {
    pub(crate) fn new(cluster: &Cluster, limit: u64) -> Self {
        let pools = cluster.pools.iter().map(|pool| match pool.kind {
            PoolKind::Cpu { nodes, cores, memory } => Lines::Cpu(Nodes {
                free: vec![Node::new(cores, memory); nodes as usize],
                lines: vec![BTreeMap::new(); nodes as usize],
                outside: VecDeque::new(),
                sandboxes: BTreeMap::new(),
            }),
            PoolKind::Gpu { nodes, gpus } => Lines::Gpu {
                gpus: Gpus::new(nodes, gpus),
                line: VecDeque::new(),
                running: BTreeMap::new(),
            },
            PoolKind::Quota(limit) => {
                Lines::Quota { quota: Quota::new(limit), line: VecDeque::new(), wakes_at: None }
            }
        });
        Self { limit, pools: pools.collect(), arrivals: 0 }
    }
}

/// The largest of its units up to the limit, else its smallest.
fn units(action: &Action, limit: u64) -> u64 {
    action.largest_up_to(limit).unwrap_or(action.smallest())
}

impl<'a> Scheduler<'a> for Fixed<'a> {
    fn arrived(&mut self, _of: usize, _world: &mut World<'a>) -> bool {
        true
    }

    fn admit(&mut self, _world: &mut World<'a>) -> Vec<usize> {
        Vec::new()
    }

    fn submitted(&mut self, of: usize, action: &'a Action, _world: &mut World<'a>) {
        self.arrivals += 1;
        match &mut self.pools[action.pool] {
            Lines::Cpu(cpu) => match cpu.sandboxes.get(&of) {
                Some(&node) => {
                    cpu.lines[node].insert(self.arrivals, (of, action));
                }
                None => cpu.outside.push_back((self.arrivals, of, action)),
            },
            Lines::Gpu { line, .. } | Lines::Quota { line, .. } => line.push_back((of, action)),
        }
    }

    fn finished(&mut self, of: usize, action: &'a Action, units: u64, world: &mut World<'a>) {
        let usage = &mut world.usage[action.pool];
        usage.busy.remove(units, world.now);
        match &mut self.pools[action.pool] {
            Lines::Cpu(cpu) => {
                if let Some(&node) = cpu.sandboxes.get(&of) {
                    let before = cpu.free[node].occupied();
                    cpu.free[node].give(units);
                    usage.held.remove((before - cpu.free[node].occupied()) * UNIT, world.now);
                }
            }
            Lines::Gpu { gpus, running, .. } => {
                usage.held.remove(units, world.now);
                if let Some(chunk) = running.remove(&of) {
                    gpus.give(chunk, world.now);
                }
            }
            Lines::Quota { quota, .. } => {
                usage.held.remove(units, world.now);
                quota.release(1);
            }
        }
    }

    fn left(&mut self, of: usize, world: &mut World<'a>) {
        for pool in &mut self.pools {
            if let Lines::Cpu(cpu) = pool
                && let Some(node) = cpu.sandboxes.remove(&of)
            {
                cpu.free[node].memory.0 += world.trajectories[of].memory.0;
            }
        }
    }

    fn round(&mut self, world: &mut World<'a>) {
        for pool in &mut self.pools {
            match pool {
                Lines::Cpu(cpu) => cpu.round(self.limit, world),
                Lines::Gpu { gpus, line, running } => {
                    while let Some(&(of, action)) = line.front() {
                        let (units, service) =
                            (units(action, self.limit), action.service.unwrap_or(0));
                        let Some(chunk) = gpus.take(service, units / UNIT) else { break };
                        line.pop_front();
                        let restore = if chunk.resident {
                            0
                        } else {
                            world.cluster.services[service].restore
                        };
                        running.insert(of, chunk);
                        world.usage[action.pool].held.add(units, world.now);
                        world.start(of, action, units, restore.saturating_add(action.nanos(units)));
                    }
                }
                Lines::Quota { quota, line, wakes_at } => {
                    let now = Time::from_nanos(world.now);
                    while let Some(&(of, action)) = line.front()
                        && quota.try_take(1, now)
                    {
                        line.pop_front();
                        world.usage[action.pool].held.add(UNIT, world.now);
                        world.start(of, action, UNIT, action.nanos(units(action, self.limit)));
                    }
                    let next = quota.next_room(now).filter(|_| !line.is_empty());
                    if let Some(next) = next
                        && *wakes_at != Some(next)
                    {
                        *wakes_at = Some(next);
                        world.after(next.since(now).as_nanos() as u64, Event::Wakes);
                    }
                }
            }
        }
    }
}

impl<'a> Nodes<'a> {
    fn round(&mut self, limit: u64, world: &mut World<'a>) {
        while let Some(&(order, of, action)) = self.outside.front() {
            let Bytes(memory) = world.trajectories[of].memory;
            let node = roomiest(&self.free);
            let Some(node) = node.filter(|&node| self.free[node].memory.0 >= memory) else {
                break;
            };
            self.outside.pop_front();
            self.free[node].memory.0 -= memory;
            self.sandboxes.insert(of, node);
            self.lines[node].insert(order, (of, action));
        }
        for (node, line) in self.free.iter_mut().zip(&mut self.lines) {
            while let Some((&order, &(of, action))) = line.first_key_value() {
                let units = units(action, limit);
                let before = node.occupied();
                if !node.take(units) {
                    break;
                }
                line.remove(&order);
                world.usage[action.pool].held.add((node.occupied() - before) * UNIT, world.now);
                world.start(of, action, units, action.nanos(units));
            }
        }
    }
}
