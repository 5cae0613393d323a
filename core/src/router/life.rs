//! A request from its arrival to its end.

use super::command::Command;
use super::event::{Ask, Outcome};
use super::line::{Band, Key, Place};
use super::need::Need;
use super::request::{Request, Run, State};
use super::worker::{Seat, Worker};
use super::{Router, waits};
use crate::fault::{Fault, FaultKind};
use crate::version::RequestId;

impl Router {
    pub(super) fn arrived(&mut self, id: RequestId, ask: Ask) -> Result<(), Fault> {
        if self.requests.contains_key(&id) {
            let message = format!("request {id} is here already: each needs a number of its own");
            return Err(Fault::new(FaultKind::User, "DuplicateRequest", message));
        }
        let home = ask.trajectory.as_ref().and_then(|trajectory| self.homes.get(trajectory));
        let request = Request {
            need: Need::of(&ask),
            task: self.affinities.intern_task(&ask.task),
            priority: ask.priority,
            arrived: self.now,
            home,
            first_turn: home.is_none(),
            avoid: None,
            failures: 0,
            state: State::New,
            trajectory: ask.trajectory,
        };
        // Whoever waits can be taken by no worker that has room, so nobody is overtaken.
        if let Some(pair) = self.choose(&request) {
            self.requests.insert(id, request);
            self.send(id, pair);
        } else if self.line.len() >= self.config.max_pending {
            return Err(self.overloaded());
        } else {
            self.requests.insert(id, request);
            self.enqueue(id, false);
        }
        Ok(())
    }

    fn overloaded(&self) -> Fault {
        let message = format!(
            "{} requests wait for a worker already, as many as may: try again later, \
             or run fewer environments",
            self.line.len()
        );
        let mut fault = Fault::new(FaultKind::Infrastructure, "Overloaded", message);
        fault.retry_after = Some(self.config.retry_after);
        fault
    }

    fn enqueue(&mut self, id: RequestId, back: bool) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let here = |seat: &Seat| self.workers.get(seat).is_some_and(|worker| !worker.gone());
        let place = Place {
            key: Key { band: Band::new(request.priority, back), request: id },
            need: request.need,
            task: request.task,
            home: request.home.map(|home| home.worker).filter(here),
        };
        request.state = State::Waiting { since: self.now, place };
        self.line.insert(&place);
        let requests = &self.requests;
        let waiting = self.line.len();
        self.deadlines.push(self.now, id, waiting, |id, since| waits(requests, id, since));
    }

    pub(super) fn withdrawn(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        match &mut request.state {
            State::Running(run) => {
                run.withdrawn = true;
                if !run.aborted
                    && let Some(worker) = self.workers.get(&run.worker)
                {
                    run.aborted = true;
                    let worker = worker.id.clone();
                    self.out.push(Command::Abort { request: id, worker, restart: false });
                }
            }
            State::Waiting { place, .. } => {
                self.line.remove(place);
                self.requests.remove(&id);
            }
            State::New => {}
        }
    }

    pub(super) fn prefilled(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let State::Running(run) = &mut request.state else { return };
        let Some(seat) = run.prefill.take() else { return };
        self.free(seat, id, |worker| worker.breaker.succeeded(id));
        self.freed(seat);
    }

    pub(super) fn ended(&mut self, id: RequestId, outcome: Outcome) -> Result<(), Fault> {
        let Some(run) = self.requests.get(&id).and_then(Request::run) else {
            let message = format!("request {id} is on no worker: only what was sent can end");
            return Err(Fault::new(FaultKind::User, "UnknownRequest", message));
        };
        let version = self.workers.get(&run.worker).and_then(|worker| worker.version);
        let blamed = blamed(&run, &outcome);
        let opened = self.account(id, &run, &outcome, blamed);
        if let Some(back) = self.settle(id, &run, outcome, blamed)
            && let Some(request) = self.requests.get_mut(&id)
        {
            if request.trajectory.is_some() {
                request.need = request.need.raised(version);
            }
            self.enqueue(id, back);
        }
        if let Some(seat) = opened {
            self.reconsider(seat);
        }
        self.freed(run.worker);
        if let Some(prefill) = run.prefill {
            self.freed(prefill);
        }
        self.try_send(id);
        Ok(())
    }

    /// Sends a request that has just come back to the line, if a worker has room.
    fn try_send(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get(&id)
            && matches!(request.state, State::Waiting { .. })
            && let Some(pair) = self.choose(request)
        {
            self.send(id, pair);
        }
    }

    /// Frees the slots and tells the circuit breakers. The worker whose breaker has
    /// opened, if one has.
    fn account(
        &mut self,
        id: RequestId,
        run: &Run,
        outcome: &Outcome,
        blamed: Option<Seat>,
    ) -> Option<Seat> {
        let answered = match outcome {
            Outcome::Done(_) => true,
            // The engine is well enough to say that the request is wrong.
            Outcome::Failed { fault, .. } => fault.kind == FaultKind::User,
            Outcome::Unreached { .. } | Outcome::Back => false,
        };
        let (mut rule, now) = (self.config.breaker, self.now);
        if matches!(outcome, Outcome::Unreached { .. }) {
            rule.failures = 1;
        }
        let mut opened = None;
        for seat in [Some(run.worker), run.prefill].into_iter().flatten() {
            let mut until = None;
            self.free(seat, id, |worker| {
                if blamed == Some(seat) {
                    until = worker.breaker.failed(id, &rule, now);
                } else if answered {
                    worker.breaker.succeeded(id);
                } else {
                    worker.breaker.inconclusive(id);
                }
            });
            if let Some(until) = until {
                self.timers.insert((until, seat));
                opened = Some(seat);
            }
        }
        opened
    }

    /// Frees the request's slot on one worker.
    fn free(&mut self, seat: Seat, id: RequestId, account: impl FnOnce(&mut Worker)) {
        let Some(worker) = self.workers.get_mut(&seat) else { return };
        worker.in_flight.remove(&id);
        account(worker);
        if worker.idle() {
            self.out.push(Command::Idle { worker: worker.id.clone() });
        }
        self.bury(seat);
    }

    /// Ends the request, or says that it goes on, and whether first in line.
    fn settle(
        &mut self,
        id: RequestId,
        run: &Run,
        outcome: Outcome,
        blamed: Option<Seat>,
    ) -> Option<bool> {
        let request = self.requests.get_mut(&id)?;
        let refusal = match outcome {
            Outcome::Done(usage) => {
                self.affinities.observe(request.task, usage, request.first_turn);
                None
            }
            _ if run.withdrawn => None,
            Outcome::Back => return Some(true),
            Outcome::Unreached { .. } => {
                request.avoid = blamed.or(Some(run.worker));
                return Some(run.aborted);
            }
            Outcome::Failed { resumable: true, .. } if run.aborted => return Some(true),
            Outcome::Failed { fault, resumable, .. } => {
                request.failures += 1;
                if resumable && request.failures < self.config.max_attempts {
                    request.avoid = blamed.or(Some(run.worker));
                    return Some(false);
                }
                Some(fault)
            }
        };
        self.requests.remove(&id);
        self.out.extend(refusal.map(|fault| Command::Refuse { request: id, fault }));
        None
    }

    pub(super) fn tick(&mut self) {
        let mut probing = Vec::new();
        while let Some((at, seat)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            if let Some(worker) = self.workers.get_mut(&seat)
                && worker.breaker.tick(self.now)
            {
                probing.push(seat);
            }
        }
        // Only then: all that are due together take what suits each of them best.
        if !probing.is_empty() {
            for seat in probing {
                self.recount(seat);
            }
            self.fill_all();
        }
        while let Some((since, id)) = self.deadlines.first()
            && since + self.config.max_wait <= self.now
        {
            if let Some(request) = self.requests.get(&id)
                && let State::Waiting { place, .. } = &request.state
                && request.waits_since(since)
            {
                let fault = self.waited_too_long(request);
                self.line.remove(place);
                self.requests.remove(&id);
                self.out.push(Command::Refuse { request: id, fault });
            }
            let requests = &self.requests;
            self.deadlines.trim(|id, since| waits(requests, id, since));
        }
    }

    fn waited_too_long(&self, request: &Request) -> Fault {
        let limit = self.config.max_wait.as_secs_f64();
        if self.could_serve(request.need, None) {
            let message = format!(
                "the request waited {limit} s for a free slot: add workers or slots, or run \
                 fewer environments"
            );
            return Fault::new(FaultKind::Timeout, "QueueTimeout", message);
        }
        let wanted = match request.need {
            Need::AtLeast(None) => String::new(),
            Need::AtLeast(Some(least)) => format!(" with version {least} of the weights or later"),
            Need::Exactly(pinned) => format!(" with version {pinned} of the weights"),
        };
        let message = format!(
            "no worker{wanted} was in service when the request had waited {limit} s: see the \
             workers' states"
        );
        Fault::new(FaultKind::Infrastructure, "NoWorker", message)
    }
}

/// Whose fault it is, if it is a worker's.
fn blamed(run: &Run, outcome: &Outcome) -> Option<Seat> {
    let (by_worker, prefill) = match outcome {
        Outcome::Unreached { prefill, .. } => (true, *prefill),
        Outcome::Failed { fault, prefill, .. } => {
            let kinds = [FaultKind::Infrastructure, FaultKind::Timeout];
            (kinds.contains(&fault.kind) && !run.aborted, *prefill)
        }
        Outcome::Done(_) | Outcome::Back => (false, false),
    };
    let guilty = if prefill { run.prefill.unwrap_or(run.worker) } else { run.worker };
    by_worker.then_some(guilty)
}
