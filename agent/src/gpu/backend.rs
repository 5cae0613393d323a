//! What the driver needs of the outside.

use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use rollwright_core::ids::ActionId;

use super::spec::{EngineSpec, Found, Occupant};

/// Moves engines on and off the device. That a call returned proves nothing; the driver looks
/// for itself. A call whose future is dropped may have had its effect or not.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Starts an engine on a chunk; returns when it is ready to serve.
    async fn launch(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<(), Trouble>;

    /// Brings a sleeping engine back.
    async fn wake(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Brings a sleeping engine back on other GPUs than those that it left. Asked only of one
    /// that [`Self::is_movable`].
    async fn wake_on(&self, engine: EngineId, chunk: Chunk) -> Result<(), Trouble> {
        let why = format!("engine {} cannot be moved to {chunk}: wake it where it was", engine.0);
        Err(Trouble::Refused(Order::Wake, why))
    }

    /// Whether a sleeping engine can be brought back on other GPUs of this node.
    async fn is_movable(&self, _: EngineId) -> bool {
        false
    }

    /// Puts an engine to sleep. Nothing runs on it.
    async fn evict(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Ends an engine, whatever it does. One that does not exist is ended.
    async fn stop(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Whether the engine says that it sleeps.
    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble>;

    /// Whether the engine answers a small request of its service's kind.
    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble>;

    /// Where an engine takes actions, such as `http://127.0.0.1:30001`.
    async fn address(&self, engine: EngineId) -> Option<String>;

    /// Where an engine is; `None` for one that does not exist. What cannot be known is an error.
    async fn occupant(&self, engine: EngineId) -> Result<Option<Occupant>, Trouble>;

    /// Why an engine has ended; `None` for one that lives, or of which that cannot be known.
    async fn death(&self, _: EngineId) -> Option<Trouble> {
        None
    }

    /// Engines that live, those of an earlier process of the agent among them. Without
    /// proofs: [`super::Station::found`] adds them.
    async fn found(&self) -> Vec<Found>;
}

/// The device's own account of its memory.
#[async_trait]
pub trait Device: Send + Sync + 'static {
    /// Bytes that an engine has on the fullest of its GPUs. One without processes has none.
    async fn held(&self, engine: EngineId, at: Option<&Occupant>) -> Result<u64, Trouble>;
}

/// Makes the calls that actions are. The answer goes to whoever waits for it, not through the
/// driver.
#[async_trait]
pub trait Caller: Send + Sync + 'static {
    /// Makes an action's call at an engine's address. Dropped when the action is cancelled.
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault>;
}
