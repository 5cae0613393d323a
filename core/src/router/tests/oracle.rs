//! What may happen and what must, by brute force over all requests and workers.

use std::collections::BTreeSet;

use super::world::{Call, World};
use crate::ids::{Class, Task};
use crate::router::{Affinity, Ask, Moved, Role, WorkerState};
use crate::version::{RequestId, Version};

impl World {
    pub(super) fn rank(&self, task: &Task, class: &Class) -> usize {
        let Affinity::Declared { tasks, default } = &self.config.affinity else { return 0 };
        let order = tasks.get(task).unwrap_or(default);
        order.iter().position(|c| c == class).unwrap_or(order.len())
    }

    /// In service, as far as the model knows; the circuit breaker is asked for.
    pub(super) fn in_service(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        let open = || {
            let mut views = self.router.workers();
            let view = views.find(|view| *view.id == engine.id).unwrap();
            view.state == WorkerState::CircuitOpen
        };
        !engine.gone && engine.healthy && !engine.draining && !open()
    }

    pub(super) fn usable(&self, at: usize) -> bool {
        self.in_service(at) && !self.engines[at].held
    }

    /// Certainly has room; a worker that is being probed may have none.
    pub(super) fn has_room(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        let full = engine.in_flight.len() >= engine.spec.slots as usize;
        self.usable(at) && !full && (engine.in_flight.is_empty() || !self.probing(at))
    }

    pub(super) fn probing(&self, at: usize) -> bool {
        let view = self.router.worker(&self.engines[at].id).unwrap();
        view.state == WorkerState::Probing
    }

    pub(super) fn meets(&self, at: usize, ask: &Ask, least: Option<Version>) -> bool {
        let engine = &self.engines[at];
        match ask.pinned {
            Some(pinned) => engine.spec.version == Some(pinned),
            None => !engine.reserved && (least.is_none() || engine.spec.version >= least),
        }
    }

    /// Nobody who decodes is in use, and those who prefill can.
    pub(super) fn prefills_decode(&self) -> bool {
        let decodes = |at: usize| self.engines[at].spec.role != Role::Prefill && self.usable(at);
        self.config.alone && !(0..self.engines.len()).any(decodes)
    }

    /// The prefill workers in use that hold the weights of a decode worker.
    pub(super) fn partners(&self, of: usize, avoid: Option<usize>) -> Vec<usize> {
        let version = self.engines[of].spec.version;
        let partner = |at: &usize| {
            self.engines[*at].spec.role == Role::Prefill
                && self.engines[*at].spec.version == version
                && self.usable(*at)
                && avoid != Some(*at)
        };
        (0..self.engines.len()).filter(partner).collect()
    }

    /// The pairs that could generate it, of workers for which `able` holds.
    pub(super) fn pairs(
        &self,
        ask: &Ask,
        least: Option<Version>,
        avoid: Option<usize>,
        able: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Option<usize>)> {
        let able = |at: usize| avoid != Some(at) && able(at);
        let mut pairs = Vec::new();
        for at in 0..self.engines.len() {
            if !able(at) || !self.meets(at, ask, least) {
                continue;
            }
            match self.engines[at].spec.role {
                Role::Mixed => pairs.push((at, None)),
                Role::Prefill if self.prefills_decode() => pairs.push((at, None)),
                Role::Prefill => {}
                Role::Decode => {
                    let partners = self.partners(at, avoid);
                    if partners.is_empty() && self.config.alone {
                        pairs.push((at, None));
                    }
                    let able = partners.into_iter().filter(|prefill| able(*prefill));
                    pairs.extend(able.map(|prefill| (at, Some(prefill))));
                }
            }
        }
        pairs
    }

    /// Pairs that have room and may take the call: not where it failed last, if there
    /// is any other.
    pub(super) fn takers(&self, call: &Call) -> Vec<(usize, Option<usize>)> {
        let others = self.pairs(&call.ask, call.least, call.avoid, |at| self.usable(at));
        let avoid = call.avoid.filter(|_| !others.is_empty());
        self.pairs(&call.ask, call.least, avoid, |at| self.has_room(at))
    }

    /// (rank, load) of an engine, one request aside or not.
    pub(super) fn standing(&self, at: usize, ask: &Ask, but_one: bool) -> (usize, u64) {
        let engine = &self.engines[at];
        let load = engine.in_flight.len() as u64 - u64::from(but_one);
        let rank = self.rank(&ask.task, &engine.spec.class);
        (rank, (load << 16) / u64::from(engine.spec.slots))
    }

    /// What a request without a home is to get.
    pub(super) fn best_of_all(&self, ask: &Ask) -> Option<(usize, u64)> {
        let pairs = self.pairs(ask, ask.at_least, None, |at| self.has_room(at));
        pairs.into_iter().map(|(at, _)| self.standing(at, ask, false)).min()
    }

    /// Who still waits and could have gone there comes later, or is overtaken rightly.
    pub(super) fn check_order(
        &self,
        id: RequestId,
        call: &Call,
        at: usize,
        also_sent: &BTreeSet<RequestId>,
    ) {
        let engine = &self.engines[at];
        let band = |call: &Call| (call.ask.priority, call.back);
        for (other, waiting) in &self.calls {
            let Some(since) = waiting.since.filter(|_| *other != id && !also_sent.contains(other))
            else {
                continue;
            };
            if !self.takers(waiting).iter().any(|(taker, _)| *taker == at) {
                continue;
            }
            assert!(band(waiting) <= band(call), "{id} goes before {other} of a higher band");
            if band(waiting) < band(call) || *other > id {
                continue;
            }
            let passed = self.now.since(since.max(self.router.disturbed));
            assert!(passed < self.config.patience, "{other} is overtaken for too long");
            let lives = call.home.filter(|home| !self.engines[*home].gone);
            let own = || {
                let rank = self.rank(&call.ask.task, &engine.spec.class);
                let better = (0..self.engines.len()).any(|at| {
                    let engine = &self.engines[at];
                    engine.spec.role != Role::Prefill
                        && !engine.reserved
                        && self.in_service(at)
                        && self.rank(&call.ask.task, &engine.spec.class) < rank
                });
                !better
            };
            assert!(lives.map_or_else(own, |home| home == at), "{id} overtakes without a reason");
        }
    }

    pub(super) fn check_moved(
        &self,
        call: &Call,
        left: Option<usize>,
        to: usize,
        moved: Option<Moved>,
    ) {
        assert_eq!(left.is_some(), moved.is_some(), "moves say why, and only moves");
        let Some((home, moved)) = left.zip(moved) else { return };
        let load = |at| self.standing(at, &call.ask, false).1;
        let margin = (self.config.sticky.margin * 65536.0) as u64;
        match moved {
            Moved::OutOfService => assert!(!self.in_service(home)),
            Moved::Held => assert!(self.engines[home].held),
            Moved::Version => assert!(!self.meets(home, &call.ask, call.least)),
            Moved::Failed => assert_eq!(call.avoid, Some(home)),
            Moved::Full => {
                let free = |at: usize| self.has_room(at);
                let pairs = self.pairs(&call.ask, call.least, call.avoid, free);
                let full = pairs.iter().all(|(at, _)| *at != home);
                assert!(full || !call.fresh, "it had room");
            }
            Moved::Overloaded => assert!(load(home) > load(to) + margin),
        }
    }

    /// What holds between events.
    pub(super) fn check(&self) {
        assert_eq!(self.router.pending(), self.waiting());
        assert_eq!(self.router.running(), self.running().len());
        for (id, call) in &self.calls {
            assert!(!self.finished.contains(id));
            if call.since.is_some() {
                let takers = self.takers(call);
                assert!(takers.is_empty(), "{id} {call:?} waits, and {takers:?} has room");
            }
        }
        let healthy = |role: Role| {
            self.engines.iter().any(|engine| {
                engine.spec.role == role && engine.healthy && !engine.gone && !engine.draining
            })
        };
        let decode = healthy(Role::Decode) || healthy(Role::Mixed);
        let lacks = match (healthy(Role::Prefill), healthy(Role::Decode)) {
            (true, _) => (!decode).then_some(Role::Decode),
            (false, decode) => decode.then_some(Role::Prefill),
        };
        assert_eq!((self.lacks, self.router.lacks()), (lacks, lacks));
        for engine in self.engines.iter().filter(|engine| !engine.gone) {
            let idle = (engine.held || engine.draining) && engine.in_flight.is_empty();
            assert!(!idle || engine.told_idle, "{engine:?} is idle and it was not said");
            let view = self.router.worker(&engine.id).unwrap();
            assert_eq!(view.running, engine.in_flight.len());
        }
    }
}
