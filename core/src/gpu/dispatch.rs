//! Who is served next, and which engines are restored for those who wait.

use std::collections::BTreeSet;

use super::chunk::Chunk;
use super::chunks::{Barred, Place};
use super::config::Footprint;
use super::pool::{Engine, Pool};
use super::tenant::{EngineId, Kind, State, Tenant, Turn};
use crate::time::Time;

/// All GPUs of a node.
const WHOLE: u128 = u128::MAX;

/// What those that wait keep from those that came later.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// GPUs on which the next to execute is known.
    pub(super) turns: Barred,
    /// GPUs whose memory is spoken for: nothing is promised a place there.
    pub(super) rooms: Barred,
    /// Engines in the way there: nothing begins on them. Those that fit beside go on. Of the others none executes in the end, and of those that do
    /// one at most on each GPU: the rest idles, and leaves as soon as that is enough.
    pub(super) held: BTreeSet<EngineId>,
    /// Nodes whose memory is spoken for: no engine is launched there.
    memory: BTreeSet<usize>,
}

/// What a look at one service's line led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Something began: look again.
    Began,
    /// Those that wait have to wait.
    Waits,
}

impl Pool {
    /// Starts what can be started, in order of submission.
    pub(super) fn round(&mut self, now: Time) {
        self.empty_drained(now);
        self.release_unwanted();
        self.begin_moves(now);
        self.mark_wanted(now);
        let mut claims = self.closed();
        let heads =
            self.waiting.iter().filter_map(|(kind, line)| Some((line.keys().next()?, kind)));
        let mut heads: BTreeSet<(Turn, Kind)> = heads.map(|(turn, kind)| (*turn, *kind)).collect();
        while let Some((turn, kind)) = heads.pop_first() {
            if self.step(kind, turn, &mut claims, now) == Step::Waits {
                continue;
            }
            if let Some(turn) = self.waiting.get(&kind).and_then(|line| line.keys().next()) {
                heads.insert((*turn, kind));
            }
        }
    }

    /// Brings the books of the chunks in line with who waits, and with the time.
    pub(super) fn mark_wanted(&mut self, now: Time) {
        for (id, tenant) in self.chunks.all_mut() {
            let line = self.waiting.get(&tenant.kind);
            tenant.wanted = line.and_then(|line| line.keys().next().copied());
            tenant.on_term = self.engines.get(&id).is_some_and(|engine| now < engine.term);
        }
    }

    /// GPUs of nodes that take nothing.
    pub(super) fn closed(&self) -> Claims {
        let closed = |index: &usize| !self.is_up(*index) || self.nodes[*index].draining;
        let closed = (0..self.nodes.len()).filter(closed);
        let turns: Barred = closed.map(|index| (index, WHOLE)).collect();
        Claims { rooms: turns.clone(), turns, ..Claims::default() }
    }

    /// Where an engine of this kind could be restored for one whose turn this is.
    pub(super) fn find_place(&self, kind: Kind, turn: Turn, claims: &Claims) -> Option<Place> {
        let footprint = self.footprint(kind)?;
        self.chunks.asleep(kind, footprint.device, turn, &claims.rooms).or_else(|| {
            let mut barred = claims.rooms.clone();
            for index in 0..self.nodes.len() {
                if claims.memory.contains(&index) || self.memory_short(index, &footprint) > 0 {
                    barred.insert(index, WHOLE);
                }
            }
            self.chunks.place(kind, footprint.device, turn, &barred)
        })
    }

    /// Bytes of a node's memory that a further engine would lack.
    fn memory_short(&self, node: usize, need: &Footprint) -> u64 {
        self.host_used(node).saturating_add(need.host).saturating_sub(self.nodes[node].host)
    }

    fn step(&mut self, kind: Kind, turn: Turn, claims: &mut Claims, now: Time) -> Step {
        let Some(batch) = self.service(kind).map(|service| service.batch.max(1)) else {
            return Step::Waits;
        };
        if let Some(engine) = self.chunks.resident(kind, &claims.turns, &claims.held) {
            self.run(engine, batch, now);
            return Step::Began;
        }
        // One that executes takes more only where nobody waits for its GPUs.
        if let Some((engine, room)) = self.with_room(kind, batch, claims) {
            self.run(engine, room, now);
            return Step::Began;
        }
        // The first that is there is the next to execute on its GPUs, unless it waits behind one
        // that needs their memory: who is to serve before that must not wait for it.
        let holding: Vec<Chunk> =
            self.serving(kind).flat_map(|(id, engine)| self.reach(id, engine)).collect();
        let there = self
            .serving(kind)
            .filter(|(id, engine)| engine.state == State::Resident && !claims.held.contains(id));
        let next = there.map(|(_, engine)| engine.chunk);
        let next = next.min_by_key(|chunk| self.chunks.in_use(*chunk));
        if let Some(chunk) = next {
            *claims.turns.entry(chunk.node).or_insert(0) |= chunk.bits();
        }
        let waiting = self.waiting.get(&kind).map_or(0, std::collections::BTreeMap::len);
        let coming = self.coming(kind);
        let covered = batch * coming;
        if covered >= waiting || self.ailing.get(&kind).is_some_and(|ailing| now < ailing.until) {
            return Step::Waits;
        }
        let Some(footprint) = self.footprint(kind) else { return Step::Waits };
        if let Some(place) = self.find_place(kind, turn, claims)
            && self.is_worth(kind, &place, waiting - covered, batch)
        {
            self.reserve(kind, place, now);
            return Step::Began;
        }
        if next.is_some() || coming > 0 {
            return Step::Waits;
        }
        let claim = |barred: &Barred| self.chunks.claim(kind, footprint.device, &holding, barred);
        // One that sleeps where another stays forever is as good as none.
        let claim = if claim(&Barred::new()).is_some() {
            claim(&claims.rooms).map(|chunk| (chunk, footprint.device))
        } else {
            self.claim_launch(kind, turn, &footprint, claims, now)
        };
        if let Some((chunk, bytes)) = claim {
            *claims.rooms.entry(chunk.node).or_insert(0) |= chunk.bits();
            claims.held.extend(self.chunks.in_the_way(kind, bytes, chunk));
        }
        Step::Waits
    }

    /// Whether an engine that is being ended there has withstood a try: nobody knows for how long
    /// its GPUs are gone.
    fn stuck(&self, chunk: Chunk) -> bool {
        let withstands = |id| self.engines.get(&id).is_some_and(Engine::withstands);
        self.chunks.overlapping(chunk).any(|(id, _)| withstands(id))
    }

    /// The chunks on which an engine can serve, but for those beside one that does not end.
    fn reach(&self, id: EngineId, engine: &Engine) -> Vec<Chunk> {
        let tenant = self.chunks.get(id).filter(|tenant| tenant.is_unbound());
        let reach = tenant.map_or(vec![engine.chunk], |tenant| self.chunks.reach(tenant).collect());
        reach.into_iter().filter(|chunk| !self.stuck(*chunk)).collect()
    }

    /// Engines of a kind that are not being ended, on nodes in service and not beside one that
    /// does not end.
    pub(super) fn serving(&self, kind: Kind) -> impl Iterator<Item = (EngineId, &Engine)> {
        let serving = self.engines.iter().filter(move |(id, engine)| {
            let open = self.is_up(engine.chunk.node) && !self.nodes[engine.chunk.node].draining;
            let leaving = matches!(engine.state, State::Leaving { .. });
            let kin = engine.kind == kind && open && !leaving;
            kin && (!self.stuck(engine.chunk) || !self.reach(**id, engine).is_empty())
        });
        serving.map(|(id, engine)| (*id, engine))
    }

    /// Engines of a kind that will run those that wait. One that is there, beside an engine
    /// that is being ended, is not counted on.
    fn coming(&self, kind: Kind) -> usize {
        let coming = self.serving(kind).filter(|(id, engine)| {
            let chunk = engine.chunk;
            let blocked = engine.state == State::Resident
                && self.chunks.leaving(chunk.node) & chunk.bits() != 0;
            !blocked && self.chunks.get(*id).is_some_and(Tenant::is_coming)
        });
        coming.count()
    }

    /// An engine that executes fewer actions than it could, and how many fewer.
    fn with_room(&self, kind: Kind, batch: usize, claims: &Claims) -> Option<(EngineId, usize)> {
        let open = |chunk: Chunk| {
            let barred = claims.turns.get(&chunk.node).copied().unwrap_or(0);
            barred & chunk.bits() == 0
        };
        let executing = self.engines.iter().filter(|(id, engine)| {
            engine.kind == kind
                && engine.state == State::Resident
                && !engine.running.is_empty()
                && !claims.held.contains(id)
                && open(engine.chunk)
                && self.chunks.leaving(engine.chunk.node) & engine.chunk.bits() == 0
        });
        executing
            .map(|(id, engine)| (*id, batch.saturating_sub(engine.running.len())))
            .find(|(_, room)| *room > 0)
    }

    /// For a service that has no engine to wait for: claims a node's memory, and makes room there
    /// by ending its least recently used engines. The chunk to wait for, where that helps, and the
    /// bytes of each of its GPUs that must be had there: all, where an engine has to end.
    fn claim_launch(
        &mut self,
        kind: Kind,
        turn: Turn,
        need: &Footprint,
        claims: &mut Claims,
        now: Time,
    ) -> Option<(Chunk, u64)> {
        let chunks = |node: usize| {
            let gpus = self.chunks.node(node).map_or(0, |(gpus, _)| gpus);
            Chunk::all(node, gpus, kind.degree).filter(|chunk| !self.stuck(*chunk))
        };
        let suits = |node: &usize| {
            let large = self.chunks.node(*node).is_some_and(|(_, memory)| memory >= need.device)
                && chunks(*node).next().is_some();
            let open = claims.rooms.get(node) != Some(&WHOLE) && !claims.memory.contains(node);
            large && open && self.nodes[*node].host >= need.host
        };
        let nodes: Vec<usize> = (0..self.nodes.len()).filter(suits).collect();
        // Where memory is there, GPUs are what it waits for.
        let roomy: Vec<Chunk> = nodes
            .iter()
            .filter(|node| self.memory_short(**node, need) == 0)
            .flat_map(|node| chunks(*node))
            .collect();
        if let Some(chunk) = self.chunks.claim(kind, need.device, &roomy, &claims.rooms) {
            claims.memory.insert(chunk.node);
            return Some((chunk, need.device));
        }
        let node = *nodes.iter().find(|node| self.can_free(**node, need))?;
        claims.memory.insert(node);
        // Those of its own kind may go too: they are where they cannot be restored.
        let turn = turn.saturating_sub(1);
        let chunk = self.free_memory(node, self.memory_short(node, need), turn, now)?;
        Some((chunk, u64::MAX))
    }

    /// Whether a node's memory would be enough without the engines that can be ended.
    fn can_free(&self, node: usize, need: &Footprint) -> bool {
        let stays = self.engines.iter().filter(|(id, engine)| {
            let pinned = self.chunks.get(**id).is_some_and(|tenant| tenant.pinned);
            engine.chunk.node == node && (pinned || engine.withstands())
        });
        let stays = stays.filter_map(|(_, engine)| Some(self.footprint(engine.kind)?.host));
        stays.sum::<u64>().saturating_add(need.host) <= self.nodes[node].host
    }

    /// Ends engines of a node that idle, the least recently used first, those that sleep
    /// before residents. Where that is not enough, the chunk of the one to wait for.
    fn free_memory(&mut self, node: usize, short: u64, turn: Turn, now: Time) -> Option<Chunk> {
        let on_node = self.engines.iter().filter(|(_, engine)| engine.chunk.node == node);
        let (mut leaving, mut idle, mut others) = (0, Vec::new(), Vec::new());
        for (id, engine) in on_node {
            let host = self.footprint(engine.kind).map_or(0, |footprint| footprint.host);
            let Some(tenant) = self.chunks.get(*id) else { continue };
            match engine.state {
                // Nobody knows when that comes back.
                State::Leaving { .. } if engine.withstands() => {}
                State::Leaving { .. } => leaving += host,
                _ if tenant.pinned => {}
                _ if tenant.yields_to(turn) => {
                    idle.push((engine.state != State::Asleep, tenant.used, *id, host));
                }
                _ => others.push((tenant.used, engine.chunk)),
            }
        }
        let mut short = short.saturating_sub(leaving);
        if idle.iter().map(|(.., host)| host).sum::<u64>() < short {
            return others.into_iter().min().map(|(_, chunk)| chunk);
        }
        idle.sort_unstable();
        for (.., id, host) in idle {
            if short == 0 {
                break;
            }
            short = short.saturating_sub(host);
            self.stop(id, false, now);
        }
        None
    }
}
