//! What must hold after every event, whatever happened.

use std::collections::BTreeSet;

use super::world::{MEMORY, Process, World, node};
use crate::gpu::{EngineId, Kind, Order, Residency};
use crate::ids::NodeId;

impl Process {
    fn is_on(&self, name: &NodeId, gpu: u32) -> bool {
        node(self.chunk.node) == *name && self.chunk.gpus().contains(&gpu)
    }
}

impl World {
    pub(super) fn check(&mut self) {
        assert_eq!(self.pool.live(), self.open.len() + self.strays.len());
        let wanted: BTreeSet<Kind> = self.waiting().collect();
        for process in self.processes.values_mut() {
            process.owes &= wanted.contains(&process.kind);
        }
        for (name, machine) in &self.machines {
            for gpu in 0..machine.gpus {
                let there: Vec<&Process> =
                    self.processes.values().filter(|p| p.is_on(name, gpu)).collect();
                let executing = there.iter().filter(|p| !p.running.is_empty()).count();
                assert!(executing <= 1, "{executing} engines execute on GPU {gpu} of {name}");
                // One that took more than it declared is the fault that it is.
                let outgrown = there.iter().any(|p| p.held > self.footprint(p.kind).device);
                let held: u64 = there.iter().map(|process| process.held).sum();
                assert!(held <= MEMORY || outgrown, "{held} bytes on GPU {gpu} of {name}");
            }
        }
    }

    /// Of each action that waits, its kind.
    fn waiting(&self) -> impl Iterator<Item = Kind> {
        let waiting = self.open.iter().filter(|action| self.pool.runs_on(action).is_none());
        waiting.filter_map(|action| self.kinds.get(action).copied())
    }

    /// Nothing is moved for others that was restored for some that wait, and ran none.
    pub(super) fn check_owes(&self, engine: EngineId) {
        let Some(process) = self.processes.get(&engine).filter(|process| process.owes) else {
            return;
        };
        assert!(
            self.waiting().all(|kind| kind != process.kind),
            "{engine:?} is moved before it served those for whom it was restored: {:?}",
            self.pool
        );
    }

    /// The same of one that is ended, unless it failed or its node is being drained.
    pub(super) fn check_stop(&self, engine: EngineId, node: &NodeId) {
        let failed = self.pool.engine(engine).is_none_or(|e| e.residency == Residency::Failed);
        if !failed && !self.machines[node].draining {
            self.check_owes(engine);
        }
    }

    /// One move at a time on a GPU. An end is none.
    pub(super) fn check_moves(&self, engine: EngineId, what: Order) {
        let chunk = self.processes.get(&engine).map(|process| process.chunk);
        let moves = self.tasks.iter().filter(|task| task.what != Order::Stop);
        let beside = moves.filter_map(|task| self.processes.get(&task.engine)).find(|process| {
            what != Order::Stop && chunk.is_some_and(|chunk| chunk.overlaps(process.chunk))
        });
        assert!(beside.is_none(), "{engine:?} is moved beside {beside:?}, which is moved too");
    }
}
