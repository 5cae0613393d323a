//! What the queue decides.

use crate::cpu::CoreSet;
use crate::fault::Fault;
use crate::ids::{ActionId, NodeId, PermitId, TrajectoryId};
use crate::resources::Units;
use crate::time::Time;

/// An output of [`super::Queue::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// To an agent: do this.
    Node {
        /// Which node.
        node: NodeId,
        /// The link that it is meant for.
        epoch: u64,
        /// What to do.
        order: NodeOrder,
    },
    /// The trajectory has a node: make it durable before the sandbox is ordered.
    TrajectoryPlaced {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Where.
        node: NodeId,
    },
    /// The trajectory's sandbox is ready.
    TrajectoryReady {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Where.
        node: NodeId,
        /// When it was asked for.
        opened: Time,
        /// When it was given its node.
        placed: Time,
    },
    /// The trajectory has ended: closed, or never opened, or lost.
    TrajectoryEnded {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Why, unless it was closed by its caller.
        fault: Option<Fault>,
    },
    /// A trajectory is refused as it is asked for; nothing is kept of it.
    TrajectoryRefused {
        /// Which trajectory.
        trajectory: TrajectoryId,
        /// Why.
        fault: Fault,
    },
    /// The action is accepted and waits.
    ActionQueued(ActionId),
    /// The action is refused as it is submitted; nothing is kept of it.
    ActionRefused {
        /// Which action.
        action: ActionId,
        /// Why.
        fault: Fault,
    },
    /// The agent has started the program.
    ActionStarted {
        /// Which action.
        action: ActionId,
        /// Where.
        node: NodeId,
        /// The grant and its times.
        run: Run,
    },
    /// The action has ended, once and for all.
    ActionEnded {
        /// Which action.
        action: ActionId,
        /// How.
        outcome: Outcome,
        /// When it was submitted.
        submitted: Time,
        /// The grant, if it ever had one.
        run: Option<Run>,
    },
    /// The permit is held.
    PermitGranted {
        /// Which permit.
        permit: PermitId,
        /// When it was asked for.
        submitted: Time,
    },
    /// The permit will not be held, or not any longer.
    PermitEnded {
        /// Which permit.
        permit: PermitId,
        /// Why, unless its caller returned it.
        fault: Option<Fault>,
    },
}

/// What an agent is told to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOrder {
    /// Make the trajectory's sandbox. Repeating it does no harm.
    OpenSandbox(TrajectoryId),
    /// Remove it. Repeating it does no harm.
    CloseSandbox(TrajectoryId),
    /// Start an action. Repeating it with the same attempt does no harm.
    Start {
        /// Which action.
        action: ActionId,
        /// Which try.
        attempt: u32,
        /// Units granted.
        units: Units,
        /// Cores that it may run on.
        cores: CoreSet,
    },
    /// Pin a running action to other cores.
    Resize {
        /// Which action.
        action: ActionId,
        /// Units granted.
        units: Units,
        /// Cores that it may run on.
        cores: CoreSet,
    },
    /// Kill the whole process tree of an action.
    Kill(ActionId),
    /// Forget the end of an action that nobody waits for any more.
    Forget(ActionId),
}

/// One try of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which try, from 1.
    pub attempt: u32,
    /// Units granted at the start.
    pub units: Units,
    /// Cores granted at the start.
    pub cores: CoreSet,
    /// When the grant was made.
    pub granted: Time,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended by itself: the agent's report has the details.
    Finished,
    /// It did not.
    Failed(Fault),
    /// Its caller cancelled it, or closed its trajectory.
    Cancelled,
}
