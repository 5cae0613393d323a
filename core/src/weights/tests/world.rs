//! A model of a router, a trainer and engines, which knows what every engine really
//! holds and checks every command against that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, WorkerId};
use crate::time::Time;
use crate::version::Version;
use crate::weights::{
    Command, Committed, Config, Event, InFlight, Source, Step, Strategy, Transfer, Weights,
};

pub(super) fn worker(n: usize) -> WorkerId {
    WorkerId::new(&format!("w{n}")).unwrap()
}

pub(super) fn group(n: usize) -> GroupId {
    GroupId::new(&format!("g{n}")).unwrap()
}

/// How an engine answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// Nothing happened.
    Refused,
    /// It happened, but nobody heard of it.
    Lost,
    /// An update broke off in the middle.
    Broken,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    /// What it really holds; `None` is half of something.
    pub(super) holds: Option<Version>,
    /// What it says it holds.
    says: Option<Version>,
    speaks: bool,
    paused: bool,
    /// The router sends it requests.
    pub(super) open: bool,
    pub(super) reserved: bool,
    /// What the router has been told that it holds.
    told: Option<Version>,
    in_flight: u32,
    /// Rank of the last call of the present round that was answered well.
    last: Option<u8>,
    /// The trainer writes into it.
    written: bool,
}

#[derive(Debug)]
struct Outstanding {
    worker: WorkerId,
    call: u64,
    step: Step,
    /// The engine that it was made to is still there.
    alive: bool,
}

pub(super) struct World {
    pub(super) weights: Weights,
    config: Config,
    pub(super) now: Time,
    pub(super) engines: BTreeMap<WorkerId, Engine>,
    calls: Vec<Outstanding>,
    idle: VecDeque<WorkerId>,
    pub(super) begun: Option<(Version, Transfer)>,
    committing: bool,
    pub(super) current: Version,
    pub(super) pins: BTreeMap<GroupId, Version>,
    pub(super) committed: Vec<Committed>,
    pub(super) aborted: Vec<(Version, Fault)>,
    pub(super) log: Vec<String>,
}

fn rank(step: &Step) -> u8 {
    match step {
        Step::Pull { .. } => 0,
        Step::Pause => 1,
        Step::Update { .. } => 2,
        Step::FlushCache => 3,
        Step::Verify => 4,
        Step::Resume => 5,
    }
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        Self {
            weights: Weights::new(config.clone(), Version(0), Source::Launch),
            config,
            now: Time::ZERO,
            engines: BTreeMap::new(),
            calls: Vec::new(),
            idle: VecDeque::new(),
            begun: None,
            committing: false,
            current: Version(0),
            pins: BTreeMap::new(),
            committed: Vec::new(),
            aborted: Vec::new(),
            log: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, event: Event) -> Result<(), Fault> {
        let commands = self.weights.on_event(event, self.now)?;
        self.obey(commands);
        while let Some(worker) = self.idle.pop_front() {
            if self.engines.get(&worker).is_some_and(|e| !e.open && e.in_flight == 0) {
                let commands = self.weights.on_event(Event::Idle(worker), self.now).unwrap();
                self.obey(commands);
            }
        }
        self.check();
        Ok(())
    }

    pub(super) fn join(&mut self, n: usize, holds: u64, speaks: bool) {
        self.lose(n);
        let holds = Version(holds);
        let says = speaks.then_some(holds);
        // An engine that cannot tell holds what it was launched with.
        let holds = Some(if speaks { holds } else { Version(0) });
        let engine = Engine { holds, says, speaks, told: says, ..Engine::default() };
        self.engines.insert(worker(n), engine);
        self.send(Event::Joined { worker: worker(n), version: says }).unwrap();
    }

    fn lose(&mut self, n: usize) {
        for call in self.calls.iter_mut().filter(|call| call.worker == worker(n)) {
            call.alive = false;
        }
    }

    pub(super) fn leave(&mut self, n: usize) {
        if self.engines.remove(&worker(n)).is_some() {
            self.lose(n);
            self.send(Event::Left(worker(n))).unwrap();
        } else {
            let fault = self.weights.on_event(Event::Left(worker(n)), self.now).unwrap_err();
            assert_eq!(fault.reason, "UnknownWorker");
        }
    }

    pub(super) fn restart(&mut self, n: usize, holds: u64) {
        let Some(engine) = self.engines.get_mut(&worker(n)) else { return };
        engine.holds = Some(Version(if engine.speaks { holds } else { 0 }));
        engine.says = engine.speaks.then_some(Version(holds));
        (engine.paused, engine.written, engine.last) = (false, false, None);
        let version = engine.says;
        self.lose(n);
        self.send(Event::Restarted { worker: worker(n), version }).unwrap();
        self.end_traffic(n);
    }

    /// The router sends a request there, if it may.
    pub(super) fn traffic(&mut self, n: usize) {
        if let Some(engine) = self.engines.get_mut(&worker(n)).filter(|engine| engine.open) {
            engine.in_flight += 1;
        }
    }

    pub(super) fn end_traffic(&mut self, n: usize) {
        if let Some(engine) = self.engines.get_mut(&worker(n)) {
            let held = !engine.open && engine.in_flight > 0;
            engine.in_flight = 0;
            if held {
                self.send(Event::Idle(worker(n))).unwrap();
            }
        }
    }

    pub(super) fn begin(&mut self, version: u64, transfer: Transfer) -> Result<(), Fault> {
        let version = Version(version);
        let before = self.begun;
        if before.is_none() {
            self.begun = Some((version, transfer));
        }
        let event = Event::Begin { version, transfer, deadline: None };
        let result = self.send(event);
        let again = before == Some((version, transfer));
        assert_eq!(result.is_ok(), again || before.is_none() && version > self.current);
        if result.is_err() {
            self.begun = before;
        }
        result
    }

    /// The trainer writes into the engines that were suspended for it.
    pub(super) fn write(&mut self) {
        let writes = !self.committing;
        for engine in self.engines.values_mut().filter(|engine| engine.written && writes) {
            engine.holds = None;
        }
    }

    pub(super) fn commit(&mut self, version: u64) -> Result<(), Fault> {
        let mut expected = None;
        if let Some((begun, transfer)) = self.begun.filter(|(v, _)| v.0 == version) {
            expected = Some(begun);
            if transfer == Transfer::External && !self.committing {
                for engine in self.engines.values_mut().filter(|engine| engine.written) {
                    engine.holds = Some(begun);
                    engine.says = engine.speaks.then_some(begun);
                }
            }
        }
        let path: Arc<str> = "/weights".into();
        let was = self.committing;
        self.committing |= expected.is_some();
        let result = self.send(Event::Commit { version: Version(version), path: Some(path) });
        if result.is_err() {
            self.committing = was;
        }
        result
    }

    pub(super) fn abort(&mut self, version: u64) -> Result<(), Fault> {
        self.send(Event::Abort { version: Version(version) })
    }

    pub(super) fn pin(&mut self, n: usize, version: u64) -> Result<(), Fault> {
        let event = Event::Pin { group: group(n), version: Version(version) };
        let fresh = self.pins.insert(group(n), Version(version));
        let result = self.send(event);
        if result.is_err() {
            match fresh {
                Some(old) => self.pins.insert(group(n), old),
                None => self.pins.remove(&group(n)),
            };
        }
        result
    }

    pub(super) fn unpin(&mut self, n: usize) {
        self.pins.remove(&group(n));
        self.send(Event::Unpin(group(n))).unwrap();
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.send(Event::Tick).unwrap();
        assert!(self.weights.next_deadline().is_none_or(|at| at > self.now));
    }

    pub(super) fn outstanding(&self) -> usize {
        self.calls.len()
    }

    /// The engine carries out one of the calls, and answers as told.
    pub(super) fn answer(&mut self, pick: usize, how: Answer) {
        if self.calls.is_empty() {
            return;
        }
        let Outstanding { worker, call, step, alive } = self.calls.remove(pick % self.calls.len());
        let mut result = Ok(None);
        if how != Answer::Done || !alive {
            let reason = "the call failed";
            result = Err(Fault::new(FaultKind::Infrastructure, "EngineFailed", reason));
        }
        if let Some(engine) = self.engines.get_mut(&worker).filter(|_| alive) {
            // A resumed engine may be taken through another round.
            engine.last = (result.is_ok() && step != Step::Resume).then_some(rank(&step));
            if how != Answer::Refused {
                match &step {
                    Step::Pause => engine.paused = true,
                    Step::Resume => engine.paused = false,
                    Step::Update { .. } if how == Answer::Broken => {
                        (engine.holds, engine.says) = (None, None);
                    }
                    Step::Update { version, .. } => {
                        engine.holds = Some(*version);
                        engine.says = engine.speaks.then_some(*version);
                    }
                    Step::Verify if how == Answer::Done => result = Ok(engine.says),
                    Step::Verify | Step::Pull { .. } | Step::FlushCache => {}
                }
            }
        }
        self.send(Event::Answered { worker, call, result }).unwrap();
    }

    fn obey(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.log.push(format!("{command:?}"));
            match command {
                Command::Hold { worker } => {
                    let engine = self.engines.get_mut(&worker).unwrap();
                    assert!(engine.open, "{worker} is held twice");
                    engine.open = false;
                    if engine.in_flight == 0 {
                        self.idle.push_back(worker);
                    }
                }
                Command::TakeBack { worker, restart } => {
                    assert_eq!(restart, self.config.in_flight == InFlight::Abort);
                    assert!(!self.engines[&worker].open);
                }
                Command::Call { worker, call, step } => self.called(worker, call, step),
                Command::SetVersion { worker, version } => {
                    let engine = self.engines.get_mut(&worker).unwrap();
                    assert!(!engine.open || engine.told == version, "told while it serves");
                    engine.told = version;
                }
                Command::Reserve { worker, reserved } => {
                    self.engines.get_mut(&worker).unwrap().reserved = reserved;
                }
                Command::Release { worker } => self.released(&worker),
                Command::Begun { version, workers } => {
                    let (begun, transfer) = self.begun.unwrap();
                    assert_eq!(begun, version);
                    for id in workers.iter().filter(|_| transfer == Transfer::External) {
                        let engine = self.engines.get_mut(id).unwrap();
                        assert!(engine.paused && !engine.open && engine.in_flight == 0);
                        engine.written = true;
                    }
                }
                Command::Committed(committed) => self.has_committed(committed),
                Command::Aborted { version, fault } => {
                    assert_eq!(self.begun.take().unwrap().0, version);
                    self.committing = false;
                    self.engines.values_mut().for_each(|engine| engine.written = false);
                    self.aborted.push((version, fault));
                }
                Command::PinLost { version } => {
                    let serves = |e: &Engine| e.open && e.told == Some(version) && e.reserved;
                    assert!(!self.engines.values().any(serves), "it is not lost");
                    self.pins.retain(|_, pinned| *pinned != version);
                }
            }
        }
    }

    fn called(&mut self, worker: WorkerId, call: u64, step: Step) {
        let engine = self.engines.get_mut(&worker).unwrap();
        if !matches!(step, Step::Pull { .. }) {
            assert!(!engine.open, "{worker}: {step:?} while it gets requests");
            assert_eq!(engine.in_flight, 0, "{worker}: {step:?} with requests in flight");
            let busy = self.calls.iter().any(|other| {
                other.worker == worker && other.alive && !matches!(other.step, Step::Pull { .. })
            });
            assert!(!busy, "{worker}: two calls at a time");
        }
        let first = matches!(step, Step::Pull { .. } | Step::Pause);
        // A worker whose word was not enough is asked again later.
        let again = step == Step::Verify && engine.last == Some(rank(&step));
        let later = engine.last.is_none_or(|last| rank(&step) > last);
        assert!(first || again || later, "{step:?} after {:?}", engine.last);
        if matches!(step, Step::Update { .. }) {
            assert!(engine.paused, "an update of an engine that generates");
            assert_eq!(engine.told, None, "it may hold anything from now on");
        }
        self.calls.push(Outstanding { worker, call, step, alive: true });
    }

    fn released(&mut self, worker: &WorkerId) {
        let engine = self.engines.get_mut(worker).unwrap();
        assert!(!engine.open, "{worker} is released twice");
        assert!(!engine.paused, "{worker} serves while it is paused");
        assert_eq!(engine.holds, engine.told, "{worker} holds something else");
        engine.open = true;
        engine.last = None;
        engine.written = false;
    }

    fn has_committed(&mut self, committed: Committed) {
        let version = committed.version;
        // A commit that is asked for again is answered again.
        let Some((begun, _)) = self.begun.filter(|(begun, _)| *begun == version) else {
            assert_eq!(version, self.current);
            return;
        };
        assert!(begun > self.current && self.committing);
        (self.current, self.begun, self.committing) = (version, None, false);
        self.engines.values_mut().for_each(|engine| engine.written = false);
        let serving = self.engines.values().filter(|e| e.open && !e.reserved).count();
        assert_eq!(committed.workers as usize, serving);
        for (id, engine) in &self.engines {
            let pinned = engine.reserved && self.pins.values().any(|v| engine.holds == Some(*v));
            let generates = engine.open || engine.in_flight > 0;
            assert!(!generates || pinned || engine.holds == Some(version), "{id} {engine:?}");
        }
        self.committed.push(committed);
    }

    /// What holds between events.
    fn check(&self) {
        assert_eq!(self.weights.current(), self.current);
        assert_eq!(self.weights.begun().map(|(v, _)| v), self.begun.map(|(v, _)| v));
        let target = self.begun.filter(|_| self.committing).map(|(v, _)| v);
        let mut old = false;
        let mut new = false;
        for (id, engine) in &self.engines {
            if engine.reserved {
                let pinned = self.pins.values().any(|v| engine.told == Some(*v));
                let leaving = !engine.open || engine.told == Some(self.current);
                assert!(
                    pinned
                        || leaving
                        || self.calls.iter().any(|c| c.worker == *id)
                        || self.begun.is_some(),
                    "{id} is kept for nobody"
                );
            } else if engine.open {
                assert!(!engine.paused);
                assert!(
                    engine.holds == Some(self.current) || engine.holds == target,
                    "{id} serves {:?}",
                    engine.holds
                );
                old |= target.is_some() && engine.holds != target;
                new |= target.is_some() && engine.holds == target;
            }
        }
        if self.config.strategy == Strategy::Pause {
            assert!(!(old && new), "two versions take requests");
        }
        let reserved = self.engines.values().filter(|engine| engine.reserved).count();
        assert!(reserved <= self.config.evaluation_workers as usize);
        let versions: BTreeSet<Version> = self.pins.values().copied().collect();
        for version in versions {
            assert!(self.weights.pinned(version));
            let kept = self.engines.values().any(|engine| engine.told == Some(version));
            assert!(kept || version == self.current, "pinned {version} is held by nobody");
        }
    }

    /// All goes well from here on: everything that was begun ends, and in the end every
    /// worker serves a last version.
    pub(super) fn settle(&mut self) {
        for n in 0..8 {
            self.unpin(n);
        }
        for round in 0..2 {
            for _ in 0..200 {
                for n in 0..8 {
                    self.end_traffic(n);
                }
                if self.calls.is_empty() {
                    self.pass(self.config.retry_max);
                } else {
                    self.answer(0, Answer::Done);
                }
                if self.begun.is_none() && self.calls.is_empty() && round == 0 {
                    break;
                }
            }
            assert_eq!(self.begun, None, "an update that never ends: {:#?}", self.log);
            if round == 0 {
                let last = self.current.0 + 1;
                self.begin(last, Transfer::Disk).unwrap();
                self.commit(last).unwrap();
            }
        }
        for (id, engine) in &self.engines {
            assert!(engine.open && !engine.reserved, "{id} {engine:?} {:#?}", self.weights);
            assert_eq!(engine.holds, Some(self.current));
        }
    }
}
