//! Who is on which GPUs, and where the next one goes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::chunk::{Chunk, Degree, MOST_GPUS};
use super::tenant::{EngineId, Kind, State, Tenant, Turn};
use crate::time::Time;

/// A chunk for an engine that is not resident, and what has to leave it first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub chunk: Chunk,
    /// The engine that is woken there, where it sleeps or can be moved to; `None`: it is to be
    /// launched.
    pub asleep: Option<EngineId>,
    /// Residents to be put to sleep, the least recently used first.
    pub evict: Vec<EngineId>,
    /// Engines to be ended, since even asleep they keep too much.
    pub stop: Vec<EngineId>,
}

/// GPUs that are not to be given, by node; nodes that are missing have none.
pub type Barred = BTreeMap<usize, u128>;

/// The GPUs of a pool. Several engines may have memory on a GPU at once, as much as fits.
/// One at most executes there, and one at most is moved there at the same time.
#[derive(Debug, Default)]
pub struct Chunks {
    pub(super) nodes: Vec<Node>,
    tenants: BTreeMap<EngineId, Tenant>,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) gpus: u32,
    /// Bytes of each GPU.
    memory: u64,
    /// GPUs that fell off.
    pub(super) lost: u128,
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

    /// Moves an engine to another chunk of its node.
    pub(super) fn relocate(&mut self, engine: EngineId, chunk: Chunk) {
        if let Some(tenant) = self.tenants.get_mut(&engine).filter(|of| of.chunk.node == chunk.node)
        {
            tenant.chunk = chunk;
        }
    }

    /// What is known of an engine.
    pub fn get(&self, engine: EngineId) -> Option<&Tenant> {
        self.tenants.get(&engine)
    }

    /// The same, to change all but its chunk.
    pub fn get_mut(&mut self, engine: EngineId) -> Option<&mut Tenant> {
        self.tenants.get_mut(&engine)
    }

    /// The first engine of this kind that is resident and may execute now. `turns` are GPUs on
    /// which nobody else is to begin, `held` engines that are to make room first.
    pub fn resident(
        &self,
        kind: Kind,
        turns: &Barred,
        held: &BTreeSet<EngineId>,
    ) -> Option<EngineId> {
        let may = |engine: &EngineId, tenant: &Tenant| {
            tenant.kind == kind
                && tenant.state == State::Resident
                && !tenant.executing
                && self.allowed(tenant.chunk, turns)
                && !held.contains(engine)
                && (self.executing(tenant.chunk.node) | self.leaving(tenant.chunk.node))
                    & tenant.chunk.bits()
                    == 0
        };
        let of_kind = self.tenants.iter().filter(|(engine, tenant)| may(engine, tenant));
        of_kind.min_by_key(|(_, tenant)| tenant.chunk).map(|(engine, _)| *engine)
    }

    /// Where an engine of this kind that sleeps can be woken with `bytes` on each GPU:
    /// without an eviction if possible, else by the least recently used. Others may execute
    /// there meanwhile. One that is bound to no GPU goes elsewhere on its node where that costs
    /// less than the chunk that it left: beside the fewest, from the smallest free chunk.
    pub fn asleep(&self, kind: Kind, bytes: u64, turn: Turn, rooms: &Barred) -> Option<Place> {
        let of_kind = self
            .tenants
            .iter()
            .filter(|(_, tenant)| tenant.kind == kind && tenant.state == State::Asleep);
        let places = of_kind.flat_map(|(engine, tenant)| {
            let chunks = self.reach(tenant).filter(|chunk| self.open(*chunk, rooms));
            let places = chunks.filter_map(|chunk| self.clear(chunk, bytes, turn, Some(*engine)));
            places.map(|place| (place.chunk != tenant.chunk, place))
        });
        let best = places.min_by_key(|(moves, place)| {
            let elsewhere = moves.then(|| (self.neighbours(place), self.around(place.chunk)));
            (self.cost(place), elsewhere, place.chunk)
        });
        best.map(|(_, place)| place)
    }

    /// The chunks on which a sleeping engine can be woken: the one that it left, and where it is
    /// bound to none all of its node without another engine of its kind.
    pub(super) fn reach(&self, of: &Tenant) -> impl Iterator<Item = Chunk> {
        let Tenant { kind, chunk: left, .. } = *of;
        let gpus = self.nodes[left.node].gpus;
        let all = of.is_unbound().then(|| Chunk::all(left.node, gpus, kind.degree));
        let others = all.into_iter().flatten().filter(move |chunk| {
            let kin = |of: &Tenant| of.kind == kind && of.chunk == *chunk;
            *chunk != left && !self.on(chunk.node).any(|(_, of)| kin(of))
        });
        std::iter::once(left).chain(others)
    }

    /// Where a new engine with `bytes` on each GPU goes: GPUs without a resident, from the
    /// smallest free chunk that holds it (ARL-Tangram 5.3), else beside others where there
    /// is room, else in place of the least recently used; there where nobody executes, if
    /// possible. Not where an engine of its kind is. The first node and GPU of equals.
    pub fn place(&self, kind: Kind, bytes: u64, turn: Turn, rooms: &Barred) -> Option<Place> {
        self.free_chunk(kind.degree, bytes, turn, rooms).or_else(|| {
            let own = |chunk: &Chunk| {
                self.on(chunk.node).any(|(_, of)| of.kind == kind && of.chunk == *chunk)
            };
            self.all(kind.degree)
                .filter(|chunk| self.open(*chunk, rooms) && !own(chunk))
                .filter_map(|chunk| self.clear(chunk, bytes, turn, None))
                .min_by_key(|place| (self.cost(place), self.neighbours(place), place.chunk))
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
                there.map(|(_, tenant)| tenant.held().max(tenant.planned())).sum::<u64>()
            };
            let memory = self.nodes[chunk.node].memory;
            self.allowed(*chunk, barred) && chunk.gpus().all(|gpu| pinned(gpu) + bytes <= memory)
        };
        let wait = |chunk: &Chunk| (self.in_use(*chunk), *chunk);
        of.iter().copied().filter(may).min_by_key(wait)
    }

    /// Engines of a chunk that are to make room for one of this kind with `bytes` on each GPU: the
    /// two do not fit beside what all others keep when they sleep, and pinned ones always. Those
    /// that serve first come to it later.
    pub(super) fn in_the_way(
        &self,
        kind: Kind,
        bytes: u64,
        chunk: Chunk,
    ) -> impl Iterator<Item = EngineId> {
        let memory = self.nodes[chunk.node].memory;
        let least = move |other: &Tenant| {
            if other.kind == kind {
                0
            } else if other.pinned {
                other.device
            } else {
                other.kept()
            }
        };
        let there = self.overlapping(chunk).filter(move |(engine, tenant)| {
            let all = |gpu| {
                let others = self.sum(chunk.node, gpu, Some(*engine), least);
                bytes.saturating_add(tenant.device).saturating_add(others)
            };
            let mut shared = chunk.gpus().filter(|gpu| tenant.chunk.gpus().contains(gpu));
            !tenant.serves_first() && shared.any(|gpu| all(gpu) > memory)
        });
        there.map(|(engine, _)| engine)
    }

    /// Whether an engine can be restored on its chunk now: there is room beside all that is
    /// there at this moment, and nobody whose state is unknown.
    pub(super) fn is_clear(&self, engine: EngineId) -> bool {
        let Some(Tenant { chunk, device, .. }) = self.get(engine).copied() else { return false };
        self.leaving(chunk.node) & chunk.bits() == 0 && self.fits(engine, chunk, device)
    }

    /// Whether `bytes` on each GPU of a chunk fit beside all that is there, but for `engine`
    /// itself.
    pub(super) fn fits(&self, engine: EngineId, chunk: Chunk, bytes: u64) -> bool {
        let memory = self.nodes[chunk.node].memory;
        let held = |gpu| self.sum(chunk.node, gpu, Some(engine), Tenant::held);
        chunk.gpus().all(|gpu| held(gpu) + bytes <= memory)
    }

    /// Whether an engine that is to leave fits beside all that was promised.
    pub(super) fn can_stay(&self, engine: EngineId) -> bool {
        let Some(Tenant { chunk, device, .. }) = self.get(engine).copied() else { return false };
        let memory = self.nodes[chunk.node].memory;
        let planned = |gpu| self.sum(chunk.node, gpu, Some(engine), Tenant::planned);
        chunk.gpus().all(|gpu| planned(gpu) + device <= memory)
    }

    /// GPUs of a node on which memory is being moved.
    pub(super) fn moving(&self, node: usize) -> u128 {
        self.gpus_of(node, Tenant::is_moving)
    }

    /// GPUs of a node with an engine whose state is unknown.
    pub(super) fn leaving(&self, node: usize) -> u128 {
        self.gpus_of(node, Tenant::is_leaving)
    }

    /// How many GPUs of a chunk are in use: by what executes, is restored, or is about to. What
    /// is on its way to sleep leaves them sooner than any that is yet to be sent there.
    pub(super) fn in_use(&self, chunk: Chunk) -> u32 {
        let used = |tenant: &Tenant| tenant.executing || tenant.is_coming() || tenant.is_leaving();
        (self.gpus_of(chunk.node, used) & chunk.bits()).count_ones()
    }

    /// Engines that have a GPU of this chunk.
    pub(super) fn overlapping(&self, chunk: Chunk) -> impl Iterator<Item = (EngineId, &Tenant)> {
        self.on(chunk.node).filter(move |(_, tenant)| tenant.chunk.overlaps(chunk))
    }

    /// All engines, to change all but their chunks.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (EngineId, &mut Tenant)> {
        self.tenants.iter_mut().map(|(id, tenant)| (*id, tenant))
    }

    fn executing(&self, node: usize) -> u128 {
        self.gpus_of(node, |tenant| tenant.executing)
    }

    pub(super) fn gpus_of(&self, node: usize, which: impl Fn(&Tenant) -> bool) -> u128 {
        let there = self.on(node).filter(|(_, tenant)| which(tenant));
        there.fold(0, |bits, (_, tenant)| bits | tenant.chunk.bits())
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

    /// Whether an engine may be given a place there.
    fn open(&self, chunk: Chunk, rooms: &Barred) -> bool {
        self.allowed(chunk, rooms) && self.leaving(chunk.node) & chunk.bits() == 0
    }

    /// Bytes on a GPU of engines other than `but`.
    fn sum(
        &self,
        node: usize,
        gpu: u32,
        but: Option<EngineId>,
        bytes: impl Fn(&Tenant) -> u64,
    ) -> u64 {
        let there = self
            .on(node)
            .filter(|(engine, tenant)| Some(*engine) != but && tenant.chunk.gpus().contains(&gpu));
        there.map(|(_, tenant)| bytes(tenant)).sum()
    }

    /// What must leave a chunk so that `bytes` on each of its GPUs fit, `asleep` being there
    /// already and all that was decided before done; `None` where that is not enough.
    pub(super) fn clear(
        &self,
        chunk: Chunk,
        bytes: u64,
        turn: Turn,
        asleep: Option<EngineId>,
    ) -> Option<Place> {
        let memory = self.nodes[chunk.node].memory;
        let planned = |gpu| self.sum(chunk.node, gpu, asleep, Tenant::planned);
        let mut over: BTreeMap<u32, u64> = chunk
            .gpus()
            .map(|gpu| (gpu, (planned(gpu) + bytes).saturating_sub(memory)))
            .filter(|(_, over)| *over > 0)
            .collect();
        let mut place = Place { chunk, asleep, evict: Vec::new(), stop: Vec::new() };
        let mut others: Vec<(EngineId, &Tenant)> = self
            .overlapping(chunk)
            .filter(|(engine, tenant)| Some(*engine) != asleep && tenant.yields_to(turn))
            .collect();
        // Those that somebody waits for come last, and of them those who wait longest.
        others.sort_by_key(|(engine, tenant)| (tenant.wanted.map(Reverse), tenant.used, *engine));
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
        let awake = |tenant: &Tenant| tenant.state == State::Resident;
        for (engine, tenant) in others.iter().filter(|(_, tenant)| awake(tenant)) {
            if relieve(tenant, tenant.device.saturating_sub(tenant.residue)) {
                place.evict.push(*engine);
            }
        }
        for (engine, tenant) in &others {
            // One that serves is ended only where putting it to sleep is not enough.
            let left = if awake(tenant) { tenant.device } else { u64::MAX };
            if relieve(tenant, tenant.kept().min(left)) {
                place.evict.retain(|other| other != engine);
                place.stop.push(*engine);
            }
        }
        over.is_empty().then_some(place)
    }

    /// How many must be ended, which costs a launch later, how many GPUs are in use, and when
    /// the last of those that must leave was used.
    fn cost(&self, place: &Place) -> (usize, u32, Option<Time>) {
        let leaving = place.evict.iter().chain(&place.stop).filter_map(|engine| self.get(*engine));
        let used = leaving.map(|tenant| tenant.used).max();
        (place.stop.len(), self.in_use(place.chunk), used)
    }

    /// How many residents stay beside it, and when the last of them was used.
    fn neighbours(&self, place: &Place) -> (usize, Option<Time>) {
        let beside = self.overlapping(place.chunk).filter(|(engine, tenant)| {
            tenant.state != State::Asleep && !place.evict.contains(engine)
        });
        let used: Vec<Time> = beside.map(|(_, tenant)| tenant.used).collect();
        (used.len(), used.into_iter().max())
    }
}
