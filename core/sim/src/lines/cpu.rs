//! CPU nodes: sandboxes, cores, and what runs on them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollwright_core::elastic::Newcomers;

use super::{Crowd, Discipline, Queued};
use crate::cluster::Bytes;
use crate::node::Node;
use crate::workload::{Action, UNIT};
use crate::world::World;

/// Those that wait on one node.
pub(crate) trait CpuLine<'a> {
    /// An action joins the line; `opens` where it is the first of its trajectory.
    fn submitted(&mut self, queued: Queued<'a>, opens: bool, node: &CpuNode<'a>, now: u64);
    /// An action of a trajectory ended.
    fn finished(&mut self, _of: usize) {}
    /// What changes now, in an order in which it always fits; what starts has left the line.
    /// True where it is to be asked again when that is done.
    fn round(&mut self, node: &CpuNode<'a>, now: u64, changes: &mut Vec<Change<'a>>) -> bool;
}

/// A decision on one action.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// It starts on so many millionths.
    Start(Queued<'a>, u64),
    /// What runs at a place of [`CpuNode::running`] gets so many millionths.
    Resize(usize, u64),
}

/// One node and what runs on it.
pub(crate) struct CpuNode<'a> {
    pub(crate) cores: Node,
    pub(crate) running: Vec<Running<'a>>,
    /// Trajectories with a sandbox here.
    pub(crate) sandboxes: usize,
    /// Trajectories that may come.
    pub(crate) newcomers: Newcomers,
}

/// An action that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running<'a> {
    pub(crate) of: usize,
    pub(crate) action: &'a Action,
    /// Nanoseconds.
    pub(crate) submitted: u64,
    /// Millionths.
    pub(crate) units: u64,
    /// When it ends.
    pub(crate) ends: u64,
    /// The part of it that was still to be done at `since`.
    left: f64,
    since: u64,
}

impl Running<'_> {
    /// The part of it that is still to be done.
    pub(crate) fn left(&self, now: u64) -> f64 {
        let whole = self.action.seconds(self.units as f64 / UNIT as f64) * 1e9;
        if whole <= 0.0 {
            return 0.0;
        }
        (self.left - (now - self.since) as f64 / whole).clamp(0.0, 1.0)
    }

    fn resize(&mut self, units: u64, now: u64) -> u64 {
        self.left = self.left(now);
        self.since = now;
        self.units = units;
        let nanos = (self.left * self.action.seconds(units as f64 / UNIT as f64) * 1e9).round();
        self.ends = now.saturating_add(nanos as u64);
        nanos as u64
    }
}

/// The nodes of a pool. Nodes come into being when they are first used.
pub(crate) struct Nodes<'a, L> {
    most: u64,
    cores: u64,
    memory: Bytes,
    used: Vec<(CpuNode<'a>, L)>,
    /// Free memory of each, the most first, the first of equals first.
    roomiest: BTreeSet<(Reverse<Bytes>, usize)>,
    /// Where something happened at this instant.
    changed: BTreeSet<usize>,
    /// Those that wait for memory, in order.
    outside: VecDeque<Queued<'a>>,
    /// Trajectory -> the node of its sandbox.
    sandboxes: BTreeMap<usize, usize>,
}

impl<'a, L: CpuLine<'a>> Nodes<'a, L> {
    pub(super) fn new(most: u64, cores: u64, memory: Bytes) -> Self {
        Self {
            most,
            cores,
            memory,
            used: Vec::new(),
            roomiest: BTreeSet::new(),
            changed: BTreeSet::new(),
            outside: VecDeque::new(),
            sandboxes: BTreeMap::new(),
        }
    }

    pub(super) fn submitted(&mut self, queued: Queued<'a>, crowd: Crowd) {
        match self.sandboxes.get(&queued.of) {
            Some(&at) => {
                let newcomers = self.newcomers(crowd);
                let (node, line) = &mut self.used[at];
                node.newcomers = newcomers;
                line.submitted(queued, false, node, queued.submitted);
                self.changed.insert(at);
            }
            None => self.outside.push_back(queued),
        }
    }

    pub(super) fn finished(&mut self, of: usize, world: &mut World<'a>) {
        let Some(&at) = self.sandboxes.get(&of) else { return };
        let (node, line) = &mut self.used[at];
        line.finished(of);
        let Some(place) = node.running.iter().position(|running| running.of == of) else { return };
        let ended = node.running.remove(place);
        let before = node.cores.occupied();
        node.cores.give(ended.units);
        let usage = &mut world.usage[ended.action.pool];
        usage.busy.remove(ended.units, world.now);
        usage.held.remove((before - node.cores.occupied()) * UNIT, world.now);
        self.changed.insert(at);
    }

    pub(super) fn left(&mut self, of: usize, memory: Bytes) {
        let Some(at) = self.sandboxes.remove(&of) else { return };
        self.used[at].0.sandboxes -= 1;
        self.set_memory(at, |free| Bytes(free.0 + memory.0));
    }

    fn newcomers(&self, crowd: Crowd) -> Newcomers {
        crowd.newcomers(self.sandboxes.len() + self.outside.len(), self.most)
    }

    fn set_memory(&mut self, at: usize, change: impl FnOnce(Bytes) -> Bytes) {
        let free = &mut self.used[at].0.cores.memory;
        self.roomiest.remove(&(Reverse(*free), at));
        *free = change(*free);
        self.roomiest.insert((Reverse(*free), at));
    }

    pub(super) fn round<D: Discipline<'a, Cpu = L>>(
        &mut self,
        discipline: &D,
        crowd: Crowd,
        world: &mut World<'a>,
    ) {
        while let Some(&queued) = self.outside.front()
            && let Some(at) = self.open(queued, discipline)
        {
            self.outside.pop_front();
            let newcomers = self.newcomers(crowd);
            let (node, line) = &mut self.used[at];
            node.newcomers = newcomers;
            line.submitted(queued, true, node, world.now);
            self.changed.insert(at);
        }
        let newcomers = self.newcomers(crowd);
        let mut changes = Vec::new();
        for at in std::mem::take(&mut self.changed) {
            let (node, line) = &mut self.used[at];
            node.newcomers = newcomers;
            let mut again = true;
            while again {
                again = line.round(node, world.now, &mut changes);
                for change in changes.drain(..) {
                    node.apply(change, world);
                }
            }
        }
    }

    /// A sandbox on the node with the most free memory; `None` where it does not fit.
    fn open<D: Discipline<'a, Cpu = L>>(
        &mut self,
        queued: Queued<'a>,
        discipline: &D,
    ) -> Option<usize> {
        let memory = queued.trajectory.memory;
        let used = self.roomiest.first().map(|&(Reverse(free), at)| (free, at));
        let fresh = (self.used.len() as u64) < self.most;
        let at = match used {
            Some((free, at)) if free == self.memory || !fresh => (free >= memory).then_some(at)?,
            _ => {
                let cores = Node::new(self.cores, self.memory);
                let newcomers = Crowd::default().newcomers(0, 1);
                let node = CpuNode { cores, running: Vec::new(), sandboxes: 0, newcomers };
                self.used.push((node, discipline.cpu(self.cores)));
                self.roomiest.insert((Reverse(self.memory), self.used.len() - 1));
                self.used.len() - 1
            }
        };
        self.set_memory(at, |free| Bytes(free.0 - memory.0));
        self.used[at].0.sandboxes += 1;
        self.sandboxes.insert(queued.of, at);
        Some(at)
    }
}

impl<'a> CpuNode<'a> {
    fn apply(&mut self, change: Change<'a>, world: &mut World<'a>) {
        let before = self.cores.occupied();
        let pool = match change {
            Change::Start(Queued { of, action, submitted, .. }, units) => {
                let fits = self.cores.take(units);
                debug_assert!(fits, "more cores than there are");
                let nanos = action.nanos(units);
                let (now, ends) = (world.now, world.now.saturating_add(nanos));
                self.running.push(Running {
                    of,
                    action,
                    submitted,
                    units,
                    ends,
                    left: 1.0,
                    since: now,
                });
                world.start(of, action, units, nanos);
                action.pool
            }
            Change::Resize(place, units) => {
                let running = &mut self.running[place];
                self.cores.give(running.units);
                let fits = self.cores.take(units);
                debug_assert!(fits, "more cores than there are");
                let usage = &mut world.usage[running.action.pool];
                usage.busy.remove(running.units, world.now);
                usage.busy.add(units, world.now);
                let nanos = running.resize(units, world.now);
                world.time(running.of, nanos);
                running.action.pool
            }
        };
        let after = self.cores.occupied();
        let held = &mut world.usage[pool].held;
        held.add(after.saturating_sub(before) * UNIT, world.now);
        held.remove(before.saturating_sub(after) * UNIT, world.now);
    }
}
