//! Services that answer when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fault::{Fault, FaultKind};
use crate::ids::{Task, TrajectoryId};
use crate::reward::{
    Answer, Backoff, CallId, Circuit, Command, Config, Event, Gives, Rewards, Service, ServiceIndex,
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
        gives: Gives::Reward,
        tasks: tasks.iter().map(|name| task(name)).collect(),
        concurrency: 2,
        timeout: secs(10),
        tries: 3,
        patience: secs(100),
        backoff: Backoff { first: secs(1), most: secs(8) },
        circuit: Circuit { faults: 4, open: Backoff { first: secs(5), most: secs(40) } },
    }
}

/// A service that says log-probabilities.
pub(super) fn teacher(name: &str, tasks: &[&str]) -> Service {
    Service { gives: Gives::LogProbs, ..service(name, tasks) }
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
    /// Who has answered for what is open.
    pub(super) answered: BTreeSet<(TrajectoryId, ServiceIndex)>,
    /// Who had answered when the trajectory was scored.
    pub(super) done: BTreeMap<TrajectoryId, Vec<usize>>,
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
            answered: BTreeSet::new(),
            done: BTreeMap::new(),
            scored: Vec::new(),
            circuits: Vec::new(),
        }
    }

    pub(super) fn score(&mut self, n: usize, on: &str) {
        self.ask(n, on, None, true);
    }

    pub(super) fn ask(&mut self, n: usize, on: &str, reward: Option<f64>, taught: bool) {
        self.open.insert(trajectory(n));
        self.send(Event::Score { trajectory: trajectory(n), task: task(on), reward, taught });
    }

    pub(super) fn cancel(&mut self, n: usize) {
        self.close(&trajectory(n));
        self.send(Event::Cancel(trajectory(n)));
    }

    fn close(&mut self, trajectory: &TrajectoryId) -> bool {
        self.answered.retain(|(of, _)| of != trajectory);
        self.open.remove(trajectory)
    }

    /// The `pick`-th call in flight ends; a teacher's with log-probabilities in place of a
    /// number.
    pub(super) fn answer(&mut self, pick: usize, outcome: Result<f64, Fault>) {
        let Some(call) = self.calls.keys().nth(pick % self.calls.len().max(1)).copied() else {
            return;
        };
        let Some(made) = self.calls.remove(&call) else { return };
        let gives = self.config.services[made.service.0].gives;
        let good = outcome.as_ref().is_ok_and(|reward| reward.is_finite());
        if !made.cancelled && outcome.is_ok() && (good || gives == Gives::LogProbs) {
            self.answered.insert((made.trajectory, made.service));
        }
        let outcome = outcome.map(|reward| match gives {
            Gives::Reward => Answer::Reward(reward),
            Gives::LogProbs => Answer::LogProbs,
        });
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
                    let again = |made: &Made| {
                        (&made.trajectory, made.service) == (&trajectory, service)
                            && !made.cancelled
                    };
                    assert!(!self.calls.values().any(again), "{trajectory} is called for twice");
                    let answered = self.answered.contains(&(trajectory.clone(), service));
                    assert!(!answered, "{service:?} is asked again about {trajectory}");
                    assert!(attempt <= self.config.services[service.0].tries);
                    self.made.push((self.now, call, attempt));
                    self.calls.insert(call, Made { trajectory, service, cancelled: false });
                }
                Command::CancelCall(call) => {
                    let made = self.calls.get_mut(&call).expect("a call in flight");
                    assert!(!std::mem::replace(&mut made.cancelled, true), "cancelled twice");
                }
                Command::Scored { trajectory, result } => {
                    let asked = |made: &Made| made.trajectory == trajectory && !made.cancelled;
                    assert!(!self.calls.values().any(asked), "{trajectory} is still asked about");
                    if result.is_ok() {
                        self.done.insert(trajectory.clone(), self.answers_for(&trajectory));
                    }
                    assert!(self.close(&trajectory), "{trajectory} is not wanted");
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

    fn answers_for(&self, trajectory: &TrajectoryId) -> Vec<usize> {
        let of = self.answered.iter().filter(|(of, _)| of == trajectory);
        of.map(|(_, service)| service.0).collect()
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
