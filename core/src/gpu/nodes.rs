//! Nodes that come, go, are drained, and lose GPUs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::chunk::Chunk;
use super::command::Command;
use super::event::{Adopted, Node, Running};
use super::pool::{Action, Engine, Pool, Timer};
use super::proof::Trouble;
use super::tenant::{EngineId, State};
use crate::fault::{Fault, FaultKind};
use crate::ids::{ActionId, NodeId};
use crate::time::Time;

impl Pool {
    /// An agent says what it has. What it does not name is gone, what the pool does not know
    /// is taken over where it was verified, and ended where not.
    pub(super) fn joined(&mut self, node: Node, now: Time) {
        let index = self.enter(&node);
        self.release_reserved(|engine| engine.chunk.node == index);
        let mut found: BTreeMap<EngineId, Adopted> =
            node.engines.into_iter().map(|adopted| (adopted.engine, adopted)).collect();
        // Numbers that an earlier queue gave are not given again.
        for adopted in found.values() {
            self.last_engine = self.last_engine.max(adopted.engine.0);
            self.last_order = adopted.order.map_or(0, |order| order.0).max(self.last_order);
        }
        let known: Vec<EngineId> = self
            .engines
            .iter()
            .filter(|(_, engine)| engine.chunk.node == index)
            .map(|(id, _)| *id)
            .collect();
        for id in known {
            let leaving = |engine: &Engine| matches!(engine.state, State::Leaving { .. });
            if let Some(adopted) = found.remove(&id) {
                self.compare(id, &adopted, now);
            } else {
                if !self.engines.get(&id).is_some_and(leaving) {
                    self.condemn(id, &Trouble::AgentLost, now);
                }
                self.forget(id);
            }
        }
        for (id, adopted) in found {
            // A number is given once: two agents that claim one engine cannot both have it.
            if !self.engines.contains_key(&id) {
                self.adopt(id, index, &adopted, now);
            }
        }
    }

    /// What runs there may go on, and ends by itself after its service's time. Nobody hears of
    /// it as long as the agent is away: then its action ends here.
    pub(super) fn left(&mut self, name: &NodeId, now: Time) {
        let Some(home) = self.home(name) else { return };
        self.set_away(home, Some(now));
        let there = self.engines.iter().filter(|(_, engine)| engine.chunk.node == home);
        let mut timers = Vec::new();
        for (id, engine) in there {
            for (action, began) in &engine.running {
                let at = self.lost_at(engine, *began, now);
                timers.push((at, Timer::Lost(*id, action.clone())));
            }
        }
        self.timers.extend(timers);
    }

    /// An action's agent is away, and no answer is to be expected any more. Its GPUs are in use
    /// until the agent says what became of it.
    pub(super) fn lost(&mut self, on: EngineId, id: &ActionId, now: Time) {
        let Some(engine) = self.engines.get(&on) else { return };
        let Some(left) = self.nodes[engine.chunk.node].left else { return };
        let due = engine.running.get(id).map(|began| self.lost_at(engine, *began, left));
        // It may have come back and left again: then there is a later timer.
        if !self.is_on(id, on) || due.is_none_or(|due| now < due) {
            return;
        }
        let (service, node) = (self.service(engine.kind), self.node_of(engine.chunk));
        let name = service.map_or("", |service| &service.name);
        let message = format!(
            "reward service `{name}` on node `{node}`: the node's agent has been away longer than a call may run"
        );
        self.end(id, Err(Fault::new(FaultKind::Infrastructure, "NodeLost", message)));
    }

    /// When an action that began then is given up if its node's agent stays away.
    fn lost_at(&self, engine: &Engine, began: Time, left: Time) -> Time {
        let timeout = self.service(engine.kind).map_or(Duration::MAX, |service| service.timeout);
        left.max(began + timeout) + self.config.grace
    }

    /// What is restored or idle there goes at once, what executes when it has ended.
    pub(super) fn drain(&mut self, name: &NodeId, on: bool, now: Time) {
        let Some(index) = self.home(name) else { return };
        let home = &mut self.nodes[index];
        (home.draining, home.drained) = (on, home.drained && on);
        if !on {
            return;
        }
        self.release_reserved(|engine| engine.chunk.node == index);
        let restoring: Vec<EngineId> = self
            .engines
            .iter()
            .filter(|(_, engine)| engine.chunk.node == index)
            .filter(|(_, engine)| matches!(engine.state, State::Restoring { .. }))
            .map(|(id, _)| *id)
            .collect();
        for id in restoring {
            self.stop(id, false, now);
        }
    }

    pub(super) fn gpu(&mut self, name: &NodeId, gpu: u32, lost: bool, now: Time) {
        let Some(index) = self.home(name) else { return };
        self.chunks.set_lost(index, gpu, lost);
        if !lost {
            return;
        }
        let on = |chunk: Chunk| chunk.node == index && chunk.gpus().contains(&gpu);
        self.release_reserved(|engine| on(engine.chunk));
        let broken: Vec<EngineId> =
            self.engines.iter().filter(|(_, engine)| on(engine.chunk)).map(|(id, _)| *id).collect();
        for id in broken {
            self.broke(id, &Trouble::GpuLost, now);
        }
    }

    /// Ends what idles on nodes that are being drained, and says when they are empty.
    pub(super) fn empty_drained(&mut self, now: Time) {
        let idle: Vec<EngineId> = self
            .engines
            .iter()
            .filter(|(_, engine)| {
                let home = &self.nodes[engine.chunk.node];
                let ends =
                    matches!(engine.state, State::Resident | State::Yielding | State::Asleep);
                home.left.is_none() && home.draining && ends && engine.running.is_empty()
            })
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            self.stop(id, false, now);
        }
        for index in 0..self.nodes.len() {
            let empty = !self.engines.values().any(|engine| engine.chunk.node == index);
            let home = &mut self.nodes[index];
            if home.draining && !home.drained && empty {
                home.drained = true;
                self.out.push(Command::Drained(home.name.clone()));
            }
        }
    }

    pub(super) fn home(&self, name: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|home| !home.vacant && home.name == *name)
    }

    /// The node's place in the books, with the hardware that it has now.
    fn enter(&mut self, node: &Node) -> usize {
        let index = self.home(&node.name).unwrap_or_else(|| self.make_home(node));
        self.chunks.resize_node(index, node.gpus, node.memory);
        node.lost.iter().for_each(|gpu| self.chunks.set_lost(index, *gpu, true));
        self.nodes[index].host = node.host;
        self.set_away(index, None);
        index
    }

    /// An engine that both know.
    fn compare(&mut self, id: EngineId, adopted: &Adopted, now: Time) {
        let Some(engine) = self.engines.get(&id) else { return };
        if let State::Leaving { failed } = engine.state {
            self.stop(id, failed, now);
            return;
        }
        // The order to bring it back elsewhere may not have reached its agent.
        let asleep = adopted.order.is_none() && adopted.proof.is_some_and(|proof| proof.asleep);
        let there = engine.chunk.start() == adopted.start
            || (asleep && engine.left.start() == adopted.start);
        let same = engine.kind == adopted.kind && there;
        let has = |running: &Running| engine.running.contains_key(&running.action);
        // The end of one that has ended may have been reported before.
        let known = adopted.running.iter().all(|running| running.ended || has(running));
        if !same || !known {
            self.broke(id, &Trouble::AgentLost, now);
            return;
        }
        let (kind, chunk, order) = (engine.kind, engine.chunk, engine.order);
        let name = self.service(kind).map_or("", |service| &service.name);
        let fault = Trouble::AgentLost.fault(name, self.nodes[chunk.node].name.as_str(), chunk);
        let (there, gone): (Vec<ActionId>, Vec<ActionId>) =
            engine.running.keys().cloned().partition(|action| {
                adopted.running.iter().any(|running| running.action == *action)
            });
        for action in gone {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.running.remove(&action);
            }
            if self.is_on(&action, id) {
                self.end(&action, Err(fault.clone()));
            }
        }
        for action in there {
            if !self.is_on(&action, id) {
                // It was cancelled while the link was down.
                self.cancel_on(id, action, now);
            }
        }
        if adopted.order == Some(order) {
            // Its report is still to come.
            let limits = self.service(kind).map(|service| service.limits).unwrap_or_default();
            self.watch(id, order, limits.launch, now);
        } else {
            self.judge(id, adopted, now);
        }
    }

    /// An engine that only the agent knows.
    fn adopt(&mut self, id: EngineId, node: usize, adopted: &Adopted, now: Time) {
        let aligned = adopted.start / adopted.kind.degree.gpus() * adopted.kind.degree.gpus();
        let Some(chunk) = Chunk::new(node, aligned, adopted.kind.degree) else { return };
        self.put(id, adopted.kind, chunk, State::Asleep, now);
        let fits = self.footprint(adopted.kind).is_some_and(|footprint| {
            let awake = adopted.proof.is_some_and(|proof| proof.resident(&footprint).is_ok());
            let unbound = adopted.proof.is_some_and(|proof| proof.is_unbound());
            let kept = if unbound { 0 } else { footprint.residue };
            self.chunks.fits(id, chunk, if awake { footprint.device } else { kept })
        });
        // Nothing is ordered of one that executes: it is taken to be what it was verified as.
        let footprint = self.footprint(adopted.kind);
        let resident = footprint.zip(adopted.proof).is_some_and(|(footprint, proof)| {
            proof.resident(&footprint).is_ok() && adopted.order.is_none()
        });
        let elsewhere = |running: &Running| {
            self.actions.get(&running.action).is_some_and(|action| action.on.is_some())
        };
        let takes = resident && !adopted.running.iter().any(elsewhere);
        // Of one that has ended, the report follows.
        let idle = adopted.running.iter().all(|running| running.ended);
        if fits && aligned == adopted.start && (takes || idle) {
            self.judge(id, adopted, now);
            self.take_in(id, adopted, now);
        } else {
            self.stop(id, false, now);
        }
    }

    /// Actions that an agent runs for a pool that is gone: their ends are reported here. One
    /// whose caller has asked again already waits no more.
    fn take_in(&mut self, id: EngineId, adopted: &Adopted, now: Time) {
        let Some(engine) = self.engines.get_mut(&id).filter(|e| e.state == State::Resident) else {
            return;
        };
        for Running { action, deadline, ended } in &adopted.running {
            if *ended && self.actions.get(action).is_some_and(|action| action.on.is_some()) {
                continue;
            }
            engine.running.insert(action.clone(), now);
            if let Some(before) = self.actions.remove(action) {
                self.timers.remove(&(before.deadline, Timer::Deadline(action.clone())));
                if let Some(line) = self.waiting.get_mut(&before.kind) {
                    line.remove(&before.seq);
                }
            }
            self.timers.insert((*deadline, Timer::Deadline(action.clone())));
            let (kind, deadline) = (adopted.kind, *deadline);
            let taken = Action { kind, seq: 0, deadline, on: Some(id) };
            self.actions.insert(action.clone(), taken);
        }
        self.waiting.retain(|_, line| !line.is_empty());
        self.settle(id);
    }

    /// Takes an engine for what its proof says.
    fn judge(&mut self, id: EngineId, adopted: &Adopted, now: Time) {
        let Some(footprint) = self.footprint(adopted.kind) else { return };
        let Some(proof) = adopted.proof else {
            self.broke(id, &Trouble::AgentLost, now);
            return;
        };
        if proof.resident(&footprint).is_ok() {
            self.become_resident(id, now);
        } else if let Err(trouble) = proof.evicted(&footprint) {
            self.broke(id, &trouble, now);
        } else {
            self.fell_asleep(id, proof.is_unbound());
        }
    }
}
