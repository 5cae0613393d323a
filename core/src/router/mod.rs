//! Which worker generates a request (`RollArt` 5.2, 6.1: `LLMProxy`).
//!
//! A worker never has more requests in flight than slots; the rest wait in one line, by
//! priority and arrival. A request never waits while a worker that may generate it has
//! room. Turns of one trajectory stay on one worker as long as that costs nothing else.
//! Every request that is accepted ends once: done, refused or withdrawn.
//!
//! What a worker may generate is decided by versions of the weights alone; classes of
//! hardware are preferences. Cost of an event: a scan of the workers at most, and
//! otherwise logarithmic in the number of requests.

mod affinity;
mod breaker;
mod command;
mod config;
pub mod cost;
mod deadline;
mod dispatch;
mod event;
mod home;
mod life;
mod line;
mod membership;
mod need;
mod profile;
mod request;
mod view;
mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

pub use command::{Command, Moved};
pub use config::{Affinity, Auto, Breaker, ClassProfile, Config, ModelShape, Sticky};
pub use event::{Ask, Event, Outcome, Role, Usage, WorkerSpec};
pub use view::{TaskView, WorkerState, WorkerView};

use self::affinity::Affinities;
use self::deadline::Deadlines;
use self::home::Homes;
use self::line::Line;
use self::request::Request;
use self::worker::{Seat, Stay, Worker};
use crate::fault::Fault;
use crate::ids::WorkerId;
use crate::time::Time;
use crate::version::RequestId;

/// Routes the requests of one job.
#[derive(Debug)]
pub struct Router {
    config: Config,
    now: Time,
    workers: BTreeMap<Seat, Worker>,
    /// Seats of the workers that only prefill.
    prefills: BTreeSet<Seat>,
    names: HashMap<WorkerId, Seat>,
    next_seat: Seat,
    requests: HashMap<RequestId, Request>,
    line: Line,
    deadlines: Deadlines,
    homes: Homes,
    affinities: Affinities,
    /// When circuit breakers are due.
    timers: BTreeSet<(Time, Seat)>,
    /// When a worker last came into use: what waited before is not overtaken by that.
    disturbed: Time,
    /// Workers in use that decode.
    decoders: usize,
    /// What was last said of a part that nobody does.
    lacks: Option<Role>,
    out: Vec<Command>,
}

impl Router {
    /// A router without workers.
    pub fn new(config: Config) -> Self {
        Self {
            now: Time::ZERO,
            workers: BTreeMap::new(),
            prefills: BTreeSet::new(),
            names: HashMap::new(),
            next_seat: 0,
            requests: HashMap::new(),
            line: Line::default(),
            deadlines: Deadlines::default(),
            homes: Homes::default(),
            affinities: Affinities::new(config.affinity.clone()),
            timers: BTreeSet::new(),
            disturbed: Time::ZERO,
            decoders: 0,
            lacks: None,
            out: Vec::new(),
            config,
        }
    }

    /// Handles one event. `now` never runs backwards: an earlier one counts as the
    /// latest seen.
    ///
    /// An error is a refusal, and nothing has changed by the event: `Overloaded` (too
    /// many wait; try again after `retry_after`), `DuplicateRequest`, `UnknownRequest`
    /// (an end of what is on no worker), `UnknownWorker`, `InvalidWorker`.
    pub fn on_event(&mut self, event: Event, now: Time) -> Result<Vec<Command>, Fault> {
        self.now = self.now.max(now);
        self.handle(event)?;
        let requests = &self.requests;
        self.deadlines.trim(|id, since| waits(requests, id, since));
        Ok(mem::take(&mut self.out))
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let refusal = self.deadlines.first().map(|(since, _)| since + self.config.max_wait);
        let breaker = self.timers.first().map(|(at, _)| *at);
        refusal.into_iter().chain(breaker).min()
    }

    fn handle(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Joined { worker, spec, held } => self.joined(worker, &spec, held),
            Event::Left(worker) => self.seat(&worker).map(|seat| self.left(seat)),
            Event::Drain(worker) => self.change(&worker, |worker| worker.stay = Stay::Draining),
            Event::Stay(worker) => self.change(&worker, |worker| worker.stay = Stay::Here),
            Event::Slots { worker, slots } => self.resize(&worker, slots),
            Event::Healthy(worker) => self.change(&worker, |worker| worker.unhealthy = None),
            Event::Unhealthy { worker, reason } => {
                self.change(&worker, |worker| worker.unhealthy = Some(reason))
            }
            Event::Version { worker, version } => {
                self.change(&worker, |worker| worker.version = version)
            }
            Event::Hold(worker) => self.change(&worker, |worker| worker.held = true),
            Event::Release(worker) => self.change(&worker, |worker| worker.held = false),
            Event::Reserve { worker, reserved } => {
                self.change(&worker, |worker| worker.reserved = reserved)
            }
            Event::TakeBack { worker, restart } => {
                self.seat(&worker).map(|seat| self.take_back(seat, restart))
            }
            Event::Arrived { request, ask } => self.arrived(request, ask),
            Event::Withdrawn(request) => {
                self.withdrawn(request);
                Ok(())
            }
            Event::Prefilled(request) => {
                self.prefilled(request);
                Ok(())
            }
            Event::Ended { request, outcome } => self.ended(request, outcome),
            Event::Move { trajectory, to } => self.move_to(&trajectory, &to),
            Event::Forget(trajectory) => {
                self.homes.forget(&trajectory);
                Ok(())
            }
            Event::Tick => {
                self.tick();
                Ok(())
            }
        }
    }
}

fn waits(requests: &HashMap<RequestId, Request>, id: RequestId, since: Time) -> bool {
    requests.get(&id).is_some_and(|request| request.waits_since(since))
}

#[cfg(test)]
mod tests;
