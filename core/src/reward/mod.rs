//! Scoring of trajectories by reward services.
//!
//! The first service that takes a task scores it. Calls of a service are bounded; a fault
//! of infrastructure or of time is tried again with back-off, `Retry-After` is honoured by
//! all calls of the service, and a service that fails again and again is left alone for a
//! while. What cannot be scored in the end is reported as a fault: it never becomes a
//! number.

mod backoff;
mod circuit;
mod command;
mod config;
mod desk;
mod event;

use std::collections::{BTreeMap, BTreeSet};

pub use command::Command;
pub use config::{Backoff, Circuit, Config, Service};
pub use event::{CallId, Event, ServiceIndex};

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
    jobs: BTreeMap<TrajectoryId, Job>,
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
    /// Trajectories scored.
    pub scored: u64,
}

/// A trajectory that is being scored.
#[derive(Debug)]
struct Job {
    service: usize,
    /// Order of asking.
    seq: u64,
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
    Retry(TrajectoryId),
    GiveUp(TrajectoryId),
    /// A service may be called again.
    Desk(usize),
}

impl Rewards {
    /// No trajectory is scored yet.
    pub fn new(config: Config) -> Self {
        Self {
            desks: config.services.iter().map(|_| Desk::new()).collect(),
            config,
            jobs: BTreeMap::new(),
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
            Event::Score { trajectory, task } => self.score(trajectory, &task, now),
            Event::Ended { call, outcome } => self.ended(call, outcome, now),
            Event::Cancel(trajectory) => self.cancel(&trajectory),
            Event::Tick => {}
        }
        self.fire_timers(now);
        self.call(now);
        std::mem::take(&mut self.out)
    }

    /// Whether any service scores the task.
    pub fn scores(&self, task: &Task) -> bool {
        self.service_of(task).is_some()
    }

    fn service_of(&self, task: &Task) -> Option<usize> {
        let takes = |service: &Service| service.tasks.is_empty() || service.tasks.contains(task);
        self.config.services.iter().position(takes)
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
        self.jobs.len()
    }

    fn score(&mut self, trajectory: TrajectoryId, task: &Task, now: Time) {
        if self.jobs.contains_key(&trajectory) {
            return;
        }
        let Some(service) = self.service_of(task) else {
            let message = format!(
                "no reward service of the job scores task `{task}`; name one in rewardServices, \
                 or complete the trajectory with its reward"
            );
            return self
                .report(trajectory, Err(Fault::new(FaultKind::User, "NoRewardService", message)));
        };
        if self.jobs.len() >= self.config.max_scoring {
            let message = format!(
                "{} trajectories are being scored, which is the most",
                self.config.max_scoring
            );
            let fault = Fault::new(FaultKind::Infrastructure, "RewardOverloaded", message);
            return self.report(trajectory, Err(fault));
        }
        self.asked += 1;
        let give_up = now + self.config.services[service].patience;
        let (seq, stage) = (self.asked, Stage::InLine);
        self.timers.insert((give_up, Timer::GiveUp(trajectory.clone())));
        self.desks[service].line.insert(seq, trajectory.clone());
        let job = Job { service, seq, give_up, tries: 0, stage, last: None };
        self.jobs.insert(trajectory, job);
    }

    /// Calls every service for as many as it may have.
    fn call(&mut self, now: Time) {
        for (index, (desk, service)) in self.desks.iter_mut().zip(&self.config.services).enumerate()
        {
            while let Some(trajectory) = desk.next(service, now) {
                let Some(job) = self.jobs.get_mut(&trajectory) else { continue };
                self.last_call += 1;
                let (call, deadline) = (CallId(self.last_call), now + service.timeout);
                job.stage = Stage::Calling(call);
                job.tries += 1;
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
                let (service, attempt) = (ServiceIndex(index), job.tries);
                self.out.push(Command::Call { call, trajectory, service, attempt });
            }
        }
    }

    fn ended(&mut self, call: CallId, outcome: Result<f64, Fault>, now: Time) {
        let Some(flight) = self.calls.remove(&call) else { return };
        self.timers.remove(&(flight.deadline, Timer::Deadline(call)));
        self.desks[flight.service].running -= 1;
        let Some(trajectory) = flight.trajectory else {
            self.desks[flight.service].breaker.no_news(flight.probe);
            return;
        };
        match outcome {
            Ok(reward) if reward.is_finite() => {
                self.desks[flight.service].stats.scored += 1;
                self.answered(flight.service);
                self.finish(&trajectory, Ok(reward));
            }
            Ok(reward) => {
                self.answered(flight.service);
                let message = format!("the service's reward is {reward}; it must be finite");
                let fault = Fault::new(FaultKind::Action, "RewardNotFinite", message);
                self.finish(&trajectory, Err(fault));
            }
            Err(fault) => self.failed(&trajectory, flight.service, flight.probe, fault, now),
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
        let Some(job) = self.jobs.get_mut(trajectory) else { return };
        let patient = now < job.give_up;
        if let Some(wait) = fault.retry_after {
            let pause =
                wait.clamp(service.backoff.first, service.patience.max(service.backoff.first));
            desk.paused = desk.paused.max(now + pause);
            self.timers.insert((desk.paused, Timer::Desk(index)));
            desk.breaker.no_news(probe);
            job.tries -= 1;
            if patient {
                job.stage = Stage::InLine;
                job.last = Some(fault);
                desk.line.insert(job.seq, trajectory.clone());
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
        if !patient || job.tries >= service.tries.max(1) {
            return self.finish(trajectory, Err(fault));
        }
        let draw = self.config.seed ^ job.seq.rotate_left(32) ^ u64::from(job.tries);
        let at = now + service.backoff.jittered(job.tries, draw);
        job.stage = Stage::BackingOff(at);
        job.last = Some(fault);
        self.timers.insert((at, Timer::Retry(trajectory.clone())));
    }

    fn answered(&mut self, service: usize) {
        if self.desks[service].breaker.answered() {
            self.out.push(Command::Circuit { service: ServiceIndex(service), open: false });
        }
    }

    fn cancel(&mut self, trajectory: &TrajectoryId) {
        if let Some(Stage::Calling(call)) = self.forget(trajectory).map(|job| job.stage)
            && let Some(flight) = self.calls.get_mut(&call)
        {
            flight.trajectory = None;
            self.out.push(Command::CancelCall(call));
        }
    }

    fn finish(&mut self, trajectory: &TrajectoryId, result: Result<f64, Fault>) {
        if self.forget(trajectory).is_some() {
            self.report(trajectory.clone(), result);
        }
    }

    fn report(&mut self, trajectory: TrajectoryId, result: Result<f64, Fault>) {
        self.out.push(Command::Scored { trajectory, result });
    }

    /// Takes a trajectory out of the books, but for a call in flight.
    fn forget(&mut self, trajectory: &TrajectoryId) -> Option<Job> {
        let job = self.jobs.remove(trajectory)?;
        self.timers.remove(&(job.give_up, Timer::GiveUp(trajectory.clone())));
        match job.stage {
            Stage::InLine => drop(self.desks[job.service].line.remove(&job.seq)),
            Stage::BackingOff(at) => {
                self.timers.remove(&(at, Timer::Retry(trajectory.clone())));
            }
            Stage::Calling(_) => {}
        }
        Some(job)
    }

    fn fire_timers(&mut self, now: Time) {
        while let Some((at, _)) = self.timers.first() {
            if *at > now {
                break;
            }
            let Some((_, timer)) = self.timers.pop_first() else { break };
            match timer {
                Timer::Deadline(call) => self.deadline_passed(call, now),
                Timer::Retry(trajectory) => {
                    if let Some(job) = self.jobs.get_mut(&trajectory) {
                        job.stage = Stage::InLine;
                        self.desks[job.service].line.insert(job.seq, trajectory);
                    }
                }
                Timer::GiveUp(trajectory) => self.patience_ended(&trajectory),
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

    /// A call that is in flight may still bring the score.
    fn patience_ended(&mut self, trajectory: &TrajectoryId) {
        let Some(job) = self.jobs.get_mut(trajectory) else { return };
        if matches!(job.stage, Stage::Calling(_)) {
            return;
        }
        let service = &self.config.services[job.service];
        let fault = job.last.take().unwrap_or_else(|| {
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
