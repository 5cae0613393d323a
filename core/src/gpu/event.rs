//! What the pool is told.

use super::chunk::Degree;
use super::proof::{Proof, Trouble};
use super::tenant::{EngineId, Kind, ServiceIndex};
use crate::fault::Fault;
use crate::ids::{ActionId, NodeId};
use crate::time::Time;

/// The number of an order. Reports of an order that is not the engine's last are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u64);

/// An input of [`super::Pool::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// An action for a service, at the degree that the scheduler granted. One whose id is
    /// alive is left as it is.
    Submit {
        /// The action.
        action: ActionId,
        /// The service.
        service: ServiceIndex,
        /// GPUs for it.
        degree: Degree,
        /// When it has ended at the latest, waiting included.
        deadline: Time,
    },
    /// Nobody waits for the action any more.
    Cancel(ActionId),
    /// The action should have begun by now: it ends if it still waits.
    Late(ActionId),
    /// An action has ended on its engine, a cancelled one too.
    Finished {
        /// Which action.
        action: ActionId,
        /// Where.
        engine: EngineId,
        /// What became of it; the answer itself does not pass through here.
        result: Result<(), Fault>,
    },
    /// [`super::Command::Restore`] is carried out.
    Restored(EngineId, OrderId, Result<Proof, Trouble>),
    /// [`super::Command::Evict`] is carried out.
    Evicted(EngineId, OrderId, Result<Proof, Trouble>),
    /// [`super::Command::Stop`] is carried out: bytes that are still held on the fullest of
    /// its GPUs.
    Stopped(EngineId, OrderId, Result<u64, Trouble>),
    /// An engine is in trouble by itself.
    Broke(EngineId, Trouble),
    /// A GPU fell off, or is well again.
    Gpu {
        /// Its node.
        node: NodeId,
        /// Which of the node's.
        gpu: u32,
        /// It fell off.
        lost: bool,
    },
    /// A node's agent is here, for the first time or again.
    Joined(Node),
    /// The link to a node's agent broke. What runs there may go on.
    Left(NodeId),
    /// A node's engines are to go and nothing new is to start there, or no longer so.
    Drain {
        /// The node.
        node: NodeId,
        /// Whether it is to be empty.
        on: bool,
    },
    /// Time has passed: see [`super::Pool::next_deadline`].
    Tick,
}

/// A node as its agent describes it.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: NodeId,
    /// Number of its GPUs.
    pub gpus: u32,
    /// Bytes of each.
    pub memory: u64,
    /// Bytes of the node's own memory that engines may keep.
    pub host: u64,
    /// Its GPUs that fell off.
    pub lost: Vec<u32>,
    /// Engines that live there.
    pub engines: Vec<Adopted>,
}

/// An engine that an agent has found.
#[derive(Debug, Clone)]
pub struct Adopted {
    /// The id under which it was launched.
    pub engine: EngineId,
    /// What it serves.
    pub kind: Kind,
    /// Its first GPU.
    pub start: u32,
    /// The order that is being carried out, or whose report is still to come.
    pub order: Option<OrderId>,
    /// Its state as it was verified; `None` where it could not be told.
    pub proof: Option<Proof>,
    /// Actions that run on it, or ended without this being acknowledged.
    pub running: Vec<Running>,
}

/// An action that an agent has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The action.
    pub action: ActionId,
    /// When it has ended at the latest.
    pub deadline: Time,
    /// It has ended, and its report follows.
    pub ended: bool,
}
