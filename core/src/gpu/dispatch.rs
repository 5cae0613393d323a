//! Who is served next, and which engines are restored for those who wait.

use std::collections::BTreeSet;
use std::time::Duration;

use super::chunks::{Barred, EngineId, Kind, Place};
use super::config::Footprint;
use super::pool::{Engine, Pool, State};
use super::{Chunk, Phase};
use crate::time::Time;

/// All GPUs of a node.
const WHOLE: u128 = u128::MAX;

/// What those that wait keep from those that came later.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// GPUs.
    pub(super) gpus: Barred,
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
        let reserved: Vec<EngineId> = self
            .engines
            .iter()
            .filter(|(_, engine)| matches!(engine.state, State::Reserved { .. }))
            .map(|(id, _)| *id)
            .collect();
        for id in reserved {
            self.restore_if_clear(id, now);
        }
        let mut claims = self.closed();
        let heads =
            self.waiting.iter().filter_map(|(kind, line)| Some((line.keys().next()?, kind)));
        let mut heads: BTreeSet<(u64, Kind)> = heads.map(|(seq, kind)| (*seq, *kind)).collect();
        while let Some((_, kind)) = heads.pop_first() {
            if self.step(kind, &mut claims, now) == Step::Waits {
                continue;
            }
            if let Some(seq) = self.waiting.get(&kind).and_then(|line| line.keys().next()) {
                heads.insert((*seq, kind));
            }
        }
    }

    /// GPUs of nodes that take nothing.
    pub(super) fn closed(&self) -> Claims {
        let closed = self.nodes.iter().enumerate().filter(|(_, home)| !home.up || home.draining);
        let gpus = closed.map(|(index, _)| (index, WHOLE)).collect();
        Claims { gpus, memory: BTreeSet::new() }
    }

    /// Where an engine of this kind could be restored now.
    pub(super) fn find_place(&self, kind: Kind, claims: &Claims) -> Option<Place> {
        let footprint = self.footprint(kind)?;
        self.chunks.asleep(kind, footprint.device, &claims.gpus).or_else(|| {
            let mut barred = claims.gpus.clone();
            for index in 0..self.nodes.len() {
                if claims.memory.contains(&index) || self.memory_short(index, &footprint) > 0 {
                    barred.insert(index, WHOLE);
                }
            }
            self.chunks.place(kind.degree, footprint.device, &barred)
        })
    }

    /// Bytes of a node's memory that a further engine would lack.
    fn memory_short(&self, node: usize, need: &Footprint) -> u64 {
        self.host_used(node).saturating_add(need.host).saturating_sub(self.nodes[node].host)
    }

    pub(super) fn time_to_restore(&self, kind: Kind, place: &Place) -> Duration {
        let phase = if place.asleep.is_some() { Phase::Wake } else { Phase::Launch };
        let evictions = place
            .evict
            .iter()
            .chain(&place.stop)
            .filter_map(|victim| self.expected(self.engines.get(victim)?.kind, Phase::Evict));
        let evict = evictions.max().unwrap_or_default();
        evict.saturating_add(self.expected(kind, phase).unwrap_or_default())
    }

    fn step(&mut self, kind: Kind, claims: &mut Claims, now: Time) -> Step {
        let Some(batch) = self.service(kind).map(|service| service.batch.max(1)) else {
            return Step::Waits;
        };
        if let Some(engine) = self.chunks.resident(kind, &claims.gpus) {
            self.run(engine, batch, now);
            return Step::Began;
        }
        // One that executes takes more only where nobody waits for its GPUs.
        if let Some((engine, room)) = self.with_room(kind, batch, &claims.gpus) {
            self.run(engine, room, now);
            return Step::Began;
        }
        let waiting = self.waiting.get(&kind).map_or(0, std::collections::BTreeMap::len);
        let coming = |engine: &&Engine| {
            matches!(engine.state, State::Reserved { .. } | State::Restoring { .. })
        };
        let covered = batch * self.serving(kind).filter(coming).count();
        if covered >= waiting || self.ailing.get(&kind).is_some_and(|ailing| now < ailing.until) {
            return Step::Waits;
        }
        let Some(footprint) = self.footprint(kind) else { return Step::Waits };
        if let Some(place) = self.find_place(kind, claims)
            && self.is_worth(kind, &place, waiting - covered, batch)
        {
            self.reserve(kind, place, now);
            return Step::Began;
        }
        let holding: Vec<Chunk> = self.serving(kind).map(|engine| engine.chunk).collect();
        let claim = if holding.is_empty() {
            self.claim_launch(kind, &footprint, claims, now)
        } else {
            self.chunks.claim(kind, footprint.device, &holding, &claims.gpus)
        };
        if let Some(chunk) = claim {
            *claims.gpus.entry(chunk.node).or_insert(0) |= chunk.bits();
        }
        Step::Waits
    }

    /// Engines of a kind that are not being ended, on nodes in service.
    fn serving(&self, kind: Kind) -> impl Iterator<Item = &Engine> {
        self.engines.values().filter(move |engine| {
            let home = &self.nodes[engine.chunk.node];
            let leaving = matches!(engine.state, State::Leaving { .. });
            engine.kind == kind && home.up && !home.draining && !leaving
        })
    }

    /// An engine that executes fewer actions than it could, and how many fewer.
    fn with_room(&self, kind: Kind, batch: usize, barred: &Barred) -> Option<(EngineId, usize)> {
        let open =
            |chunk: Chunk| barred.get(&chunk.node).is_none_or(|barred| barred & chunk.bits() == 0);
        let executing = self.engines.iter().filter(|(_, engine)| {
            engine.kind == kind
                && engine.state == State::Resident
                && !engine.running.is_empty()
                && open(engine.chunk)
        });
        executing
            .map(|(id, engine)| (*id, batch.saturating_sub(engine.running.len())))
            .find(|(_, room)| *room > 0)
    }

    /// Whether another engine would be there before those that exist have served `waiting`.
    fn is_worth(&self, kind: Kind, place: &Place, waiting: usize, batch: usize) -> bool {
        let engines = self.serving(kind).filter(|engine| engine.state != State::Asleep).count();
        if engines == 0 {
            return true;
        }
        let Some(run) = self.expected(kind, Phase::Run) else { return place.asleep.is_some() };
        let rounds = waiting.div_ceil(batch * engines);
        let wait = run.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
        self.time_to_restore(kind, place) <= wait
    }

    /// For a service that has no engine at all: claims a node's memory, and makes room there
    /// by ending its least recently used engines. The chunk to wait for, where that helps.
    fn claim_launch(
        &mut self,
        kind: Kind,
        need: &Footprint,
        claims: &mut Claims,
        now: Time,
    ) -> Option<Chunk> {
        let suits = |node: &usize| {
            let large = self
                .chunks
                .node(*node)
                .is_some_and(|(gpus, memory)| gpus >= kind.degree.gpus() && memory >= need.device);
            let open = claims.gpus.get(node) != Some(&WHOLE) && !claims.memory.contains(node);
            large && open && self.nodes[*node].host >= need.host
        };
        let nodes: Vec<usize> = (0..self.nodes.len()).filter(suits).collect();
        // Where memory is there, GPUs are what it waits for.
        let roomy: Vec<Chunk> = nodes
            .iter()
            .filter(|node| self.memory_short(**node, need) == 0)
            .flat_map(|node| {
                let gpus = self.chunks.node(*node).map_or(0, |(gpus, _)| gpus);
                Chunk::all(*node, gpus, kind.degree)
            })
            .collect();
        if let Some(chunk) = self.chunks.claim(kind, need.device, &roomy, &claims.gpus) {
            claims.memory.insert(chunk.node);
            return Some(chunk);
        }
        let node = *nodes.iter().find(|node| self.can_free(**node, need))?;
        claims.memory.insert(node);
        self.free_memory(node, self.memory_short(node, need), now)
    }

    /// Whether a node's memory would be enough without the engines that are not pinned.
    fn can_free(&self, node: usize, need: &Footprint) -> bool {
        let stays = self.engines.iter().filter(|(id, engine)| {
            let pinned = self.chunks.get(**id).is_some_and(|tenant| tenant.pinned);
            engine.chunk.node == node && pinned
        });
        let stays = stays.filter_map(|(_, engine)| Some(self.footprint(engine.kind)?.host));
        stays.sum::<u64>().saturating_add(need.host) <= self.nodes[node].host
    }

    /// Ends engines of a node that idle, the least recently used first, those that sleep
    /// before residents. Where that is not enough, the chunk of the one to wait for.
    fn free_memory(&mut self, node: usize, short: u64, now: Time) -> Option<Chunk> {
        let on_node = self.engines.iter().filter(|(_, engine)| engine.chunk.node == node);
        let (mut leaving, mut idle, mut others) = (0, Vec::new(), Vec::new());
        for (id, engine) in on_node {
            let host = self.footprint(engine.kind).map_or(0, |footprint| footprint.host);
            let Some(tenant) = self.chunks.get(*id) else { continue };
            match engine.state {
                State::Leaving { .. } => leaving += host,
                _ if tenant.pinned => {}
                State::Asleep | State::Resident if engine.running.is_empty() => {
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
