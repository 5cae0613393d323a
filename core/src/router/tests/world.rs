//! A model of clients and engines that checks every command against what it knows
//! itself, by brute force over all requests and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fault::{Fault, FaultKind};
use crate::ids::{Class, Task, TrajectoryId, WorkerId};
use crate::router::{
    Affinity, Ask, Command, Config, Event, Moved, Outcome, Role, Router, Usage, WorkerSpec,
    WorkerState,
};
use crate::time::Time;
use crate::version::{RequestId, Version};

pub(super) fn worker(n: usize) -> WorkerId {
    WorkerId::new(&format!("w{n}")).unwrap()
}

pub(super) fn class(n: usize) -> Class {
    Class::new(["h800", "h20", "l40"][n]).unwrap()
}

pub(super) fn task(n: usize) -> Task {
    Task::new(["swe", "math", "game"][n]).unwrap()
}

pub(super) fn trajectory(n: usize) -> TrajectoryId {
    TrajectoryId::new(&format!("t{n}")).unwrap()
}

pub(super) fn spec(class_: usize, slots: u32) -> WorkerSpec {
    WorkerSpec { class: class(class_), role: Role::Mixed, slots, version: None }
}

pub(super) fn ask(task_: usize) -> Ask {
    Ask { trajectory: None, task: task(task_), priority: 0, at_least: None, pinned: None }
}

pub(super) fn turn(t: usize) -> Ask {
    Ask { trajectory: Some(trajectory(t)), ..ask(0) }
}

pub(super) fn done() -> Outcome {
    Outcome::Done(Usage { prompt_tokens: 10, cached_tokens: 2, output_tokens: 5 })
}

pub(super) fn failed(resumable: bool) -> Outcome {
    let fault = Fault::new(FaultKind::Infrastructure, "EngineFailed", "it died");
    Outcome::Failed { fault, resumable, prefill: false }
}

#[derive(Debug, Clone)]
struct Engine {
    id: WorkerId,
    spec: WorkerSpec,
    held: bool,
    reserved: bool,
    healthy: bool,
    draining: bool,
    gone: bool,
    in_flight: BTreeSet<RequestId>,
    told_idle: bool,
}

#[derive(Debug, Clone)]
struct Call {
    ask: Ask,
    back: bool,
    /// Index of the engine where it failed last.
    avoid: Option<usize>,
    /// Since when it waits; `None` is on an engine.
    since: Option<Time>,
    on: Option<(usize, Option<usize>)>,
    aborted: bool,
    withdrawn: bool,
    least: Option<Version>,
    /// Where its trajectory was when it arrived, or its own last try.
    home: Option<usize>,
}

pub(super) struct World {
    pub(super) router: Router,
    config: Config,
    pub(super) now: Time,
    /// Every engine there ever was.
    engines: Vec<Engine>,
    calls: BTreeMap<RequestId, Call>,
    homes: BTreeMap<TrajectoryId, usize>,
    pub(super) refused: BTreeMap<RequestId, Fault>,
    finished: BTreeSet<RequestId>,
    next: u64,
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        Self {
            router: Router::new(config.clone()),
            config,
            now: Time::ZERO,
            engines: Vec::new(),
            calls: BTreeMap::new(),
            homes: BTreeMap::new(),
            refused: BTreeMap::new(),
            finished: BTreeSet::new(),
            next: 0,
        }
    }

    fn engine(&self, id: &WorkerId) -> Option<usize> {
        self.engines.iter().position(|engine| engine.id == *id && !engine.gone)
    }

    fn send(&mut self, event: Event) -> Vec<Command> {
        let commands = self.router.on_event(event, self.now).unwrap();
        self.obey(&commands);
        commands
    }

    pub(super) fn join(&mut self, n: usize, spec: WorkerSpec, held: bool) -> Vec<Command> {
        if let Some(old) = self.engine(&worker(n)) {
            self.engines[old].gone = true;
        }
        self.engines.push(Engine {
            id: worker(n),
            spec: spec.clone(),
            held,
            reserved: false,
            healthy: true,
            draining: false,
            gone: false,
            in_flight: BTreeSet::new(),
            told_idle: true,
        });
        self.send(Event::Joined { worker: worker(n), spec, held })
    }

    /// An event about a worker; refused when there is none of that name.
    pub(super) fn about(&mut self, n: usize, event: Event) -> Vec<Command> {
        let Some(at) = self.engine(&worker(n)) else {
            let before = (self.router.pending(), self.router.running());
            let fault = self.router.on_event(event, self.now).unwrap_err();
            assert_eq!(fault.reason, "UnknownWorker");
            assert_eq!(before, (self.router.pending(), self.router.running()));
            return Vec::new();
        };
        let engine = &mut self.engines[at];
        match &event {
            Event::Left(_) => engine.gone = true,
            Event::Drain(_) => engine.draining = true,
            Event::Healthy(_) => engine.healthy = true,
            Event::Unhealthy { .. } => engine.healthy = false,
            Event::Version { version, .. } => engine.spec.version = *version,
            Event::Hold(_) => engine.held = true,
            Event::Release(_) => engine.held = false,
            Event::Reserve { reserved, .. } => engine.reserved = *reserved,
            Event::Move { trajectory, .. } if engine.spec.role != Role::Prefill => {
                self.homes.insert(trajectory.clone(), at);
            }
            Event::Move { .. } => {
                let fault = self.router.on_event(event, self.now).unwrap_err();
                assert_eq!(fault.reason, "InvalidWorker");
                return Vec::new();
            }
            _ => {}
        }
        let engine = &mut self.engines[at];
        if !(engine.held || engine.draining) {
            engine.told_idle = false;
        }
        self.send(event)
    }

    /// A request arrives; `None` when it is turned away.
    pub(super) fn arrive(&mut self, ask: Ask) -> Option<RequestId> {
        let id = RequestId(self.next);
        self.next += 1;
        let expected = self.best_of_all(&ask);
        let before = (self.router.pending(), self.router.running());
        let call = Call {
            least: ask.at_least,
            home: ask.trajectory.as_ref().and_then(|t| self.homes.get(t)).copied(),
            ask: ask.clone(),
            back: false,
            avoid: None,
            since: Some(self.now),
            on: None,
            aborted: false,
            withdrawn: false,
        };
        match self.router.on_event(Event::Arrived { request: id, ask: ask.clone() }, self.now) {
            Ok(commands) => {
                self.calls.insert(id, call);
                self.obey(&commands);
                let on = self.calls[&id].on.map(|(decode, _)| decode);
                // One that is probed may have had room for the probe.
                if !on.is_some_and(|at| self.probing(at)) {
                    assert_eq!(on.is_some(), expected.is_some(), "{commands:?}");
                    if ask.trajectory.is_none() {
                        assert_eq!(on.map(|at| self.standing(at, &ask, -1)), expected);
                    }
                }
                Some(id)
            }
            Err(fault) => {
                assert_eq!(fault.reason, "Overloaded");
                assert!(fault.retry_after.is_some());
                assert_eq!(before, (self.router.pending(), self.router.running()));
                assert!(before.0 >= self.config.max_pending);
                assert_eq!(expected, None, "turned away although a worker has room");
                None
            }
        }
    }

    pub(super) fn withdraw(&mut self, id: RequestId) -> Vec<Command> {
        match self.calls.get_mut(&id) {
            Some(call) if call.on.is_some() => call.withdrawn = true,
            Some(_) => {
                self.calls.remove(&id);
                self.finished.insert(id);
            }
            None => {}
        }
        self.send(Event::Withdrawn(id))
    }

    pub(super) fn end(&mut self, id: RequestId, outcome: Outcome) -> Vec<Command> {
        let call = self.calls.get_mut(&id).unwrap();
        let (decode, prefill) = call.on.take().unwrap();
        let version = self.engines[decode].spec.version;
        for at in [Some(decode), prefill].into_iter().flatten() {
            self.engines[at].in_flight.remove(&id);
        }
        let back = outcome == Outcome::Back
            || call.aborted && matches!(outcome, Outcome::Failed { resumable: true, .. });
        if call.withdrawn || matches!(outcome, Outcome::Done(_)) {
            self.calls.remove(&id);
            self.finished.insert(id);
        } else {
            if call.ask.trajectory.is_some() {
                call.least = call.least.max(version);
            }
            call.back = back;
            call.aborted = false;
            call.since = Some(self.now);
            if let Outcome::Failed { prefill: by_prefill, .. } = &outcome
                && !back
            {
                call.avoid = if *by_prefill { prefill.or(Some(decode)) } else { Some(decode) };
            }
        }
        self.send(Event::Ended { request: id, outcome })
    }

    pub(super) fn prefilled(&mut self, id: RequestId) {
        if let Some((_, prefill)) = self.calls.get_mut(&id).and_then(|call| call.on.as_mut())
            && let Some(at) = prefill.take()
        {
            self.engines[at].in_flight.remove(&id);
        }
        self.send(Event::Prefilled(id));
    }

    pub(super) fn forget(&mut self, t: usize) {
        self.homes.remove(&trajectory(t));
        self.send(Event::Forget(trajectory(t)));
    }

    pub(super) fn pass(&mut self, time: Duration) -> Vec<Command> {
        self.now = self.now + time;
        let commands = self.send(Event::Tick);
        for call in self.calls.values() {
            let due = call.since.map(|since| since + self.config.max_wait);
            assert!(due.is_none_or(|due| due > self.now), "{call:?} waits for too long");
            let next = self.router.next_deadline();
            assert!(due.is_none_or(|due| next.is_some_and(|next| next <= due)));
        }
        commands
    }

    /// The requests on engines.
    pub(super) fn running(&self) -> Vec<RequestId> {
        let on = self.calls.iter().filter(|(_, call)| call.on.is_some());
        on.map(|(id, _)| *id).collect()
    }

    pub(super) fn live(&self) -> Vec<RequestId> {
        self.calls.keys().copied().collect()
    }

    pub(super) fn waiting(&self) -> usize {
        self.calls.values().filter(|call| call.since.is_some()).count()
    }

    pub(super) fn on(&self, id: RequestId) -> Option<WorkerId> {
        let (decode, _) = self.calls.get(&id)?.on?;
        Some(self.engines[decode].id.clone())
    }

    /// Ends everything: whatever may be served is, and the rest is refused in time.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            for id in self.running() {
                self.end(id, done());
                self.check();
            }
            if self.calls.is_empty() {
                break;
            }
            self.pass(self.config.max_wait);
            self.check();
        }
        assert!(self.calls.is_empty(), "{:?}", self.calls);
        assert_eq!((self.router.pending(), self.router.running()), (0, 0));
        assert!(self.router.workers().all(|view| view.running == 0 && view.pending == 0));
    }

    fn rank(&self, task: &Task, class: &Class) -> usize {
        let Affinity::Declared { tasks, default } = &self.config.affinity else { return 0 };
        let order = tasks.get(task).unwrap_or(default);
        order.iter().position(|c| c == class).unwrap_or(order.len())
    }

    /// In service, as far as the model knows; the circuit breaker is asked for.
    fn in_service(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        let open = || {
            let mut views = self.router.workers();
            let view = views.find(|view| *view.id == engine.id).unwrap();
            view.state == WorkerState::CircuitOpen
        };
        !engine.gone && engine.healthy && !engine.draining && !open()
    }

    fn usable(&self, at: usize) -> bool {
        self.in_service(at) && !self.engines[at].held
    }

    /// Certainly has room; a worker that is being probed may have none.
    fn has_room(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        let full = engine.in_flight.len() >= engine.spec.slots as usize;
        self.usable(at) && !full && (engine.in_flight.is_empty() || !self.probing(at))
    }

    fn probing(&self, at: usize) -> bool {
        let view = self.router.worker(&self.engines[at].id).unwrap();
        view.state == WorkerState::Probing
    }

    fn meets(&self, at: usize, ask: &Ask, least: Option<Version>) -> bool {
        let engine = &self.engines[at];
        match ask.pinned {
            Some(pinned) => engine.spec.version == Some(pinned),
            None => !engine.reserved && (least.is_none() || engine.spec.version >= least),
        }
    }

    /// The pairs that could generate it, of workers for which `able` holds.
    fn pairs(
        &self,
        ask: &Ask,
        least: Option<Version>,
        able: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Option<usize>)> {
        let mut pairs = Vec::new();
        for at in 0..self.engines.len() {
            if !able(at) || !self.meets(at, ask, least) {
                continue;
            }
            match self.engines[at].spec.role {
                Role::Mixed => pairs.push((at, None)),
                Role::Prefill => {}
                Role::Decode => {
                    let version = self.engines[at].spec.version;
                    let prefills = (0..self.engines.len()).filter(|p| {
                        self.engines[*p].spec.role == Role::Prefill
                            && self.engines[*p].spec.version == version
                            && able(*p)
                    });
                    pairs.extend(prefills.map(|prefill| (at, Some(prefill))));
                }
            }
        }
        pairs
    }

    /// Pairs that have room and may take the call: not where it failed last, if there
    /// is any other.
    fn takers(&self, call: &Call) -> Vec<(usize, Option<usize>)> {
        let not_avoided = |at: usize| call.avoid != Some(at) && self.usable(at);
        let other = !self.pairs(&call.ask, call.least, not_avoided).is_empty();
        self.pairs(&call.ask, call.least, |at| {
            self.has_room(at) && !(other && call.avoid == Some(at))
        })
    }

    /// (rank, load) of an engine, `less` requests aside.
    fn standing(&self, at: usize, ask: &Ask, more: i64) -> (usize, u64) {
        let engine = &self.engines[at];
        let load = (engine.in_flight.len() as i64 + more) as u64;
        let rank = self.rank(&ask.task, &engine.spec.class);
        (rank, (load << 16) / u64::from(engine.spec.slots))
    }

    /// What a request without a home is to get.
    fn best_of_all(&self, ask: &Ask) -> Option<(usize, u64)> {
        let pairs = self.pairs(ask, ask.at_least, |at| self.has_room(at));
        pairs.into_iter().map(|(at, _)| self.standing(at, ask, 0)).min()
    }

    fn obey(&mut self, commands: &[Command]) {
        let sent: BTreeSet<RequestId> = commands
            .iter()
            .filter_map(|command| match command {
                Command::Send { request, .. } => Some(*request),
                _ => None,
            })
            .collect();
        for command in commands {
            match command {
                Command::Send { request, worker, prefill, moved } => {
                    let at = self.engine(worker).expect("sent to a worker that is here");
                    let prefill = prefill.as_ref().map(|id| self.engine(id).unwrap());
                    self.sent(*request, at, prefill, *moved, &sent);
                }
                Command::Refuse { request, fault } => {
                    let call = self.calls.remove(request).expect("refused once");
                    assert!(call.on.is_none() && !call.withdrawn);
                    assert!(self.refused.insert(*request, fault.clone()).is_none());
                    assert!(self.finished.insert(*request));
                }
                Command::Abort { request, .. } => {
                    let call = self.calls.get_mut(request).expect("aborted while it is here");
                    assert!(call.on.is_some() && !call.aborted, "aborted once, on an engine");
                    call.aborted = true;
                }
                Command::Idle { worker } => {
                    let at = self.engine(worker).unwrap();
                    let engine = &mut self.engines[at];
                    assert!((engine.held || engine.draining) && engine.in_flight.is_empty());
                    engine.told_idle = true;
                }
                Command::Fallback { .. } => {}
            }
        }
    }

    fn sent(
        &mut self,
        id: RequestId,
        at: usize,
        prefill: Option<usize>,
        moved: Option<Moved>,
        also_sent: &BTreeSet<RequestId>,
    ) {
        let call = self.calls[&id].clone();
        assert!(call.on.is_none(), "{id} is sent while it is on an engine");
        assert!(self.usable(at) && self.meets(at, &call.ask, call.least));
        assert_eq!(self.engines[at].spec.role == Role::Decode, prefill.is_some());
        if let Some(prefill) = prefill {
            assert_eq!(self.engines[prefill].spec.role, Role::Prefill);
            assert!(self.usable(prefill));
            assert_eq!(self.engines[prefill].spec.version, self.engines[at].spec.version);
        }
        assert_ne!(self.engines[at].spec.role, Role::Prefill);
        self.check_order(id, &call, at, prefill, also_sent);
        if let Some(trajectory) = &call.ask.trajectory {
            self.homes.insert(trajectory.clone(), at);
            self.check_moved(&call, call.home.filter(|home| *home != at), at, moved);
        } else {
            assert_eq!(moved, None);
        }
        for at in [Some(at), prefill].into_iter().flatten() {
            let engine = &mut self.engines[at];
            engine.in_flight.insert(id);
            assert!(engine.in_flight.len() <= engine.spec.slots as usize, "more than its slots");
            engine.told_idle = false;
        }
        let call = self.calls.get_mut(&id).unwrap();
        call.on = Some((at, prefill));
        call.since = None;
        call.back = false;
        call.home = call.ask.trajectory.as_ref().map(|_| at);
    }

    /// Who still waits and could have gone there comes later, or is overtaken rightly.
    fn check_order(
        &self,
        id: RequestId,
        call: &Call,
        at: usize,
        prefill: Option<usize>,
        also_sent: &BTreeSet<RequestId>,
    ) {
        let engine = &self.engines[at];
        let band = |call: &Call| (call.ask.priority, call.back);
        for (other, waiting) in &self.calls {
            let Some(since) = waiting.since.filter(|_| *other != id && !also_sent.contains(other))
            else {
                continue;
            };
            if waiting.avoid == Some(at)
                || waiting.avoid.is_some() && waiting.avoid == prefill
                || !self.meets(at, &waiting.ask, waiting.least)
            {
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

    fn check_moved(&self, call: &Call, left: Option<usize>, to: usize, moved: Option<Moved>) {
        assert_eq!(left.is_some(), moved.is_some(), "moves say why, and only moves");
        let Some((home, moved)) = left.zip(moved) else { return };
        let load = |at| self.standing(at, &call.ask, 0).1;
        let margin = (self.config.sticky.margin * 65536.0) as u64;
        match moved {
            Moved::OutOfService => assert!(!self.in_service(home)),
            Moved::Held => assert!(self.engines[home].held),
            Moved::Version => assert!(!self.meets(home, &call.ask, call.least)),
            Moved::Failed => assert_eq!(call.avoid, Some(home)),
            Moved::Full => {
                let free = |at: usize| self.has_room(at) && call.avoid != Some(at);
                let pairs = self.pairs(&call.ask, call.least, free);
                assert!(pairs.iter().all(|(at, _)| *at != home), "it had room");
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
        for engine in self.engines.iter().filter(|engine| !engine.gone) {
            let idle = (engine.held || engine.draining) && engine.in_flight.is_empty();
            assert!(!idle || engine.told_idle, "{engine:?} is idle and it was not said");
            let view = self.router.worker(&engine.id).unwrap();
            assert_eq!(view.running, engine.in_flight.len());
        }
    }
}
