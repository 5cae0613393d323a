//! A model of clients and engines that checks every command against what it knows
//! itself, by brute force over all requests and workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fault::Fault;
use crate::ids::{TrajectoryId, WorkerId};
use crate::router::{Ask, Command, Config, Event, Moved, Outcome, Role, Router, WorkerSpec};
use crate::time::Time;
use crate::version::{RequestId, Version};

pub(super) use super::given::{ask, class, done, failed, spec, task, trajectory, turn, worker};

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "a model keeps apart what is true")]
pub(super) struct Engine {
    pub(super) id: WorkerId,
    pub(super) spec: WorkerSpec,
    pub(super) held: bool,
    pub(super) reserved: bool,
    pub(super) healthy: bool,
    pub(super) draining: bool,
    pub(super) gone: bool,
    pub(super) in_flight: BTreeSet<RequestId>,
    pub(super) told_idle: bool,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "a model keeps apart what is true")]
pub(super) struct Call {
    pub(super) ask: Ask,
    pub(super) back: bool,
    /// Index of the engine where it failed last.
    pub(super) avoid: Option<usize>,
    /// Since when it waits; `None` is on an engine.
    pub(super) since: Option<Time>,
    pub(super) on: Option<(usize, Option<usize>)>,
    pub(super) aborted: bool,
    pub(super) withdrawn: bool,
    /// It arrives in this event.
    pub(super) fresh: bool,
    pub(super) least: Option<Version>,
    /// Where its trajectory was when it arrived, or its own last try.
    pub(super) home: Option<usize>,
}

pub(super) struct World {
    pub(super) router: Router,
    pub(super) config: Config,
    pub(super) now: Time,
    /// Every engine there ever was.
    pub(super) engines: Vec<Engine>,
    pub(super) calls: BTreeMap<RequestId, Call>,
    pub(super) homes: BTreeMap<TrajectoryId, usize>,
    pub(super) refused: BTreeMap<RequestId, Fault>,
    pub(super) finished: BTreeSet<RequestId>,
    pub(super) next: u64,
    /// The part that the router has said nobody does.
    pub(super) lacks: Option<Role>,
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
            lacks: None,
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
            Event::Stay(_) => engine.draining = false,
            Event::Slots { slots, .. } => engine.spec.slots = *slots,
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
    pub(super) fn arrive(&mut self, ask: &Ask) -> Option<RequestId> {
        let id = RequestId(self.next);
        self.next += 1;
        let expected = self.best_of_all(ask);
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
            fresh: true,
        };
        match self.router.on_event(Event::Arrived { request: id, ask: ask.clone() }, self.now) {
            Ok(commands) => {
                self.calls.insert(id, call);
                self.obey(&commands);
                self.calls.entry(id).and_modify(|call| call.fresh = false);
                let on = self.calls[&id].on.map(|(decode, _)| decode);
                // One that is probed may have had room for the probe.
                if !on.is_some_and(|at| self.probing(at)) {
                    assert_eq!(on.is_some(), expected.is_some(), "{commands:?}");
                    if ask.trajectory.is_none() {
                        assert_eq!(on.map(|at| self.standing(at, ask, true)), expected);
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
        let tried_again =
            matches!(outcome, Outcome::Failed { resumable: true, .. } | Outcome::Unreached { .. });
        let back = outcome == Outcome::Back || call.aborted && tried_again;
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
            let unreached = matches!(outcome, Outcome::Unreached { .. });
            if let Outcome::Failed { prefill: by_prefill, .. }
            | Outcome::Unreached { prefill: by_prefill, .. } = &outcome
                && (unreached || !back)
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
                Command::Lacks(role) => {
                    assert_ne!(self.lacks, *role, "said once");
                    self.lacks = *role;
                }
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
        if let Some(prefill) = prefill {
            assert_eq!(self.engines[at].spec.role, Role::Decode);
            assert_eq!(self.engines[prefill].spec.role, Role::Prefill);
            assert!(self.usable(prefill));
            assert_eq!(self.engines[prefill].spec.version, self.engines[at].spec.version);
        } else {
            match self.engines[at].spec.role {
                Role::Mixed => {}
                Role::Decode => {
                    assert!(self.config.alone && self.partners(at, call.avoid).is_empty());
                }
                Role::Prefill => assert!(self.prefills_decode()),
            }
        }
        self.check_order(id, &call, at, also_sent);
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
}
