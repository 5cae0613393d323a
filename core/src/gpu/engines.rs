//! The life of an engine: orders, what their reports prove, and failures.

use std::time::Duration;

use super::Phase;
use super::command::Command;
use super::event::OrderId;
use super::pool::{Ailing, Engine, Pool, Timer};
use super::proof::{Order, Proof, Trouble};
use super::tenant::{EngineId, Kind, State, Tenant};
use crate::time::Time;

impl Pool {
    /// Enters an engine into the books, or changes its state there.
    pub(super) fn put(
        &mut self,
        id: EngineId,
        kind: Kind,
        chunk: super::Chunk,
        state: State,
        now: Time,
    ) {
        let engine = self.engines.entry(id).or_insert_with(|| Engine {
            kind,
            chunk,
            left: chunk,
            state,
            order: OrderId(0),
            since: now,
            term: Time::ZERO,
            running: std::collections::BTreeMap::new(),
            stops: 0,
            decided: 0,
        });
        engine.state = state;
        if engine.chunk != chunk {
            engine.chunk = chunk;
            self.chunks.relocate(id, chunk);
        }
        if self.chunks.get(id).is_none() {
            let (device, residue) = self
                .footprint(kind)
                .map_or((0, 0), |footprint| (footprint.device, footprint.residue));
            let most = self.service(kind).map_or(0, |service| service.pinned);
            let of_kind = self.engines.iter().filter(|(_, engine)| engine.kind == kind);
            let has = of_kind.filter(|(id, _)| self.chunks.get(**id).is_some_and(|t| t.pinned));
            let pinned = has.count() < most;
            let tenant = Tenant {
                kind,
                chunk,
                state,
                device,
                residue,
                movable: false,
                executing: false,
                fresh: false,
                on_term: false,
                wanted: None,
                pinned,
                used: now,
            };
            self.chunks.insert(id, tenant);
        }
        self.settle(id);
    }

    /// Brings the books of the chunks in line with an engine's state.
    pub(super) fn settle(&mut self, id: EngineId) {
        let Some(engine) = self.engines.get(&id) else { return };
        let (state, executing) = (engine.state, !engine.running.is_empty());
        if let Some(tenant) = self.chunks.get_mut(id) {
            (tenant.state, tenant.executing) = (state, executing);
        }
    }

    /// Ends an engine. Its GPUs are in use until it is gone.
    pub(super) fn stop(&mut self, id: EngineId, failed: bool, now: Time) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        engine.stops = engine.stops.saturating_add(1);
        engine.running.clear();
        let node = self.nodes[engine.chunk.node].name.clone();
        let (order, limit) = self.order(id, State::Leaving { failed }, Order::Stop, now);
        self.out.push(Command::Stop { engine: id, order, node, limit });
    }

    pub(super) fn restored(
        &mut self,
        id: EngineId,
        order: OrderId,
        result: Result<Proof, Trouble>,
        now: Time,
    ) {
        let Some(engine) = self.engines.get(&id).filter(|engine| engine.order == order) else {
            return;
        };
        let State::Restoring { launch } = engine.state else { return };
        let (kind, took) = (engine.kind, now.since(engine.since));
        let Some(footprint) = self.footprint(kind) else { return };
        match result.and_then(|proof| proof.resident(&footprint)) {
            Ok(()) => {
                let phase = if launch { Phase::Launch } else { Phase::Wake };
                self.learned.measured(kind, phase, took);
                self.become_resident(id, now);
                if let Some(tenant) = self.chunks.get_mut(id) {
                    tenant.fresh = true;
                }
            }
            Err(trouble) => self.broke(id, &trouble, now),
        }
    }

    pub(super) fn become_resident(&mut self, id: EngineId, now: Time) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        (engine.state, engine.left) = (State::Resident, engine.chunk);
        self.ailing.remove(&engine.kind);
        self.settle(id);
        if let Some(tenant) = self.chunks.get_mut(id) {
            (tenant.used, tenant.movable) = (now, false);
        }
    }

    /// It sleeps where it was awake last, whatever place it was promised.
    pub(super) fn fell_asleep(&mut self, id: EngineId, unbound: bool) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        (engine.state, engine.chunk) = (State::Asleep, engine.left);
        self.chunks.relocate(id, engine.chunk);
        if let Some(tenant) = self.chunks.get_mut(id) {
            tenant.movable = unbound;
        }
        self.settle(id);
    }

    pub(super) fn evicted(
        &mut self,
        id: EngineId,
        order: OrderId,
        result: Result<Proof, Trouble>,
        now: Time,
    ) {
        let current =
            |engine: &&mut Engine| engine.order == order && engine.state == State::Evicting;
        let Some(engine) = self.engines.get_mut(&id).filter(current) else { return };
        let (kind, took) = (engine.kind, now.since(engine.since));
        let Some(footprint) = self.footprint(kind) else { return };
        match result.and_then(|proof| proof.evicted(&footprint).map(|()| proof.is_unbound())) {
            Ok(unbound) => {
                self.learned.measured(kind, Phase::Evict, took);
                self.fell_asleep(id, unbound);
            }
            Err(trouble) => self.broke(id, &trouble, now),
        }
    }

    pub(super) fn stopped(
        &mut self,
        id: EngineId,
        order: OrderId,
        result: &Result<u64, Trouble>,
        now: Time,
    ) {
        let current = |engine: &&Engine| {
            engine.order == order && matches!(engine.state, State::Leaving { .. })
        };
        let Some(engine) = self.engines.get(&id).filter(current) else { return };
        if *result == Ok(0) {
            self.forget(id);
            return;
        }
        // Whoever waits for these GPUs is better off elsewhere.
        let (chunk, at) = (engine.chunk, now + self.config.backoff.after(engine.stops));
        self.release_reserved(|other| other.chunk.overlaps(chunk));
        self.timers.insert((at, Timer::Order(id, order)));
    }

    /// An engine cannot be relied on: what runs on it has failed, and it is ended.
    pub(super) fn broke(&mut self, id: EngineId, trouble: &Trouble, now: Time) {
        let leaving = |engine: &Engine| matches!(engine.state, State::Leaving { .. });
        if self.engines.get(&id).is_some_and(|engine| !leaving(engine)) {
            self.condemn(id, trouble, now);
            self.stop(id, true, now);
        }
    }

    /// Ends what runs on an engine, and leaves its service alone for a while.
    pub(super) fn condemn(&mut self, id: EngineId, trouble: &Trouble, now: Time) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        let (kind, chunk) = (engine.kind, engine.chunk);
        let running = std::mem::take(&mut engine.running);
        let name = self.service(kind).map_or("", |service| &service.name);
        let fault = trouble.fault(name, self.nodes[chunk.node].name.as_str(), chunk);
        for action in running.into_keys() {
            if self.is_on(&action, id) {
                self.end(&action, Err(fault.clone()));
            }
        }
        let times = self.ailing.get(&kind).map_or(0, |ailing| ailing.times).saturating_add(1);
        let until = now + self.config.backoff.after(times);
        self.ailing.insert(kind, Ailing { times, until, last: fault });
        self.timers.insert((until, Timer::Retry(kind)));
        self.stats.failures += 1;
        *self.failed.entry((kind.service, trouble.reason())).or_default() += 1;
    }

    /// No report of an order came, or an engine is to be ended once more.
    pub(super) fn overdue(&mut self, id: EngineId, order: OrderId, now: Time) {
        let Some(engine) = self.engines.get(&id).filter(|engine| engine.order == order) else {
            return;
        };
        if !self.is_up(engine.chunk.node) {
            // When its agent is back, it says what became of it.
            return;
        }
        match engine.state {
            State::Restoring { launch: true } => {
                self.broke(id, &Trouble::TimedOut(Order::Launch), now);
            }
            State::Restoring { launch: false } => {
                self.broke(id, &Trouble::TimedOut(Order::Wake), now);
            }
            State::Evicting => self.broke(id, &Trouble::TimedOut(Order::Evict), now),
            State::Leaving { failed } => {
                let chunk = engine.chunk;
                self.release_reserved(|other| other.chunk.overlaps(chunk));
                self.stop(id, failed, now);
            }
            State::Reserved { .. } | State::Resident | State::Yielding | State::Asleep => {}
        }
    }

    pub(super) fn forget(&mut self, id: EngineId) {
        self.engines.remove(&id);
        self.chunks.remove(id);
    }

    /// Numbers an order, and watches it.
    pub(super) fn order(
        &mut self,
        id: EngineId,
        state: State,
        what: Order,
        now: Time,
    ) -> (OrderId, Duration) {
        self.last_order += 1;
        let order = OrderId(self.last_order);
        let Some(engine) = self.engines.get_mut(&id) else { return (order, Duration::ZERO) };
        (engine.state, engine.order, engine.since) = (state, order, now);
        let kind = engine.kind;
        self.settle(id);
        let limits = self.service(kind).map_or_else(Default::default, |service| service.limits);
        let limit = match what {
            Order::Launch => limits.launch,
            Order::Wake => limits.wake,
            Order::Evict => limits.evict,
            Order::Stop => limits.stop,
        };
        self.watch(id, order, limit, now);
        (order, limit)
    }

    /// Sees to it that an order whose report does not come is not waited for without end.
    pub(super) fn watch(&mut self, id: EngineId, order: OrderId, limit: Duration, now: Time) {
        let at = now + limit + self.config.grace;
        self.timers.insert((at, Timer::Order(id, order)));
    }
}
