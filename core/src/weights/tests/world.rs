//! A model of a router, a trainer and engines, which knows what every engine really
//! holds and checks every command against that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, WorkerId};
use crate::time::Time;
use crate::version::Version;
use crate::weights::{
    Command, Committed, Config, Event, InFlight, Source, Step, Transfer, Weights,
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
#[expect(clippy::struct_excessive_bools, reason = "a model keeps apart what is true")]
pub(super) struct Engine {
    /// What it really holds; `None` is half of something.
    pub(super) holds: Option<Version>,
    /// What it says it holds.
    pub(super) says: Option<Version>,
    pub(super) speaks: bool,
    pub(super) paused: bool,
    /// The router sends it requests.
    pub(super) open: bool,
    pub(super) reserved: bool,
    /// What the router has been told that it holds.
    pub(super) told: Option<Version>,
    pub(super) in_flight: u32,
    /// Rank of the last call of the present round that was answered well.
    pub(super) last: Option<u8>,
    /// The trainer writes into it.
    pub(super) written: bool,
}

#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) worker: WorkerId,
    pub(super) call: u64,
    pub(super) step: Step,
    /// The engine that it was made to is still there.
    pub(super) alive: bool,
}

pub(super) struct World {
    pub(super) weights: Weights,
    pub(super) config: Config,
    pub(super) now: Time,
    pub(super) engines: BTreeMap<WorkerId, Engine>,
    pub(super) calls: Vec<Outstanding>,
    pub(super) idle: VecDeque<WorkerId>,
    pub(super) begun: Option<(Version, Transfer)>,
    pub(super) committing: bool,
    pub(super) current: Version,
    pub(super) pins: BTreeMap<GroupId, Version>,
    pub(super) committed: Vec<Committed>,
    pub(super) aborted: Vec<(Version, Fault)>,
    pub(super) log: Vec<String>,
}

pub(super) fn rank(step: &Step) -> u8 {
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
        // What it had in flight will never end well, but is not known to have ended yet.
        let version = engine.says;
        let ends = !engine.open && engine.in_flight > 0;
        engine.in_flight = 0;
        self.lose(n);
        self.send(Event::Restarted { worker: worker(n), version }).unwrap();
        if ends {
            self.send(Event::Idle(worker(n))).unwrap();
        }
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
