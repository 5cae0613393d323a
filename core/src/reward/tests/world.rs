//! Services that answer when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fault::{Fault, FaultKind};
use crate::ids::{Task, TrajectoryId};
use crate::reward::{
    Backoff, CallId, Circuit, Command, Config, Event, Rewards, Service, ServiceIndex,
};
use crate::time::Time;

pub(super) fn trajectory(n: usize) -> TrajectoryId {
    TrajectoryId::new(&format!("t{n}")).unwrap()
}

pub(super) fn task(name: &str) -> Task {
    Task::new(name).unwrap()
}

pub(super) fn service(name: &str, tasks: &[&str]) -> Service {
    let secs = Duration::from_secs;
    Service {
        name: name.into(),
        tasks: tasks.iter().map(|name| task(name)).collect(),
        concurrency: 2,
        timeout: secs(10),
        tries: 3,
        patience: secs(100),
        backoff: Backoff { first: secs(1), most: secs(8) },
        circuit: Circuit { faults: 4, open: Backoff { first: secs(5), most: secs(40) } },
    }
}

pub(super) fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, "Broken", "it broke")
}

pub(super) fn busy(secs: u64) -> Fault {
    let retry_after = Some(Duration::from_secs(secs));
    Fault { retry_after, ..fault(FaultKind::Infrastructure) }
}

#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) trajectory: TrajectoryId,
    pub(super) service: ServiceIndex,
    pub(super) cancelled: bool,
}

pub(super) struct World {
    pub(super) rewards: Rewards,
    config: Config,
    pub(super) now: Time,
    /// Calls in flight.
    pub(super) calls: BTreeMap<CallId, Made>,
    pub(super) made: Vec<(Time, CallId, u32)>,
    seen: BTreeSet<CallId>,
    /// Asked for and neither scored nor cancelled.
    pub(super) open: BTreeSet<TrajectoryId>,
    pub(super) scored: Vec<(TrajectoryId, Result<f64, Fault>)>,
    pub(super) circuits: Vec<(ServiceIndex, bool)>,
}

impl World {
    pub(super) fn new(services: Vec<Service>) -> Self {
        let config = Config { services, max_scoring: 100, seed: 7 };
        Self {
            rewards: Rewards::new(config.clone()),
            config,
            now: Time::ZERO,
            calls: BTreeMap::new(),
            made: Vec::new(),
            seen: BTreeSet::new(),
            open: BTreeSet::new(),
            scored: Vec::new(),
            circuits: Vec::new(),
        }
    }

    pub(super) fn score(&mut self, n: usize, on: &str) {
        self.open.insert(trajectory(n));
        self.send(Event::Score { trajectory: trajectory(n), task: task(on) });
    }

    pub(super) fn cancel(&mut self, n: usize) {
        self.open.remove(&trajectory(n));
        self.send(Event::Cancel(trajectory(n)));
    }

    /// The `pick`-th call in flight ends.
    pub(super) fn answer(&mut self, pick: usize, outcome: Result<f64, Fault>) {
        let Some(call) = self.calls.keys().nth(pick % self.calls.len().max(1)).copied() else {
            return;
        };
        self.calls.remove(&call);
        self.send(Event::Ended { call, outcome });
    }

    /// Time passes, with a tick at each deadline on the way.
    pub(super) fn pass(&mut self, secs: f64) {
        let end = self.now + Duration::from_secs_f64(secs);
        while let Some(at) = self.rewards.next_deadline().filter(|at| *at <= end) {
            assert!(at > self.now, "a deadline is not handled: {:?}", self.rewards);
            self.now = at;
            self.send(Event::Tick);
        }
        self.now = end;
    }

    pub(super) fn send(&mut self, event: Event) {
        for command in self.rewards.on_event(event, self.now) {
            match command {
                Command::Call { call, trajectory, service, attempt } => {
                    assert!(self.seen.insert(call), "{call:?} made twice");
                    assert!(self.open.contains(&trajectory), "{trajectory} is not wanted");
                    let again = |made: &Made| made.trajectory == trajectory && !made.cancelled;
                    assert!(!self.calls.values().any(again), "{trajectory} is called for twice");
                    assert!(attempt <= self.config.services[service.0].tries);
                    self.made.push((self.now, call, attempt));
                    self.calls.insert(call, Made { trajectory, service, cancelled: false });
                }
                Command::CancelCall(call) => {
                    let made = self.calls.get_mut(&call).expect("a call in flight");
                    assert!(!std::mem::replace(&mut made.cancelled, true), "cancelled twice");
                }
                Command::Scored { trajectory, result } => {
                    assert!(self.open.remove(&trajectory), "{trajectory} is not wanted");
                    assert!(
                        result.as_ref().is_ok_and(|reward| reward.is_finite()) || result.is_err()
                    );
                    self.scored.push((trajectory, result));
                }
                Command::Circuit { service, open } => self.circuits.push((service, open)),
            }
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.rewards.scoring(), self.open.len());
        for (index, service) in self.config.services.iter().enumerate() {
            let index = ServiceIndex(index);
            let running = self.calls.values().filter(|made| made.service == index).count();
            assert!(running <= service.concurrency);
            let stats = self.rewards.stats(index).unwrap();
            assert_eq!(stats.running, running);
            let last = self.circuits.iter().rfind(|(of, _)| *of == index);
            assert_eq!(stats.open, last.is_some_and(|(_, open)| *open));
        }
    }
}
