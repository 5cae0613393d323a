//! Whoever waits, waits for something that will happen.

use crate::queue::{Queue, Timer};

impl Queue {
    /// A line that is not empty stands before something that is held (its end will be
    /// an event), before a timer, or before a node that is away.
    pub(super) fn assert_nothing_is_stuck(&self) {
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.connected) {
            let held = node.cpu.free() + self.kept(node.cpu.capacity()) < node.cpu.capacity();
            let waits = node.line.first(&self.cpu_share, self.now).is_some();
            let wakes = |at| self.timers.contains(&(at, Timer::Line(id.clone())));
            let gathers = node.wakes.is_some_and(wakes);
            assert!(!waits || held || gathers, "the line of {id} waits for nothing");
        }
        for (name, line) in &self.quotas {
            let timer = self.timers.iter().any(|(_, t)| *t == Timer::QuotaRoom(name.clone()));
            let held = line.quota.held() > 0;
            assert!(
                line.claims.is_empty() || held || timer,
                "the line of {name} waits for nothing"
            );
        }
        let waits = self.opening.first(&self.memory_share, self.now).is_some();
        let held = self.nodes.values().any(|node| !node.trajectories.is_empty());
        let away = self.nodes.is_empty() || self.nodes.values().any(|node| !node.connected);
        let unsettled = self.settled.is_none_or(|at| at > self.now);
        assert!(!waits || held || away || unsettled, "those that open wait for nothing");
    }

    fn kept(&self, capacity: usize) -> usize {
        usize::from(self.config.shared_cores).min(capacity)
    }
}
