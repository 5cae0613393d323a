//! Which worker takes a request, and which request a worker takes.

use super::Router;
use super::command::{Command, Moved};
use super::event::Role;
use super::home::Home;
use super::line::Key;
use super::need::Need;
use super::request::{Request, Run, State};
use super::worker::{Load, Seat, Worker};
use crate::version::{RequestId, Version};

impl Router {
    /// The best worker for a request that has room for it: its home unless that is
    /// overloaded, else by affinity and then load.
    pub(super) fn choose(&self, request: &Request) -> Option<Home> {
        let home = request.home.and_then(|home| {
            let worker = self.workers.get(&home.worker)?;
            let rank = self.affinities.rank(request.task, worker.class);
            self.pair(home.worker, worker, request).map(|pair| (pair, rank, worker.load()))
        });
        let margin = (self.config.sticky.margin * f64::from(1 << 16)) as Load;
        if let Some((home, _, load)) = home
            && load <= margin
        {
            return Some(home);
        }
        let mut best: Option<(usize, Load, Home)> = None;
        let mut lightest: Option<(Load, Home)> = None;
        for (seat, worker) in &self.workers {
            let (rank, load) = (self.affinities.rank(request.task, worker.class), worker.load());
            let lighter = home.is_some_and(|(_, at_most, _)| rank <= at_most)
                && lightest.is_none_or(|(least, _)| load < least);
            let better = best.is_none_or(|(r, l, _)| (rank, load) < (r, l));
            if (lighter || better)
                && let Some(pair) = self.pair(*seat, worker, request)
            {
                if lighter {
                    lightest = Some((load, pair));
                }
                if better {
                    best = Some((rank, load, pair));
                }
            }
        }
        match (home, lightest) {
            (Some((_, _, load)), Some((least, pair))) if load > least + margin => Some(pair),
            (Some((home, _, _)), _) => Some(home),
            (None, _) => best.map(|(_, _, pair)| pair),
        }
    }

    /// The worker with its prefill worker, if it can take the request now.
    fn pair(&self, seat: Seat, worker: &Worker, request: &Request) -> Option<Home> {
        let takes = worker.has_room()
            && worker.meets(request.need)
            && (worker.role != Role::Prefill || self.prefills_decode())
            && !self.avoids(request, seat);
        if !takes {
            return None;
        }
        match worker.role {
            Role::Decode => self.with_prefill(seat, worker.version, request),
            Role::Mixed | Role::Prefill => Some(Home { worker: seat, prefill: None }),
        }
    }

    /// Nobody else decodes, and prefill workers can.
    fn prefills_decode(&self) -> bool {
        self.config.alone && self.decoders == 0
    }

    /// A decode worker of this version with its prefill worker: that of the last turn, else
    /// the least loaded. Both must hold the same weights. Where there is none, it may be able
    /// to do without.
    fn with_prefill(
        &self,
        worker: Seat,
        version: Option<Version>,
        request: &Request,
    ) -> Option<Home> {
        let last = request.home.and_then(|home| home.prefill);
        let mut there = self
            .prefills_of(version)
            .filter(|(seat, worker)| worker.usable() && !self.avoids(request, *seat))
            .peekable();
        if there.peek().is_none() {
            return self.config.alone.then_some(Home { worker, prefill: None });
        }
        let free = there.filter(|(_, worker)| worker.has_room());
        let best = free.min_by_key(|(seat, worker)| (Some(*seat) != last, worker.load()));
        best.map(|(seat, _)| Home { worker, prefill: Some(seat) })
    }

    fn prefills_of(&self, version: Option<Version>) -> impl Iterator<Item = (Seat, &Worker)> {
        let workers =
            self.prefills.iter().filter_map(|seat| Some((*seat, self.workers.get(seat)?)));
        workers.filter(move |(_, worker)| worker.version == version)
    }

    /// Whether the request failed there last, and another worker could take it.
    fn avoids(&self, request: &Request, seat: Seat) -> bool {
        request.avoid == Some(seat) && self.could_serve(request.need, Some(seat))
    }

    /// Whether a worker other than `except` may generate it, as soon as it has room.
    pub(super) fn could_serve(&self, need: Need, except: Option<Seat>) -> bool {
        let counts = |seat: Seat, worker: &Worker| Some(seat) != except && worker.usable();
        self.workers.iter().any(|(seat, worker)| {
            counts(*seat, worker)
                && worker.meets(need)
                && match worker.role {
                    Role::Mixed => true,
                    Role::Prefill => self.prefills_decode(),
                    Role::Decode => {
                        let mut prefills = self.prefills_of(worker.version);
                        self.config.alone || prefills.any(|(seat, worker)| counts(seat, worker))
                    }
                }
        })
    }

    /// Gives every worker that has room what it may take.
    pub(super) fn fill_all(&mut self) {
        if self.line.len() == 0 {
            return;
        }
        let free = |(seat, worker): (&Seat, &Worker)| worker.has_room().then_some(*seat);
        let seats: Vec<Seat> = self.workers.iter().filter_map(free).collect();
        for seat in seats {
            self.fill(seat);
        }
    }

    /// A slot of the worker is free: what it, or the workers it prefills for, may take.
    pub(super) fn freed(&mut self, seat: Seat) {
        if self.prefills.contains(&seat) {
            self.fill_all();
        } else {
            self.fill(seat);
        }
    }

    fn fill(&mut self, seat: Seat) {
        while let Some((id, pair)) = self.next_for(seat) {
            self.send(id, pair);
        }
    }

    /// The request that the worker takes next.
    fn next_for(&self, seat: Seat) -> Option<(RequestId, Home)> {
        if self.line.len() == 0 {
            return None;
        }
        let worker = self.workers.get(&seat)?;
        let able = match worker.role {
            Role::Mixed => true,
            Role::Prefill => self.prefills_decode(),
            Role::Decode => !self.prefills_full(worker.version),
        };
        if !(able && worker.has_room()) {
            return None;
        }
        let pair = |id| self.requests.get(&id).and_then(|r| self.pair(seat, worker, r));
        let own = self.affinities.own(worker.class);
        let meets = |need| worker.meets(need);
        let found = self.line.candidates(seat, meets, own, |id| pair(id).is_some());
        let head = found.any?;
        let fits = |key: &Key| key.band == head.band;
        let fitting = [found.home, found.own].into_iter().flatten().find(fits);
        let next = fitting.filter(|_| self.patient(head.request)).unwrap_or(head).request;
        pair(next).map(|pair| (next, pair))
    }

    /// No request can have a prefill worker or do without, so none need be looked at.
    fn prefills_full(&self, version: Option<Version>) -> bool {
        let mut usable = 0;
        for (_, worker) in self.prefills_of(version).filter(|(_, worker)| worker.usable()) {
            if worker.has_room() {
                return false;
            }
            usable += 1;
        }
        // A request that failed on the only one does without.
        usable > 1 || !self.config.alone
    }

    /// Whether the first in line may still be overtaken by a better fit.
    fn patient(&self, head: RequestId) -> bool {
        self.requests.get(&head).is_some_and(|request| {
            self.now.since(request.arrived.max(self.disturbed)) < self.config.patience
        })
    }

    /// Sends a request that is new or in line.
    pub(super) fn send(&mut self, id: RequestId, pair: Home) {
        let Some(request) = self.requests.get(&id) else { return };
        let moved = self.moved(request, pair.worker);
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let State::Waiting { place, .. } = &request.state {
            self.line.remove(place);
        }
        request.state = State::Running(Run {
            worker: pair.worker,
            prefill: pair.prefill,
            aborted: false,
            withdrawn: false,
        });
        if let Some(trajectory) = &request.trajectory {
            request.home = Some(pair);
            self.homes.set(trajectory, pair, &self.config.sticky, self.now);
        }
        let task = request.task;
        let mut take = |seat: Seat| {
            let worker = self.workers.get_mut(&seat)?;
            worker.in_flight.insert(id);
            worker.breaker.sent(id);
            Some((worker.id.clone(), worker.class))
        };
        let prefill = pair.prefill.and_then(&mut take).map(|(id, _)| id);
        if let Some((worker, class)) = take(pair.worker) {
            self.out.push(Command::Send { request: id, worker, prefill, moved });
            self.out.extend(self.affinities.served_by(task, class));
        }
    }

    /// Why the request does not go where its trajectory was.
    fn moved(&self, request: &Request, to: Seat) -> Option<Moved> {
        let home = request.home.filter(|home| home.worker != to)?;
        let waited = matches!(request.state, State::Waiting { .. });
        let Some(worker) = self.workers.get(&home.worker).filter(|worker| worker.in_service())
        else {
            return Some(Moved::OutOfService);
        };
        Some(if request.avoid == Some(home.worker) {
            Moved::Failed
        } else if worker.held {
            Moved::Held
        } else if !worker.meets(request.need) {
            Moved::Version
        } else if waited || self.pair(home.worker, worker, request).is_none() {
            Moved::Full
        } else {
            Moved::Overloaded
        })
    }
}
