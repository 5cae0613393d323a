//! One worker's way through the calls of an update.

use std::time::Duration;

use super::Weights;
use super::command::Command;
use super::config::{InFlight, Strategy};
use super::worker::{At, Call, Gate, Job, Phase, Plan, Then, Trust, Worker};
use crate::fault::{Fault, FaultKind};
use crate::ids::WorkerId;
use crate::version::Version;

/// Doublings after which the time has certainly reached any sensible maximum.
const MAX_DOUBLINGS: u32 = 30;

impl Weights {
    /// Gives the worker a job, in place of what it does or after the call under way.
    pub(super) fn assign(&mut self, id: &WorkerId, job: Job) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.busy() {
            worker.next = Some(job);
        } else {
            self.start(id, job);
        }
    }

    fn start(&mut self, id: &WorkerId, job: Job) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let pulls = job.plan.call_after(None) == Some(Call::Pull);
        let waits = matches!(job.plan, Plan::Update(_)) && !worker.held() && !pulls;
        worker.next = None;
        worker.phase = Phase::Working(job, At::Ready { after: None });
        if !waits {
            self.go_on(id, None);
        }
    }

    /// Takes the next step of the worker's job; `after` is done.
    pub(super) fn go_on(&mut self, id: &WorkerId, after: Option<Call>) {
        let Some(worker) = self.workers.get(id) else { return };
        let Phase::Working(job, _) = &worker.phase else { return };
        let next = job.plan.call_after(after);
        if next == Some(Call::Pull) {
            self.call(id, Call::Pull);
        } else if !(worker.gate == Gate::Idle) {
            self.drain(id, Then::Go(after));
        } else if let Some(call) = next {
            self.call(id, call);
        } else if job.plan == Plan::Suspend {
            self.suspended(id);
        } else {
            self.finish(id);
        }
    }

    fn call(&mut self, id: &WorkerId, call: Call) {
        if call == Call::Update {
            self.set_version(id, None);
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        let Phase::Working(job, at) = &mut worker.phase else { return };
        self.next_call += 1;
        let number = self.next_call;
        *at = At::Calling { number, call };
        if worker.trust == Trust::Fresh {
            worker.trust = Trust::Used;
        }
        let step = job.step(call);
        self.out.push(Command::Call { worker: id.clone(), call: number, step });
    }

    /// Waits until the worker has nothing in flight.
    pub(super) fn drain(&mut self, id: &WorkerId, then: Then) {
        let keep = self.config.in_flight == InFlight::Keep && matches!(then, Then::Go(_));
        let held = self.workers.get(id).is_some_and(Worker::held);
        if held && matches!(then, Then::Fail(_)) {
            self.take_back(id);
        }
        self.hold(id, !keep);
        let until = keep.then(|| self.now + self.config.max_drain);
        if let Some(worker) = self.workers.get_mut(id)
            && let Phase::Working(_, at) = &mut worker.phase
        {
            *at = At::Draining { until, then };
        }
    }

    /// Takes the worker out of service, if it is in service.
    pub(super) fn hold(&mut self, id: &WorkerId, take_back: bool) {
        let Some(worker) = self.workers.get_mut(id).filter(|worker| !worker.held()) else { return };
        worker.gate = Gate::Held;
        worker.held_since = Some(self.now);
        self.out.push(Command::Hold { worker: id.clone() });
        if take_back {
            self.take_back(id);
        }
    }

    fn take_back(&mut self, id: &WorkerId) {
        let restart = self.config.in_flight == InFlight::Abort;
        self.out.push(Command::TakeBack { worker: id.clone(), restart });
    }

    pub(super) fn idle(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id).filter(|worker| worker.held()) else { return };
        worker.gate = Gate::Idle;
        if let Phase::Working(_, At::Draining { then, .. }) = &worker.phase {
            match then.clone() {
                Then::Go(after) => self.go_on(id, after),
                Then::Fail(fault) => self.fail(id, fault, false),
            }
        }
    }

    pub(super) fn drain_is_late(&mut self, id: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(id)
            && let Phase::Working(_, At::Draining { until, .. }) = &mut worker.phase
        {
            *until = None;
            self.take_back(id);
        }
    }

    /// An answer to a call. One to a call that no longer matters is ignored.
    pub(super) fn answered(
        &mut self,
        id: &WorkerId,
        number: u64,
        result: Result<Option<Version>, Fault>,
    ) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let held = worker.held();
        let Phase::Working(job, at) = &mut worker.phase else { return };
        let At::Calling { number: mine, call } = *at else { return };
        if mine != number {
            return;
        }
        *at = At::Ready { after: Some(call) };
        let says = match result {
            Ok(says) => says,
            Err(fault) if call == Call::Pull && !held => {
                *at = At::Barred(fault);
                return;
            }
            // What it still makes is of the old version.
            Err(fault) if worker.gate == Gate::Held => return self.drain(id, Then::Fail(fault)),
            Err(fault) => return self.fail(id, fault, call > Call::Pause),
        };
        let right = says.map_or(job.plan.trusts_silence(), |says| says == job.target);
        if call == Call::Verify && !right {
            let says = says.map_or_else(|| "does not say".to_owned(), |v| format!("says {v}"));
            let message = format!(
                "worker `{id}` should hold version {} of the weights, and {says}",
                job.target
            );
            let fault = Fault::new(FaultKind::Infrastructure, "WrongVersion", message);
            return self.fail(id, fault, true);
        }
        if let Some(update) = self.update.as_mut().filter(|_| call == Call::Pull) {
            update.pulled = Some(self.now);
        }
        // It serves on until its turn comes, or waits until the others have pulled.
        if call == Call::Pull && (!held || self.config.strategy == Strategy::Pause) {
            return;
        }
        self.go_on(id, Some(call));
    }

    fn suspended(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if let Some(next) = worker.next.take() {
            return self.start(id, next);
        }
        if let Phase::Working(_, at) = &mut worker.phase {
            *at = At::Suspended;
        }
        self.settle(id);
    }

    /// The job is done.
    fn finish(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let Phase::Working(job, _) = &worker.phase else { return };
        let job = job.clone();
        worker.strikes = 0;
        if job.plan == Plan::Reserve {
            worker.reserved = true;
            self.out.push(Command::Reserve { worker: id.clone(), reserved: true });
            self.settle(id);
        } else {
            worker.trust = Trust::Used;
            self.set_version(id, Some(job.target));
            self.succeeded(id, &job);
            let Some(worker) = self.workers.get_mut(id) else { return };
            if let Some(next) = worker.next.take() {
                return self.start(id, next);
            }
            // The goal may have changed since.
            if self.goal().0 != job.target {
                return self.bring(id);
            }
        }
        self.release(id);
    }

    /// The worker serves again.
    pub(super) fn release(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.phase = Phase::Serving;
        worker.next = None;
        if !worker.held() {
            return;
        }
        worker.gate = Gate::Open;
        if let (Some(since), Some(update)) = (worker.held_since.take(), &mut self.update) {
            update.exposed.push(self.now.since(since));
        }
        self.out.push(Command::Release { worker: id.clone() });
    }

    /// The worker leaves service, and is tried again later; `unknown`: what it holds.
    pub(super) fn fail(&mut self, id: &WorkerId, fault: Fault, unknown: bool) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.held_since = None;
        worker.strikes += 1;
        let retry = Some(self.now + back_off(&self.config, worker.strikes));
        worker.phase = Phase::Out { fault: fault.clone(), retry };
        let next = worker.next.take();
        if unknown {
            self.set_version(id, None);
        }
        match next {
            Some(next) => self.start(id, next),
            None => self.failed(id, fault),
        }
    }

    pub(super) fn set_version(&mut self, id: &WorkerId, version: Option<Version>) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.version != version {
            worker.version = version;
            self.unreserve(id);
            self.out.push(Command::SetVersion { worker: id.clone(), version });
        }
    }

    pub(super) fn unreserve(&mut self, id: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(id).filter(|worker| worker.reserved) {
            worker.reserved = false;
            self.out.push(Command::Reserve { worker: id.clone(), reserved: false });
        }
    }
}

fn back_off(config: &super::Config, strikes: u32) -> Duration {
    let doublings = strikes.saturating_sub(1).min(MAX_DOUBLINGS);
    config.retry_base.saturating_mul(1 << doublings).min(config.retry_max)
}
