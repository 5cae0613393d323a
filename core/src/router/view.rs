//! What can be read of the router.

use super::Router;
use super::cost::Turn;
use super::event::Role;
use super::worker::{Stay, Worker};
use crate::ids::{Class, Task, TrajectoryId, WorkerId};
use crate::version::{RequestId, Version};

/// Why a worker takes requests or does not; the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// Ends what it has and goes.
    Draining,
    /// Does not answer its health check.
    Unhealthy,
    /// Too many requests failed there in a row.
    CircuitOpen,
    /// Held, as in an update of the weights.
    Held,
    /// One request finds out whether it works again.
    Probing,
    /// Takes only requests that are pinned to its version.
    Reserved,
    /// Takes requests.
    Ready,
}

impl WorkerState {
    /// The word used in metrics and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::CircuitOpen => "circuit_open",
            Self::Held => "held",
            Self::Probing => "probing",
            Self::Reserved => "reserved",
            Self::Ready => "ready",
        }
    }
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView<'a> {
    /// Its name.
    pub id: &'a WorkerId,
    /// Its class of hardware.
    pub class: &'a Class,
    /// Its part in a generation.
    pub role: Role,
    /// Whether it takes requests.
    pub state: WorkerState,
    /// Why its health check fails, if it does.
    pub unhealthy: Option<&'a str>,
    /// The version of the weights that it holds.
    pub version: Option<Version>,
    /// Requests that it may have in flight.
    pub slots: u32,
    /// Requests in flight.
    pub running: usize,
    /// Waiting requests of trajectories that had their last turn there.
    pub pending: usize,
}

/// One task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskView {
    /// Turns that have ended.
    pub turns_seen: u64,
    /// The mean turn of late; `None` before the first.
    pub turn: Option<Turn>,
    /// Turns of a trajectory, in the mean.
    pub turns_per_trajectory: f64,
    /// The classes that it prefers, the best first, with the estimated cost of a
    /// trajectory where affinity is automatic. Empty while it prefers none.
    pub order: Vec<(Class, Option<f64>)>,
    /// It is served by another class because the preferred one is not in service.
    pub fell_back: bool,
}

impl Router {
    /// The workers, in the order in which they joined; those that left are not named.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView<'_>> {
        self.workers.iter().filter(|(_, worker)| !worker.gone()).map(|(seat, worker)| WorkerView {
            id: &worker.id,
            class: self.affinities.class(worker.class),
            role: worker.role,
            state: state_of(worker),
            unhealthy: worker.unhealthy.as_deref(),
            version: worker.version,
            slots: worker.slots,
            running: worker.in_flight.len(),
            pending: self.line.at_home(*seat).count(),
        })
    }

    /// One worker.
    pub fn worker(&self, id: &WorkerId) -> Option<WorkerView<'_>> {
        self.workers().find(|worker| worker.id == id)
    }

    /// The version that a worker holds; `None` where that, or the worker, is not known.
    pub fn version(&self, id: &WorkerId) -> Option<Version> {
        self.workers.get(self.names.get(id)?)?.version
    }

    /// The worker is about to go.
    pub fn drains(&self, id: &WorkerId) -> bool {
        let worker = self.names.get(id).and_then(|seat| self.workers.get(seat));
        worker.is_some_and(|worker| worker.stay == Stay::Draining)
    }

    /// The part that no healthy worker does, where prefill and decode are separate.
    pub fn lacks(&self) -> Option<Role> {
        self.lacks
    }

    /// Requests in line.
    pub fn pending(&self) -> usize {
        self.line.len()
    }

    /// Requests between [`super::Command::Send`] and [`super::Event::Ended`].
    pub fn running(&self) -> usize {
        self.requests.len() - self.line.len()
    }

    /// The worker that a request was sent to; `None` if it waits or is not known.
    pub fn sent_to(&self, request: RequestId) -> Option<&WorkerId> {
        let run = self.requests.get(&request)?.run()?;
        self.workers.get(&run.worker).map(|worker| &worker.id)
    }

    /// The worker where the trajectory had its last turn, if it is still here.
    pub fn home(&self, trajectory: &TrajectoryId) -> Option<&WorkerId> {
        let home = self.homes.get(trajectory)?;
        self.workers.get(&home.worker).filter(|worker| !worker.gone()).map(|worker| &worker.id)
    }

    /// Trajectories whose place is remembered.
    pub fn places(&self) -> usize {
        self.homes.len()
    }

    /// What is known of a task. Beyond 256 of them, further ones are not told apart.
    pub fn task(&self, task: &Task) -> Option<TaskView> {
        self.affinities.view(task)
    }

    /// The tasks that are told apart.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.affinities.task_names()
    }
}

fn state_of(worker: &Worker) -> WorkerState {
    if worker.stay == Stay::Draining {
        WorkerState::Draining
    } else if worker.unhealthy.is_some() {
        WorkerState::Unhealthy
    } else if worker.breaker.is_open() {
        WorkerState::CircuitOpen
    } else if worker.held {
        WorkerState::Held
    } else if worker.breaker.probing() {
        WorkerState::Probing
    } else if worker.reserved {
        WorkerState::Reserved
    } else {
        WorkerState::Ready
    }
}
