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
        if spec.slots == 0 {
            let message = format!("worker `{id}` has no slots: it needs at least 1");
            return Err(Fault::new(FaultKind::User, "InvalidWorker", message));
        }
        if let Some(old) = self.names.get(&id) {
            self.left(*old);
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
        self.reconsider(seat);
        Ok(())
    }

    pub(super) fn left(&mut self, seat: Seat) {
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
        self.reconsider(seat);
        self.bury(seat);
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
            let was_idle = worker.idle();
            change(worker);
            if worker.idle() && !was_idle {
                self.out.push(Command::Idle { worker: worker.id.clone() });
            }
        }
        self.reconsider(seat);
        Ok(())
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
