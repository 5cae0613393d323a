//! What must hold after every event, whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{MEMORY, World};
use crate::gpu::{EngineId, Kind, Order, Residency};
use crate::ids::NodeId;

impl World {
    pub(super) fn check(&mut self) {
        assert_eq!(self.pool.live(), self.open.len() + self.strays.len());
        let wanted: BTreeSet<Kind> = self.waiting().collect();
        let kind = |engine: &EngineId| self.processes.get(engine).map(|process| process.kind);
        let now = self.now;
        self.owing.retain(|engine, until| {
            let wanted = kind(engine).is_some_and(|kind| wanted.contains(&kind));
            wanted && until.is_none_or(|until| now < until)
        });
        let mut gpus: BTreeMap<(usize, u32), (u32, u64, bool)> = BTreeMap::new();
        for process in self.processes.values() {
            // One that took more than it declared is the fault that it is.
            let outgrown = process.held > self.footprint(process.kind).device;
            for gpu in process.chunk.gpus() {
                let (executing, held, exempt) = gpus.entry((process.chunk.node, gpu)).or_default();
                *executing += u32::from(!process.running.is_empty());
                (*held, *exempt) = (*held + process.held, *exempt || outgrown);
            }
        }
        for ((node, gpu), (executing, held, exempt)) in gpus {
            assert!(executing <= 1, "{executing} engines execute on GPU {gpu} of node {node}");
            assert!(held <= MEMORY || exempt, "{held} bytes on GPU {gpu} of node {node}");
        }
    }

    /// Of each action that waits, its kind.
    fn waiting(&self) -> impl Iterator<Item = Kind> {
        let waiting = self.open.iter().filter(|action| self.pool.runs_on(action).is_none());
        waiting.filter_map(|action| self.kinds.get(action).copied())
    }

    /// Nothing is moved for others that was restored for some that wait, and ran none or not for
    /// as long as it takes to move it away and back.
    pub(super) fn check_owes(&self, engine: EngineId) {
        let Some(until) = self.owing.get(&engine) else { return };
        let owes = until.is_none_or(|until| self.now < until);
        let Some(process) = self.processes.get(&engine).filter(|_| owes) else { return };
        assert!(
            self.waiting().all(|kind| kind != process.kind),
            "{engine:?} is moved before it served those for whom it was restored: {:?}",
            self.pool
        );
    }

    /// The same of one that is ended, unless it failed, its node is being drained, or that was
    /// tried before.
    pub(super) fn check_stop(&self, engine: EngineId, node: &NodeId) {
        let failed = self.pool.engine(engine).is_none_or(|e| e.residency == Residency::Failed);
        let dead = self.processes.get(&engine).is_some_and(|process| process.dead);
        if !failed && !dead && !self.machines[node].draining {
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
