//! Names, workers, requests and outcomes that tests are made of.

use crate::fault::{Fault, FaultKind};
use crate::ids::{Class, Task, TrajectoryId, WorkerId};
use crate::router::{Ask, Outcome, Role, Usage, WorkerSpec};

pub(super) fn worker(n: usize) -> WorkerId {
    WorkerId::new(&format!("w{n}")).unwrap()
}

pub(super) fn class(n: usize) -> Class {
    Class::new(["h800", "h20", "l40"][n]).unwrap()
}

pub(super) fn task(n: usize) -> Task {
    Task::new(["swe", "math", "game"][n]).unwrap()
}

pub(super) fn trajectory(n: usize) -> TrajectoryId {
    TrajectoryId::new(&format!("t{n}")).unwrap()
}

pub(super) fn spec(class_: usize, slots: u32) -> WorkerSpec {
    WorkerSpec { class: class(class_), role: Role::Mixed, slots, version: None }
}

pub(super) fn ask(task_: usize) -> Ask {
    Ask { trajectory: None, task: task(task_), priority: 0, at_least: None, pinned: None }
}

pub(super) fn turn(t: usize) -> Ask {
    Ask { trajectory: Some(trajectory(t)), ..ask(0) }
}

pub(super) fn done() -> Outcome {
    Outcome::Done(Usage { prompt_tokens: 10, cached_tokens: 2, output_tokens: 5 })
}

pub(super) fn failed(resumable: bool) -> Outcome {
    let fault = Fault::new(FaultKind::Infrastructure, "EngineFailed", "it died");
    Outcome::Failed { fault, resumable, prefill: false }
}
