//! How the engines of one kind leave the device and come back.

use async_trait::async_trait;
use rollwright_core::gpu::{EngineId, Trouble};

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
