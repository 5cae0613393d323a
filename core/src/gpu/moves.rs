//! Engines on their way to the device and back. One move at a time on a GPU, in the order in
//! which they were decided; what executes there goes on.
//!
//! A launch is a move too: engines measure the memory that is left while they start, and end
//! where another takes or frees some meanwhile.

use std::collections::BTreeSet;

use super::chunks::{Barred, Place};
use super::command::Command;
use super::pool::{Engine, Pool};
use super::proof::Order;
use super::tenant::{EngineId, Kind, State};
use crate::time::Time;

impl Pool {
    /// Promises an engine its place, and decides that what is in its way leaves.
    ///
    /// The place fits beside all that was promised before. So whoever has been promised one
    /// waits for moves alone, never for another that waits.
    pub(super) fn reserve(&mut self, kind: Kind, place: Place, now: Time) {
        let engine = if let Some(asleep) = place.asleep {
            asleep
        } else {
            self.last_engine += 1;
            EngineId(self.last_engine)
        };
        let launch = place.asleep.is_none();
        for victim in place.evict {
            self.decide(victim, State::Yielding);
        }
        for victim in place.stop {
            self.stop(victim, false, now);
        }
        self.put(engine, kind, place.chunk, State::Reserved { launch }, now);
        self.decide(engine, State::Reserved { launch });
        self.begin_moves(now);
    }

    /// Begins the moves that are decided and whose turn it is on all their GPUs.
    pub(super) fn begin_moves(&mut self, now: Time) {
        let decided = self.engines.iter().filter(|(_, engine)| {
            let decided = matches!(engine.state, State::Reserved { .. } | State::Yielding);
            decided && self.is_up(engine.chunk.node)
        });
        let mut decided: Vec<(u64, EngineId)> =
            decided.map(|(id, engine)| (engine.decided, *id)).collect();
        decided.sort_unstable();
        let mut taken = Barred::new();
        for (_, id) in decided {
            let Some(Engine { chunk, state, .. }) = self.engines.get(&id) else { continue };
            let (chunk, state) = (*chunk, *state);
            let moving = self.chunks.moving(chunk.node);
            let taken = taken.entry(chunk.node).or_insert(0);
            if (moving | *taken) & chunk.bits() == 0 {
                match state {
                    State::Reserved { launch } if self.chunks.is_clear(id) => {
                        self.restore(id, launch, now);
                    }
                    State::Yielding => self.evict(id, now),
                    _ => {}
                }
            }
            *taken |= chunk.bits();
        }
    }

    /// Takes places back that were promised to engines, where `which` says so. What was in
    /// their way goes nevertheless: others may have been promised its room.
    pub(super) fn release_reserved(&mut self, which: impl Fn(&Engine) -> bool) {
        let reserved: Vec<(EngineId, bool)> = self
            .engines
            .iter()
            .filter(|(_, engine)| which(engine))
            .filter_map(|(id, engine)| match engine.state {
                State::Reserved { launch } => Some((*id, launch)),
                _ => None,
            })
            .collect();
        for (id, launch) in reserved {
            if launch {
                self.forget(id);
            } else {
                let unbound = self.chunks.get(id).is_some_and(|tenant| tenant.movable);
                self.fell_asleep(id, unbound);
            }
        }
    }

    /// Takes the places back that were promised for actions of which none waits any more, as long
    /// as nothing was moved there; and those that were to leave stay, where there is room again.
    pub(super) fn release_unwanted(&mut self) {
        let unwanted = |engine: &Engine| {
            let reserved = matches!(engine.state, State::Reserved { .. });
            reserved && !self.waiting.contains_key(&engine.kind)
        };
        let unwanted: BTreeSet<Kind> =
            self.engines.values().filter(|engine| unwanted(engine)).map(|of| of.kind).collect();
        if unwanted.is_empty() {
            return;
        }
        self.release_reserved(|engine| unwanted.contains(&engine.kind));
        let yielding = self.engines.iter().filter(|(_, of)| of.state == State::Yielding);
        let mut yielding: Vec<(u64, EngineId)> =
            yielding.map(|(id, engine)| (engine.decided, *id)).collect();
        yielding.sort_unstable();
        // Those that were decided last are the first that are not needed.
        for (_, id) in yielding.into_iter().rev() {
            if self.chunks.can_stay(id)
                && let Some(engine) = self.engines.get_mut(&id)
            {
                engine.state = State::Resident;
                self.settle(id);
            }
        }
    }

    /// Puts an engine at the end of those that are to be moved.
    fn decide(&mut self, id: EngineId, state: State) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        self.decided += 1;
        (engine.state, engine.decided) = (state, self.decided);
        self.settle(id);
    }

    fn restore(&mut self, id: EngineId, launch: bool, now: Time) {
        let Some(Engine { kind, chunk, .. }) = self.engines.get(&id) else { return };
        let (kind, chunk, node) = (*kind, *chunk, self.node_of(*chunk));
        let what = if launch { Order::Launch } else { Order::Wake };
        let (order, limit) = self.order(id, State::Restoring { launch }, what, now);
        if launch {
            self.stats.launches += 1;
        } else {
            self.stats.wakes += 1;
        }
        let engine = id;
        self.out.push(Command::Restore { engine, order, node, chunk, kind, launch, limit });
    }

    fn evict(&mut self, id: EngineId, now: Time) {
        let Some(engine) = self.engines.get(&id) else { return };
        let node = self.node_of(engine.chunk);
        let residue = self.footprint(engine.kind).map_or(0, |footprint| footprint.residue);
        let (order, limit) = self.order(id, State::Evicting, Order::Evict, now);
        self.stats.evictions += 1;
        self.out.push(Command::Evict { engine: id, order, node, residue, limit });
    }
}
