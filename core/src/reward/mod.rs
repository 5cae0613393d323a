//! Scoring of trajectories by reward services.
//!
//! The first service of rewards that takes a task scores it, and every teacher that takes it
//! says the log-probabilities of its tokens. Calls of a service are bounded; a fault of
//! infrastructure or of time is tried again with back-off, `Retry-After` is honoured by all
//! calls of the service, and a service that fails again and again is left alone for a while.
//! What cannot be had in the end is reported as a fault: it never becomes a number.

mod backoff;
mod circuit;
mod command;
mod config;
mod desk;
mod event;

use std::collections::{BTreeMap, BTreeSet};

pub use command::Command;
pub use config::{Backoff, Circuit, Config, Gives, Service};
pub use event::{Answer, CallId, Event, ServiceIndex};

use self::desk::Desk;
use crate::fault::{Fault, FaultKind};
use crate::ids::{Task, TrajectoryId};
use crate::time::Time;

/// The reward services of a job. Cost of an event: logarithmic in the trajectories that
/// are being scored.
#[derive(Debug)]
pub struct Rewards {
    config: Config,
    desks: Vec<Desk>,
    cases: BTreeMap<TrajectoryId, Case>,
    /// In flight, cancelled ones too.
    calls: BTreeMap<CallId, Flight>,
    timers: BTreeSet<(Time, Timer)>,
    asked: u64,
    last_call: u64,
    out: Vec<Command>,
}

/// What one service does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Calls in flight, cancelled ones too.
    pub running: usize,
    /// Trajectories that wait for a call, and not for a back-off.
    pub waiting: usize,
    /// Its circuit is open.
    pub open: bool,
    /// Calls made.
    pub calls: u64,
    /// Calls that ended in a fault of infrastructure or in time.
    pub faults: u64,
    /// Trajectories that it has answered for.
    pub answered: u64,
}

/// A trajectory that is being scored.
#[derive(Debug)]
struct Case {
    /// Order of asking.
    seq: u64,
    reward: Option<f64>,
    /// What is still asked, by service.
    asked: BTreeMap<usize, Ask>,
}

/// What one service is asked of a trajectory.
#[derive(Debug)]
struct Ask {
    give_up: Time,
    /// Calls that count.
    tries: u32,
    stage: Stage,
    last: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    InLine,
    BackingOff(Time),
    Calling(CallId),
}

#[derive(Debug)]
struct Flight {
    service: usize,
    /// `None`: nobody waits for it.
    trajectory: Option<TrajectoryId>,
    probe: bool,
    deadline: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Deadline(CallId),
    Retry(TrajectoryId, usize),
    GiveUp(TrajectoryId, usize),
    /// A service may be called again.
    Desk(usize),
}

impl Rewards {
    /// No trajectory is scored yet.
    pub fn new(config: Config) -> Self {
        Self {
            desks: config.services.iter().map(|_| Desk::new()).collect(),
            config,
            cases: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            asked: 0,
            last_call: 0,
            out: Vec::new(),
        }
    }

    /// Handles one event. None is refused: what cannot be scored ends in
    /// [`Command::Scored`] with a fault.
    pub fn on_event(&mut self, event: Event, now: Time) -> Vec<Command> {
        match event {
            Event::Score { trajectory, task, reward, taught } => {
                self.score(trajectory, &task, reward, taught, now);
            }
            Event::Ended { call, outcome } => self.ended(call, outcome, now),
            Event::Cancel(trajectory) => {
                self.forget(&trajectory);
            }
            Event::Tick => {}
        }
        self.fire_timers(now);
        self.call(now);
        std::mem::take(&mut self.out)
    }

    /// Whether any service rewards the task.
    pub fn scores(&self, task: &Task) -> bool {
        self.services_of(task, Gives::Reward).next().is_some()
    }

    /// Whether any teacher takes the task.
    pub fn teaches(&self, task: &Task) -> bool {
        self.services_of(task, Gives::LogProbs).next().is_some()
    }

    fn services_of(&self, task: &Task, gives: Gives) -> impl Iterator<Item = usize> {
        let takes = move |service: &Service| {
            service.gives == gives && (service.tasks.is_empty() || service.tasks.contains(task))
        };
        let all = self.config.services.iter().enumerate();
        all.filter(move |(_, service)| takes(service)).map(|(index, _)| index)
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// What a service does; `None` for one that does not exist.
    pub fn stats(&self, service: ServiceIndex) -> Option<ServiceStats> {
        let desk = self.desks.get(service.0)?;
        let (running, waiting) = (desk.running, desk.line.len());
        Some(ServiceStats { running, waiting, open: desk.breaker.is_open(), ..desk.stats })
    }

    /// Trajectories that wait or are being scored.
    pub fn scoring(&self) -> usize {
        self.cases.len()
    }

    fn score(
        &mut self,
        trajectory: TrajectoryId,
        task: &Task,
        reward: Option<f64>,
        taught: bool,
        now: Time,
    ) {
        if self.cases.contains_key(&trajectory) {
            return;
        }
        let scorer = self.services_of(task, Gives::Reward).next().filter(|_| reward.is_none());
        if reward.is_none() && scorer.is_none() {
            let message = format!(
                "no reward service of the job scores task `{task}`; name one in rewardServices, \
                 or complete the trajectory with its reward"
            );
            return self
                .report(trajectory, Err(Fault::new(FaultKind::User, "NoRewardService", message)));
        }
        if self.cases.len() >= self.config.max_scoring {
            let message = format!(
                "{} trajectories are being scored, which is the most",
                self.config.max_scoring
            );
            let fault = Fault::new(FaultKind::Infrastructure, "RewardOverloaded", message);
            return self.report(trajectory, Err(fault));
        }
        self.asked += 1;
        let seq = self.asked;
        let teachers = self.services_of(task, Gives::LogProbs).filter(|_| taught);
        let services: Vec<usize> = scorer.into_iter().chain(teachers).collect();
        let mut asked = BTreeMap::new();
        for service in services {
            let give_up = now + self.config.services[service].patience;
            self.timers.insert((give_up, Timer::GiveUp(trajectory.clone(), service)));
            self.desks[service].line.insert(seq, trajectory.clone());
            asked.insert(service, Ask { give_up, tries: 0, stage: Stage::InLine, last: None });
        }
        self.cases.insert(trajectory.clone(), Case { seq, reward, asked });
        self.settle(&trajectory);
    }

    fn ask(&mut self, trajectory: &TrajectoryId, service: usize) -> Option<&mut Ask> {
        self.cases.get_mut(trajectory)?.asked.get_mut(&service)
    }

    /// Calls every service for as many as it may have.
    fn call(&mut self, now: Time) {
        for (index, (desk, service)) in self.desks.iter_mut().zip(&self.config.services).enumerate()
        {
            while let Some(trajectory) = desk.next(service, now) {
                let case = self.cases.get_mut(&trajectory);
                let Some(ask) = case.and_then(|case| case.asked.get_mut(&index)) else { continue };
                self.last_call += 1;
                let (call, deadline) = (CallId(self.last_call), now + service.timeout);
                ask.stage = Stage::Calling(call);
                ask.tries += 1;
                desk.running += 1;
                desk.stats.calls += 1;
                let flight = Flight {
                    service: index,
                    trajectory: Some(trajectory.clone()),
                    probe: desk.breaker.called(),
                    deadline,
                };
                self.calls.insert(call, flight);
                self.timers.insert((deadline, Timer::Deadline(call)));
                let (service, attempt) = (ServiceIndex(index), ask.tries);
                self.out.push(Command::Call { call, trajectory, service, attempt });
            }
        }
    }

    fn ended(&mut self, call: CallId, outcome: Result<Answer, Fault>, now: Time) {
        let Some(flight) = self.calls.remove(&call) else { return };
        self.timers.remove(&(flight.deadline, Timer::Deadline(call)));
        self.desks[flight.service].running -= 1;
        let Some(trajectory) = flight.trajectory else {
            self.desks[flight.service].breaker.no_news(flight.probe);
            return;
        };
        let index = flight.service;
        match (outcome, self.config.services[index].gives) {
            (Ok(Answer::Reward(reward)), Gives::Reward) if reward.is_finite() => {
                if let Some(case) = self.cases.get_mut(&trajectory) {
                    case.reward = Some(reward);
                }
                self.said(&trajectory, index);
            }
            (Ok(Answer::LogProbs), Gives::LogProbs) => self.said(&trajectory, index),
            (Ok(answer), gives) => {
                self.answered(index);
                let message = match (answer, gives) {
                    (Answer::Reward(reward), Gives::Reward) => {
                        format!("the service's reward is {reward}; it must be finite")
                    }
                    _ => format!("the service was asked for {gives:?} and said {answer:?}"),
                };
                let fault = Fault::new(FaultKind::Action, "RewardNotFinite", message);
                self.finish(&trajectory, Err(fault));
            }
            (Err(fault), _) => self.failed(&trajectory, index, flight.probe, fault, now),
        }
    }

    /// A service has answered for the trajectory.
    fn said(&mut self, trajectory: &TrajectoryId, service: usize) {
        self.desks[service].stats.answered += 1;
        self.answered(service);
        let Some(case) = self.cases.get_mut(trajectory) else { return };
        if let Some(ask) = case.asked.remove(&service) {
            self.timers.remove(&(ask.give_up, Timer::GiveUp(trajectory.clone(), service)));
        }
        self.settle(trajectory);
    }

    /// Reports the reward when nothing more is asked.
    fn settle(&mut self, trajectory: &TrajectoryId) {
        let Some(case) = self.cases.get(trajectory) else { return };
        if let (true, Some(reward)) = (case.asked.is_empty(), case.reward) {
            self.finish(trajectory, Ok(reward));
        }
    }

    /// A call of the trajectory has failed.
    fn failed(
        &mut self,
        trajectory: &TrajectoryId,
        index: usize,
        probe: bool,
        fault: Fault,
        now: Time,
    ) {
        let service = &self.config.services[index];
        let desk = &mut self.desks[index];
        if !matches!(fault.kind, FaultKind::Infrastructure | FaultKind::Timeout) {
            // The service works: it has found something wrong with what it was sent.
            self.answered(index);
            return self.finish(trajectory, Err(fault));
        }
        desk.stats.faults += 1;
        let Some(case) = self.cases.get_mut(trajectory) else { return };
        let Some(ask) = case.asked.get_mut(&index) else { return };
        let patient = now < ask.give_up;
        if let Some(wait) = fault.retry_after {
            let pause =
                wait.clamp(service.backoff.first, service.patience.max(service.backoff.first));
            desk.paused = desk.paused.max(now + pause);
            self.timers.insert((desk.paused, Timer::Desk(index)));
            desk.breaker.no_news(probe);
            ask.tries -= 1;
            if patient {
                ask.stage = Stage::InLine;
                ask.last = Some(fault);
                desk.line.insert(case.seq, trajectory.clone());
                return;
            }
        } else if fault.kind == FaultKind::Timeout && fault.reason != DEADLINE {
            // A program of the service took too long, not the service.
            desk.breaker.no_news(probe);
        } else {
            if desk.breaker.failed(probe, &service.circuit, now) {
                self.out.push(Command::Circuit { service: ServiceIndex(index), open: true });
            }
            if let Some(until) = desk.breaker.until() {
                self.timers.insert((until, Timer::Desk(index)));
            }
        }
        if !patient || ask.tries >= service.tries.max(1) {
            return self.finish(trajectory, Err(fault));
        }
        let draw = self.config.seed ^ case.seq.rotate_left(32) ^ u64::from(ask.tries);
        let at = now + service.backoff.jittered(ask.tries, draw);
        ask.stage = Stage::BackingOff(at);
        ask.last = Some(fault);
        self.timers.insert((at, Timer::Retry(trajectory.clone(), index)));
    }

    fn answered(&mut self, service: usize) {
        if self.desks[service].breaker.answered() {
            self.out.push(Command::Circuit { service: ServiceIndex(service), open: false });
        }
    }

    fn finish(&mut self, trajectory: &TrajectoryId, result: Result<f64, Fault>) {
        if self.forget(trajectory) {
            self.report(trajectory.clone(), result);
        }
    }

    fn report(&mut self, trajectory: TrajectoryId, result: Result<f64, Fault>) {
        self.out.push(Command::Scored { trajectory, result });
    }

    /// Takes a trajectory out of the books, and cancels its calls in flight.
    fn forget(&mut self, trajectory: &TrajectoryId) -> bool {
        let Some(case) = self.cases.remove(trajectory) else { return false };
        for (service, ask) in case.asked {
            self.timers.remove(&(ask.give_up, Timer::GiveUp(trajectory.clone(), service)));
            match ask.stage {
                Stage::InLine => drop(self.desks[service].line.remove(&case.seq)),
                Stage::BackingOff(at) => {
                    self.timers.remove(&(at, Timer::Retry(trajectory.clone(), service)));
                }
                Stage::Calling(call) => self.cancel_call(call),
            }
        }
        true
    }

    fn cancel_call(&mut self, call: CallId) {
        // One that has just ended, or was cancelled by its deadline, is in no flight for us.
        let Some(flight) = self.calls.get_mut(&call) else { return };
        if flight.trajectory.take().is_some() {
            self.out.push(Command::CancelCall(call));
        }
    }

    fn fire_timers(&mut self, now: Time) {
        while let Some((at, _)) = self.timers.first() {
            if *at > now {
                break;
            }
            let Some((_, timer)) = self.timers.pop_first() else { break };
            match timer {
                Timer::Deadline(call) => self.deadline_passed(call, now),
                Timer::Retry(trajectory, service) => {
                    let Some(case) = self.cases.get_mut(&trajectory) else { continue };
                    if let Some(ask) = case.asked.get_mut(&service) {
                        ask.stage = Stage::InLine;
                        self.desks[service].line.insert(case.seq, trajectory);
                    }
                }
                Timer::GiveUp(trajectory, service) => self.patience_ended(&trajectory, service),
                Timer::Desk(_) => {}
            }
        }
    }

    fn deadline_passed(&mut self, call: CallId, now: Time) {
        let Some(flight) = self.calls.get_mut(&call) else { return };
        let Some(trajectory) = flight.trajectory.take() else { return };
        let (index, probe) = (flight.service, std::mem::take(&mut flight.probe));
        self.out.push(Command::CancelCall(call));
        let service = &self.config.services[index];
        let message = format!(
            "reward service `{}` gave no answer in {} s",
            service.name,
            service.timeout.as_secs_f64()
        );
        let fault = Fault::new(FaultKind::Timeout, DEADLINE, message);
        self.failed(&trajectory, index, probe, fault, now);
    }

    /// A call that is in flight may still bring the answer.
    fn patience_ended(&mut self, trajectory: &TrajectoryId, index: usize) {
        let Some(ask) = self.ask(trajectory, index) else { return };
        if matches!(ask.stage, Stage::Calling(_)) {
            return;
        }
        let last = ask.last.take();
        let service = &self.config.services[index];
        let fault = last.unwrap_or_else(|| {
            let message = format!(
                "reward service `{}` could not be called in {} s",
                service.name,
                service.patience.as_secs_f64()
            );
            Fault::new(FaultKind::Infrastructure, "RewardUnavailable", message)
        });
        self.finish(trajectory, Err(fault));
    }
}

/// Reason of the fault of a call that gave no answer in time.
const DEADLINE: &str = "RewardTimeout";

#[cfg(test)]
mod tests;
