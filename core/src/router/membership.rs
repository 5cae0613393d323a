//! Workers come, go, and change.

use super::Router;
use super::command::Command;
use super::event::{Role, WorkerSpec};
use super::home::Home;
use super::request::State;
use super::worker::{Seat, Stay, Worker};
use crate::fault::{Fault, FaultKind};
use crate::ids::{TrajectoryId, WorkerId};

impl Router {
    pub(super) fn seat(&self, worker: &WorkerId) -> Result<Seat, Fault> {
        self.names.get(worker).copied().ok_or_else(|| {
            let message = format!("no worker `{worker}` is here: it must join first");
            Fault::new(FaultKind::User, "UnknownWorker", message)
        })
    }

    pub(super) fn joined(
        &mut self,
        id: WorkerId,
        spec: &WorkerSpec,
        held: bool,
    ) -> Result<(), Fault> {
        check_slots(&id, spec.slots)?;
        let old = self.names.get(&id).copied();
        if let Some(old) = old {
            self.depart(old);
        }
        let class = self.affinities.intern_class(&spec.class);
        self.affinities.slots(class, spec.slots);
        let seat = self.next_seat;
        self.next_seat += 1;
        if spec.role == Role::Prefill {
            self.prefills.insert(seat);
        }
        self.names.insert(id.clone(), seat);
        self.workers.insert(seat, Worker::new(id, class, spec, held));
        // Only now: nobody takes the place of one that is back at once.
        if let Some(old) = old {
            self.recount(old);
            self.bury(old);
        }
        self.reconsider(seat);
        Ok(())
    }

    pub(super) fn left(&mut self, seat: Seat) {
        self.depart(seat);
        self.reconsider(seat);
        self.bury(seat);
    }

    fn depart(&mut self, seat: Seat) {
        let Some(worker) = self.workers.get_mut(&seat) else { return };
        worker.stay = Stay::Gone;
        self.names.remove(&worker.id);
        self.prefills.remove(&seat);
        let waiting: Vec<_> = self.line.at_home(seat).collect();
        for id in waiting {
            if let Some(request) = self.requests.get_mut(&id)
                && let State::Waiting { place, .. } = &mut request.state
            {
                self.line.remove(place);
                place.home = None;
                self.line.insert(place);
            }
        }
        self.take_back(seat, false);
    }

    /// Aborts what the worker has in flight.
    pub(super) fn take_back(&mut self, seat: Seat, restart: bool) {
        let Some(worker) = self.workers.get(&seat) else { return };
        for id in &worker.in_flight {
            let Some(request) = self.requests.get_mut(id) else { continue };
            let State::Running(run) = &mut request.state else { continue };
            if !run.aborted
                && let Some(at) = self.workers.get(&run.worker)
            {
                run.aborted = true;
                self.out.push(Command::Abort { request: *id, worker: at.id.clone(), restart });
            }
        }
    }

    /// Forgets a worker that has left, once nothing of it is in flight.
    pub(super) fn bury(&mut self, seat: Seat) {
        let dead = |worker: &Worker| worker.gone() && worker.in_flight.is_empty();
        if self.workers.get(&seat).is_some_and(dead) {
            self.workers.remove(&seat);
        }
    }

    pub(super) fn change(
        &mut self,
        worker: &WorkerId,
        change: impl FnOnce(&mut Worker),
    ) -> Result<(), Fault> {
        let seat = self.seat(worker)?;
        if let Some(worker) = self.workers.get_mut(&seat) {
            let (was_idle, held, stay) = (worker.idle(), worker.held, worker.stay);
            change(worker);
            // Whoever holds it, or lets it go, hears that it is idle, also where it was.
            let asked = (worker.held && !held) || worker.stay != stay;
            if worker.idle() && (asked || !was_idle) {
                self.out.push(Command::Idle { worker: worker.id.clone() });
            }
        }
        self.reconsider(seat);
        Ok(())
    }

    pub(super) fn resize(&mut self, worker: &WorkerId, slots: u32) -> Result<(), Fault> {
        check_slots(worker, slots)?;
        let seat = self.seat(worker)?;
        if let Some(class) = self.workers.get(&seat).map(|worker| worker.class) {
            self.affinities.slots(class, slots);
        }
        self.change(worker, |worker| worker.slots = slots)
    }

    /// A worker's usability may have changed: what follows from that.
    pub(super) fn reconsider(&mut self, seat: Seat) {
        self.recount(seat);
        self.fill_all();
    }

    /// Brings what is known of all workers together in line with one that has changed.
    pub(super) fn recount(&mut self, seat: Seat) {
        let Some(worker) = self.workers.get(&seat) else { return };
        if worker.usable() {
            self.disturbed = self.now;
        }
        let class = worker.class;
        let counts = |worker: &&Worker| {
            worker.class == class
                && worker.role != Role::Prefill
                && !worker.reserved
                && worker.in_service()
        };
        let in_service = self.workers.values().filter(counts).count();
        self.affinities.in_service(class, in_service as u32);
        let decodes = |worker: &&Worker| worker.role != Role::Prefill && worker.usable();
        self.decoders = self.workers.values().filter(decodes).count();
        let lacks = self.lacking();
        if lacks != self.lacks {
            self.lacks = lacks;
            self.out.push(Command::Lacks(lacks));
        }
    }

    /// The part that no healthy worker does although another one does the other part.
    fn lacking(&self) -> Option<Role> {
        let healthy = |role: Role| {
            self.workers.values().any(|worker| worker.role == role && worker.healthy())
        };
        match (healthy(Role::Prefill), healthy(Role::Decode)) {
            (true, false) if !healthy(Role::Mixed) => Some(Role::Decode),
            (false, true) => Some(Role::Prefill),
            _ => None,
        }
    }

    pub(super) fn move_to(
        &mut self,
        trajectory: &TrajectoryId,
        to: &WorkerId,
    ) -> Result<(), Fault> {
        let seat = self.seat(to)?;
        if self.prefills.contains(&seat) {
            let message =
                format!("worker `{to}` only prefills: a trajectory lives where it decodes");
            return Err(Fault::new(FaultKind::User, "InvalidWorker", message));
        }
        let home = Home { worker: seat, prefill: None };
        self.homes.set(trajectory, home, &self.config.sticky, self.now);
        Ok(())
    }
}

fn check_slots(worker: &WorkerId, slots: u32) -> Result<(), Fault> {
    if slots > 0 {
        return Ok(());
    }
    let message = format!("worker `{worker}` has no slots: it needs at least 1");
    Err(Fault::new(FaultKind::User, "InvalidWorker", message))
}
