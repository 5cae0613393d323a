//! What agents report, and how engines fail.

use super::world::{MEMORY, Task, World, node};
use crate::fault::{Fault, FaultKind};
use crate::gpu::{EngineId, Event, Order, Proof, Trouble};
use crate::ids::ActionId;

/// How an order ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Good,
    /// The call returns, and nothing was done.
    Lies,
    /// It did what it says, but the memory does not follow.
    MemoryStays,
    /// It looks well and answers nothing.
    Mute,
    Refused,
    TimedOut,
    Dies,
    /// Nobody reports anything.
    Silent,
}

impl World {
    /// A process dies by itself.
    pub(super) fn die(&mut self, id: EngineId) {
        let Some(process) = self.processes.remove(&id) else { return };
        self.tasks.retain(|task| task.engine != id);
        if self.machines[&node(process.chunk.node)].up {
            self.send(Event::Broke(id, Trouble::Died("killed".into())));
        }
    }

    /// The `pick`-th order that an agent can report ends.
    pub(super) fn report(&mut self, pick: usize, outcome: Outcome) {
        let reachable: Vec<usize> =
            (0..self.tasks.len()).filter(|at| self.machines[&self.tasks[*at].node].up).collect();
        if reachable.is_empty() {
            return;
        }
        let task = self.tasks.remove(reachable[pick % reachable.len()]);
        match task.what {
            Order::Launch | Order::Wake => self.restored(&task, outcome),
            Order::Evict => self.evicted(&task, outcome),
            Order::Stop => self.stopped(&task, outcome),
        }
    }

    fn restored(&mut self, task: &Task, outcome: Outcome) {
        let process = self.processes.get_mut(&task.engine).expect("a process to restore");
        let residue =
            self.config.services[process.kind.service.0].degrees[&process.kind.degree].residue;
        let result = match outcome {
            Outcome::Good => {
                (process.awake, process.answers) = (true, true);
                self.owing.insert(task.engine, None);
                Ok(Proof { asleep: false, held: process.held, answers: true, movable: false })
            }
            Outcome::Lies => {
                (process.awake, process.held) = (false, residue);
                Ok(Proof { asleep: true, held: residue, answers: false, movable: false })
            }
            Outcome::Mute => {
                (process.awake, process.answers) = (true, false);
                Ok(Proof { asleep: false, held: process.held, answers: false, movable: false })
            }
            Outcome::MemoryStays => {
                process.awake = true;
                process.held += 1;
                Ok(Proof { asleep: false, held: MEMORY + 1, answers: true, movable: false })
            }
            Outcome::Refused => Err(Trouble::HostMemoryShort("none left".into())),
            Outcome::TimedOut => Err(Trouble::TimedOut(task.what)),
            Outcome::Dies => {
                self.processes.remove(&task.engine);
                Err(Trouble::Died("killed".into()))
            }
            Outcome::Silent => return,
        };
        self.send(Event::Restored(task.engine, task.order, result));
    }

    fn evicted(&mut self, task: &Task, outcome: Outcome) {
        let kind = self.processes[&task.engine].kind;
        let (footprint, moves) = (self.footprint(kind), self.moves(kind, &task.node));
        let process = self.processes.get_mut(&task.engine).unwrap();
        let held = process.held;
        let result = match outcome {
            Outcome::Good => {
                let held = if moves { 0 } else { footprint.residue };
                (process.awake, process.held) = (false, held);
                Ok(Proof { asleep: true, held, answers: false, movable: moves })
            }
            Outcome::Lies | Outcome::Mute => {
                Ok(Proof { asleep: false, held, answers: false, movable: false })
            }
            Outcome::MemoryStays => {
                process.awake = false;
                Ok(Proof { asleep: true, held, answers: false, movable: moves })
            }
            Outcome::Refused => Err(Trouble::Refused(Order::Evict, "busy".into())),
            Outcome::TimedOut => Err(Trouble::TimedOut(Order::Evict)),
            Outcome::Dies => {
                self.processes.remove(&task.engine);
                Err(Trouble::Died("killed".into()))
            }
            Outcome::Silent => return,
        };
        self.send(Event::Evicted(task.engine, task.order, result));
    }

    fn stopped(&mut self, task: &Task, outcome: Outcome) {
        let held = self.processes.get(&task.engine).map_or(0, |process| process.held);
        let result = match outcome {
            Outcome::MemoryStays | Outcome::Lies if held > 0 => Ok(held),
            Outcome::TimedOut | Outcome::Mute | Outcome::Refused => {
                Err(Trouble::TimedOut(Order::Stop))
            }
            Outcome::Silent => return,
            Outcome::Good | Outcome::Dies | Outcome::MemoryStays | Outcome::Lies => {
                self.processes.remove(&task.engine);
                Ok(0)
            }
        };
        self.send(Event::Stopped(task.engine, task.order, result));
    }

    /// The `pick`-th action that runs ends.
    pub(super) fn finish(&mut self, pick: usize, well: bool) {
        let running = self
            .processes
            .iter()
            .filter(|(_, process)| self.machines[&node(process.chunk.node)].up);
        let running: Vec<(EngineId, ActionId)> = running
            .flat_map(|(id, process)| process.running.iter().map(|action| (*id, action.clone())))
            .collect();
        if running.is_empty() {
            return;
        }
        let (engine, action) = running[pick % running.len()].clone();
        let process = self.processes.get_mut(&engine).unwrap();
        process.running.remove(&action);
        process.told.push(action.clone());
        let fault = || Fault::new(FaultKind::Infrastructure, "BadGateway", "it answered 502");
        let result = if well { Ok(()) } else { Err(fault()) };
        if well && self.open.contains(&action) {
            self.finished_well.insert(action.clone());
        }
        self.send(Event::Finished { action, engine, result });
    }
}
