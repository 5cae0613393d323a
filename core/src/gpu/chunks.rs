//! Who is on which GPUs, and where the next one goes.

use std::collections::BTreeMap;

use super::chunk::{Chunk, Degree, MOST_GPUS};
use crate::arrange;
use crate::time::Time;

/// An engine: one service at one degree on one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u64);

/// A reward service, by its place in [`super::Config::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceIndex(pub usize);

/// A service at a degree. At another degree it is another resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The service.
    pub service: ServiceIndex,
    /// GPUs of one of its engines.
    pub degree: Degree,
}

/// An engine as the chunks see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// What it serves.
    pub kind: Kind,
    /// Where.
    pub chunk: Chunk,
    /// Bytes that it has on each of its GPUs.
    pub bytes: u64,
    /// Bytes of these that stay when it sleeps.
    pub residue: u64,
    /// It can serve, or is about to: it is not asleep.
    pub awake: bool,
    /// Its GPUs are its own at this moment: it executes, or moves memory.
    pub busy: bool,
    /// It is not to be moved to make room.
    pub pinned: bool,
    /// When its last action ended.
    pub used: Time,
}

/// A chunk for an engine that is not resident, and what has to leave it first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub chunk: Chunk,
    /// The engine that sleeps there; `None`: none of the service is there.
    pub asleep: Option<EngineId>,
    /// Residents to be put to sleep, the least recently used first.
    pub evict: Vec<EngineId>,
    /// Engines to be ended, since even asleep they keep too much.
    pub stop: Vec<EngineId>,
}

/// GPUs that are not to be given, by node; nodes that are missing have none.
pub type Barred = BTreeMap<usize, u128>;

/// The GPUs of a pool. Several engines may have memory on a GPU at once, as much as fits;
/// one at most is busy there.
#[derive(Debug, Default)]
pub struct Chunks {
    nodes: Vec<Node>,
    tenants: BTreeMap<EngineId, Tenant>,
}

#[derive(Debug, Default)]
struct Node {
    gpus: u32,
    /// Bytes of each GPU.
    memory: u64,
    /// GPUs that fell off.
    lost: u128,
    engines: Vec<EngineId>,
}

impl Chunks {
    /// Adds a node with `gpus` GPUs (at most [`MOST_GPUS`]) of `memory` bytes each; its place.
    pub fn add_node(&mut self, gpus: u32, memory: u64) -> usize {
        let gpus = gpus.min(MOST_GPUS);
        self.nodes.push(Node { gpus, memory, lost: 0, engines: Vec::new() });
        self.nodes.len() - 1
    }

    /// The node has other GPUs now, all of them well.
    pub(super) fn resize_node(&mut self, node: usize, gpus: u32, memory: u64) {
        let node = &mut self.nodes[node];
        (node.gpus, node.memory, node.lost) = (gpus.min(MOST_GPUS), memory, 0);
    }

    /// GPUs of a node, and bytes of each.
    pub fn node(&self, node: usize) -> Option<(u32, u64)> {
        self.nodes.get(node).map(|node| (node.gpus, node.memory))
    }

    /// A GPU fell off, or is back. Unknown ones are ignored.
    pub fn set_lost(&mut self, node: usize, gpu: u32, lost: bool) {
        let Some(node) = self.nodes.get_mut(node).filter(|node| gpu < node.gpus) else { return };
        let bit = 1 << gpu;
        node.lost = if lost { node.lost | bit } else { node.lost & !bit };
    }

    /// Puts an engine onto its chunk.
    pub fn insert(&mut self, engine: EngineId, tenant: Tenant) {
        self.remove(engine);
        if let Some(node) = self.nodes.get_mut(tenant.chunk.node) {
            node.engines.push(engine);
            self.tenants.insert(engine, tenant);
        }
    }

    /// Takes an engine off its chunk.
    pub fn remove(&mut self, engine: EngineId) -> Option<Tenant> {
        let tenant = self.tenants.remove(&engine)?;
        self.nodes[tenant.chunk.node].engines.retain(|other| *other != engine);
        Some(tenant)
    }

    /// What is known of an engine.
    pub fn get(&self, engine: EngineId) -> Option<&Tenant> {
        self.tenants.get(&engine)
    }

    /// The same, to change all but its chunk.
    pub fn get_mut(&mut self, engine: EngineId) -> Option<&mut Tenant> {
        self.tenants.get_mut(&engine)
    }

    /// The first engine of this kind that is resident and may execute now.
    pub fn resident(&self, kind: Kind, barred: &Barred) -> Option<EngineId> {
        let of_kind = self.tenants.iter().filter(|(_, tenant)| {
            tenant.kind == kind && tenant.awake && !tenant.busy && self.idle(tenant.chunk, barred)
        });
        of_kind.min_by_key(|(_, tenant)| tenant.chunk).map(|(engine, _)| *engine)
    }

    /// Where an engine of this kind that sleeps can be woken with `bytes` on each GPU:
    /// without an eviction if possible, else by the least recently used.
    pub fn asleep(&self, kind: Kind, bytes: u64, barred: &Barred) -> Option<Place> {
        let of_kind = self.tenants.iter().filter(|(_, tenant)| {
            tenant.kind == kind && !tenant.awake && !tenant.busy && self.idle(tenant.chunk, barred)
        });
        of_kind
            .filter_map(|(engine, tenant)| self.clear(tenant.chunk, bytes, Some(*engine)))
            .min_by_key(|place| (self.recency(place), place.chunk))
    }

    /// Where a new engine with `bytes` on each GPU goes: GPUs without a resident, from the
    /// smallest free chunk that holds it (ARL-Tangram 5.3), else beside others where there
    /// is room, else in place of the least recently used. The first node and GPU of equals.
    pub fn place(&self, degree: Degree, bytes: u64, barred: &Barred) -> Option<Place> {
        self.free_chunk(degree, bytes, barred).or_else(|| {
            self.all(degree)
                .filter(|chunk| self.idle(*chunk, barred))
                .filter_map(|chunk| self.clear(chunk, bytes, None))
                .min_by_key(|place| (self.recency(place), self.neighbours(place), place.chunk))
        })
    }

    /// The chunk of `of` that could be had soonest by waiting, for an engine of this kind: the
    /// one with the fewest GPUs in use.
    pub(super) fn claim(
        &self,
        kind: Kind,
        bytes: u64,
        of: &[Chunk],
        barred: &Barred,
    ) -> Option<Chunk> {
        let may = |chunk: &Chunk| {
            let pinned = |gpu| {
                let there = self.on(chunk.node).filter(|(_, tenant)| {
                    tenant.pinned && tenant.kind != kind && tenant.chunk.gpus().contains(&gpu)
                });
                there.map(|(_, tenant)| tenant.bytes).sum::<u64>()
            };
            let memory = self.nodes[chunk.node].memory;
            self.allowed(*chunk, barred) && chunk.gpus().all(|gpu| pinned(gpu) + bytes <= memory)
        };
        let wait = |chunk: &Chunk| ((self.busy(chunk.node) & chunk.bits()).count_ones(), *chunk);
        of.iter().copied().filter(may).min_by_key(wait)
    }

    /// Whether `bytes` on each GPU of a chunk fit beside all that is there, but for `engine`
    /// itself.
    pub(super) fn fits(&self, engine: EngineId, chunk: Chunk, bytes: u64) -> bool {
        let memory = self.nodes[chunk.node].memory;
        chunk.gpus().all(|gpu| self.held(chunk.node, gpu, Some(engine)) + bytes <= memory)
    }

    /// Free chunks of every size: aligned, without a resident, not a half of a larger one.
    pub fn free(&self) -> arrange::Chunks {
        let mut counts = [0; 4];
        for node in 0..self.nodes.len() {
            let taken = self.taken(node, &Barred::new());
            for degree in Degree::ALL {
                let free = Chunk::all(node, self.nodes[node].gpus, degree);
                let free = free.filter(|chunk| self.is_free(*chunk, taken));
                counts[degree.level()] += free.count() as u32;
            }
        }
        arrange::Chunks::new(counts)
    }

    /// The part of the free GPUs that are in no free chunk of the largest size, from 0 to 1;
    /// 0 where none is free.
    pub fn fragmentation(&self) -> f64 {
        let counts = self.free().counts();
        let largest = Degree::ALL
            .into_iter()
            .rfind(|degree| self.nodes.iter().any(|node| node.gpus >= degree.gpus()));
        let total: u32 = Degree::ALL.iter().map(|d| counts[d.level()] * d.gpus()).sum();
        let Some(largest) = largest.filter(|_| total > 0) else { return 0.0 };
        1.0 - f64::from(counts[largest.level()] * largest.gpus()) / f64::from(total)
    }

    fn free_chunk(&self, degree: Degree, bytes: u64, barred: &Barred) -> Option<Place> {
        let mut size = Some(degree);
        while let Some(level) = size {
            for (node, of) in self.nodes.iter().enumerate() {
                let taken = self.taken(node, barred);
                let found = Chunk::all(node, of.gpus, level)
                    .filter(|chunk| self.is_free(*chunk, taken))
                    .filter_map(|chunk| Chunk::new(node, chunk.start(), degree))
                    .find_map(|chunk| self.clear(chunk, bytes, None));
                if found.is_some() {
                    return found;
                }
            }
            size = level.double();
        }
        None
    }

    /// Whether the chunk is free and no part of a larger free one.
    fn is_free(&self, chunk: Chunk, taken: u128) -> bool {
        let whole = |chunk: Chunk| {
            chunk.gpus().end <= self.nodes[chunk.node].gpus && taken & chunk.bits() == 0
        };
        whole(chunk) && !chunk.parent().is_some_and(whole)
    }

    /// GPUs of a node that have a resident, or cannot be given.
    fn taken(&self, node: usize, barred: &Barred) -> u128 {
        let awake = self.on(node).filter(|(_, tenant)| tenant.awake || tenant.busy);
        let awake = awake.fold(0, |bits, (_, tenant)| bits | tenant.chunk.bits());
        awake | self.nodes[node].lost | barred.get(&node).copied().unwrap_or(0)
    }

    fn busy(&self, node: usize) -> u128 {
        let busy = self.on(node).filter(|(_, tenant)| tenant.busy);
        busy.fold(0, |bits, (_, tenant)| bits | tenant.chunk.bits())
    }

    fn on(&self, node: usize) -> impl Iterator<Item = (EngineId, &Tenant)> {
        let engines = self.nodes[node].engines.iter();
        engines.filter_map(|engine| Some((*engine, self.tenants.get(engine)?)))
    }

    fn all(&self, degree: Degree) -> impl Iterator<Item = Chunk> {
        let nodes = self.nodes.iter().enumerate();
        nodes.flat_map(move |(index, node)| Chunk::all(index, node.gpus, degree))
    }

    fn allowed(&self, chunk: Chunk, barred: &Barred) -> bool {
        let node = &self.nodes[chunk.node];
        let barred = barred.get(&chunk.node).copied().unwrap_or(0);
        chunk.gpus().end <= node.gpus && chunk.bits() & (node.lost | barred) == 0
    }

    fn idle(&self, chunk: Chunk, barred: &Barred) -> bool {
        self.allowed(chunk, barred) && self.busy(chunk.node) & chunk.bits() == 0
    }

    /// Bytes that engines other than `but` have on a GPU.
    fn held(&self, node: usize, gpu: u32, but: Option<EngineId>) -> u64 {
        let there = self
            .on(node)
            .filter(|(engine, tenant)| Some(*engine) != but && tenant.chunk.gpus().contains(&gpu));
        there.map(|(_, tenant)| tenant.bytes).sum()
    }

    /// What must leave a chunk so that `bytes` on each of its GPUs fit, `asleep` being there
    /// already; `None` where that is not enough.
    fn clear(&self, chunk: Chunk, bytes: u64, asleep: Option<EngineId>) -> Option<Place> {
        let memory = self.nodes[chunk.node].memory;
        let mut over: BTreeMap<u32, u64> = chunk
            .gpus()
            .map(|gpu| (gpu, (self.held(chunk.node, gpu, asleep) + bytes).saturating_sub(memory)))
            .filter(|(_, over)| *over > 0)
            .collect();
        let mut place = Place { chunk, asleep, evict: Vec::new(), stop: Vec::new() };
        let mut others: Vec<(EngineId, &Tenant)> = self
            .on(chunk.node)
            .filter(|(engine, tenant)| {
                Some(*engine) != asleep
                    && tenant.chunk.overlaps(chunk)
                    && !tenant.busy
                    && !tenant.pinned
            })
            .collect();
        others.sort_by_key(|(engine, tenant)| (tenant.used, *engine));
        let mut relieve = |tenant: &Tenant, freed: u64| {
            let helps = freed > 0 && tenant.chunk.gpus().any(|gpu| over.contains_key(&gpu));
            if helps {
                tenant.chunk.gpus().for_each(|gpu| {
                    if let Some(over) = over.get_mut(&gpu) {
                        *over = over.saturating_sub(freed);
                    }
                });
                over.retain(|_, over| *over > 0);
            }
            helps
        };
        for (engine, tenant) in others.iter().filter(|(_, tenant)| tenant.awake) {
            if relieve(tenant, tenant.bytes - tenant.residue.min(tenant.bytes)) {
                place.evict.push(*engine);
            }
        }
        for (engine, tenant) in &others {
            // One that serves is ended only where putting it to sleep is not enough.
            let left = if tenant.awake { tenant.residue.min(tenant.bytes) } else { tenant.bytes };
            if relieve(tenant, left) {
                place.evict.retain(|other| other != engine);
                place.stop.push(*engine);
            }
        }
        over.is_empty().then_some(place)
    }

    /// How many must be ended, which costs a launch later, and when the last of those that
    /// must leave was used.
    fn recency(&self, place: &Place) -> (usize, Option<Time>) {
        let leaving = place.evict.iter().chain(&place.stop).filter_map(|engine| self.get(*engine));
        (place.stop.len(), leaving.map(|tenant| tenant.used).max())
    }

    /// How many residents stay beside it, and when the last of them was used.
    fn neighbours(&self, place: &Place) -> (usize, Option<Time>) {
        let beside = self.on(place.chunk.node).filter(|(engine, tenant)| {
            tenant.awake && tenant.chunk.overlaps(place.chunk) && !place.evict.contains(engine)
        });
        let used: Vec<Time> = beside.map(|(_, tenant)| tenant.used).collect();
        (used.len(), used.into_iter().max())
    }
}
