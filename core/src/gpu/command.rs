//! What the pool decides.

use std::time::Duration;

use super::chunk::Chunk;
use super::event::OrderId;
use super::tenant::{EngineId, Kind};
use crate::fault::Fault;
use crate::ids::{ActionId, NodeId};
use crate::time::Time;

/// An output of [`super::Pool::on_event`], to be carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Make an engine resident: answer by [`super::Event::Restored`].
    Restore {
        /// The engine; a new one when `launch`.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Where.
        node: NodeId,
        /// On which GPUs.
        chunk: Chunk,
        /// What it serves.
        kind: Kind,
        /// It is to be started; else it is to be woken.
        launch: bool,
        /// Time for it.
        limit: Duration,
    },
    /// Put a resident engine to sleep: answer by [`super::Event::Evicted`].
    Evict {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Where.
        node: NodeId,
        /// Bytes that it may keep on each GPU.
        residue: u64,
        /// Time for it.
        limit: Duration,
    },
    /// End an engine's process, whatever it does and whatever was ordered before: answer by
    /// [`super::Event::Stopped`]. One that is gone already is ended.
    Stop {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Where.
        node: NodeId,
        /// Time for it.
        limit: Duration,
    },
    /// Run an action on a resident engine: answer by [`super::Event::Finished`].
    Run {
        /// The action.
        action: ActionId,
        /// The engine.
        engine: EngineId,
        /// Where.
        node: NodeId,
        /// When it has ended at the latest.
        deadline: Time,
    },
    /// End an action that runs; its end is still to be reported.
    Cancel {
        /// The action.
        action: ActionId,
        /// The engine.
        engine: EngineId,
        /// Where.
        node: NodeId,
    },
    /// An action's end. Comes once for each that was submitted.
    Ended {
        /// The action.
        action: ActionId,
        /// What became of it.
        result: Result<(), Fault>,
    },
    /// A node that is being drained holds no engine any more.
    Drained(NodeId),
    /// A node has been away for so long that nothing is known of it any more.
    Forgotten(NodeId),
}
