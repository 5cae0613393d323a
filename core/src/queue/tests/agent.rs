//! A model of one node's agent. It survives its links and the queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cpu::CoreSet;
use crate::fault::{Fault, FaultKind};
use crate::ids::{ActionId, TrajectoryId};
use crate::queue::{End, NodeOrder, NodeReport, Usage};
use crate::resources::Units;

/// An action as its sandbox's helper knows it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) attempt: u32,
    pub(super) trajectory: TrajectoryId,
    pub(super) units: Units,
    pub(super) cores: CoreSet,
    /// `None` while it runs.
    pub(super) end: Option<(End, bool)>,
    /// What it took, where it ended by itself.
    pub(super) usage: Option<Usage>,
}

/// One node's agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) numa: Vec<CoreSet>,
    pub(super) linked: bool,
    pub(super) epoch: u64,
    /// Sandboxes on their way: its hello does not list them.
    pub(super) resetting: BTreeSet<TrajectoryId>,
    pub(super) sandboxes: BTreeSet<TrajectoryId>,
    pub(super) actions: BTreeMap<ActionId, Known>,
    pub(super) inbox: VecDeque<NodeOrder>,
    pub(super) outbox: VecDeque<NodeReport>,
}

impl Agent {
    pub(super) fn end(&mut self, action: &ActionId, end: End) {
        let Some(known) = self.actions.get_mut(action).filter(|k| k.end.is_none()) else { return };
        known.end = Some((end.clone(), false));
        known.usage = (end == End::Finished)
            .then_some(Usage { seconds: 1e-8 * f64::from(known.units.ceil()), cpu_seconds: None });
        let (attempt, usage, not_started) = (known.attempt, known.usage, false);
        let action = action.clone();
        let report = NodeReport::ActionEnded { action, attempt, end, not_started, usage };
        self.outbox.push_back(report);
    }

    pub(super) fn lose_sandbox(&mut self, trajectory: &TrajectoryId, why: &'static str) {
        self.resetting.remove(trajectory);
        self.sandboxes.remove(trajectory);
        let inside: Vec<ActionId> = self
            .actions
            .iter()
            .filter(|(_, known)| known.trajectory == *trajectory)
            .map(|(id, _)| id.clone())
            .collect();
        for action in inside {
            self.end(
                &action,
                End::Failed(Fault::new(FaultKind::Infrastructure, "SandboxLost", why)),
            );
        }
    }

    /// The next sandbox on its way is ready. False when there is none.
    pub(super) fn make_ready(&mut self) -> bool {
        let Some(trajectory) = self.resetting.pop_first() else { return false };
        self.sandboxes.insert(trajectory.clone());
        self.outbox.push_back(NodeReport::SandboxReady(trajectory));
        true
    }
}
