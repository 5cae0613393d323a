//! How the engines of one kind leave the device and come back.

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

use super::launch::Program;

/// One of the ways of [`super::spec::EvictBy`].
#[async_trait]
pub trait Mover: Send + Sync + 'static {
    /// Brings an engine that was just started, and is healthy, to where it can serve.
    async fn started(&self, _: &Program) -> Result<(), Trouble> {
        Ok(())
    }

    /// Brings a sleeping engine back.
    async fn wake(&self, program: &Program) -> Result<(), Trouble>;

    /// Brings a sleeping engine back on other GPUs than those that it left. Asked only of one
    /// that [`Self::is_movable`].
    async fn wake_on(&self, _: &Program, chunk: Chunk) -> Result<(), Trouble> {
        let why = format!("it cannot be moved to {chunk}: wake it where it was");
        Err(Trouble::Refused(Order::Wake, why))
    }

    /// Whether a sleeping engine can be brought back on other GPUs of this node.
    fn is_movable(&self, _: &Program) -> bool {
        false
    }

    /// Takes an engine off the device.
    async fn evict(&self, program: &Program) -> Result<(), Trouble>;

    /// Whether the engine says that it is off the device.
    async fn is_asleep(&self, program: &Program) -> Result<bool, Trouble>;

    /// An engine has ended: what was kept for it goes.
    async fn gone(&self, engine: EngineId);

    /// Bytes on each of its GPUs that the agent itself has for an engine.
    fn lent(&self, _: EngineId) -> u64 {
        0
    }
}
