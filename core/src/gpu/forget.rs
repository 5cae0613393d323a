//! Nodes that do not come back. Where machines come and go under ever new names, the books hold
//! those of a bounded time, not all that were ever seen.
//!
//! Nothing that was accepted is lost with a node: what ran there has ended before, and engines
//! with which it comes back after all are taken over, as by a pool that has just begun.

use super::command::Command;
use super::event::Node;
use super::pool::{Home, Pool, Timer};
use super::tenant::EngineId;
use crate::ids::NodeId;
use crate::time::Time;

impl Pool {
    /// Since when a node's agent is away; `None`: it is here.
    pub(super) fn set_away(&mut self, index: usize, since: Option<Time>) {
        let forget = self.config.forget;
        let home = &mut self.nodes[index];
        let before = std::mem::replace(&mut home.left, since);
        let name = home.name.clone();
        if let Some(before) = before {
            self.timers.remove(&(before + forget, Timer::Away(name.clone())));
        }
        if let Some(since) = since {
            self.timers.insert((since + forget, Timer::Away(name)));
        }
    }

    /// A place in the books for a node that is new: one that a forgotten node had, if any.
    pub(super) fn make_home(&mut self, node: &Node) -> usize {
        let name = node.name.clone();
        let home =
            Home { name, host: 0, left: None, draining: false, drained: false, vacant: false };
        if let Some(index) = self.nodes.iter().position(|home| home.vacant) {
            self.nodes[index] = home;
            return index;
        }
        self.nodes.push(home);
        self.chunks.add_node(node.gpus, node.memory)
    }

    /// Forgets a node that has been away for its time, unless a call there may still end.
    pub(super) fn forget_node(&mut self, name: &NodeId, now: Time) {
        let Some(index) = self.home(name) else { return };
        let due = self.nodes[index].left.map(|left| left + self.config.forget);
        // It may have been here and have left again: then there is a later timer.
        if due.is_none_or(|due| now < due) {
            return;
        }
        let there = self.engines.iter().filter(|(_, engine)| engine.chunk.node == index);
        let there: Vec<EngineId> = there.map(|(id, _)| *id).collect();
        let runs = |id: &EngineId| {
            let running = self.engines.get(id).map(|engine| engine.running.keys());
            running.into_iter().flatten().any(|action| self.is_on(action, *id))
        };
        if there.iter().any(runs) {
            // It is given up after its own time.
            self.timers.insert((now + self.config.grace, Timer::Away(name.clone())));
            return;
        }
        for id in there {
            self.forget(id);
        }
        self.chunks.resize_node(index, 0, 0);
        self.nodes[index].vacant = true;
        self.out.push(Command::Forgotten(name.clone()));
    }

    /// The places of nodes that are not forgotten.
    pub(super) fn known_nodes(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|index| !self.nodes[*index].vacant)
    }
}
