//! What the driver needs of the outside.

use async_trait::async_trait;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, EngineId, Kind, Trouble};
use rollwright_core::ids::ActionId;

/// Moves engines on and off the device. That a call returned proves nothing; the driver looks
/// for itself. A call whose future is dropped may have had its effect or not.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Starts an engine on a chunk; returns when it is ready to serve.
    async fn launch(&self, engine: EngineId, kind: Kind, chunk: Chunk) -> Result<(), Trouble>;

    /// Brings a sleeping engine back.
    async fn wake(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Puts an engine to sleep. Nothing runs on it.
    async fn evict(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Ends an engine, whatever it does. One that does not exist is ended.
    async fn stop(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Whether the engine says that it sleeps.
    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble>;

    /// Whether the engine answers a small request of its service's kind.
    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble>;

    /// Where an engine takes actions.
    async fn address(&self, engine: EngineId) -> Option<String>;
}

/// The device's own account of its memory.
#[async_trait]
pub trait Device: Send + Sync + 'static {
    /// Bytes that an engine has on the fullest of its GPUs.
    async fn held(&self, engine: EngineId) -> Result<u64, Trouble>;
}

/// Makes the calls that actions are. The answer goes to whoever waits for it, not through the
/// driver.
#[async_trait]
pub trait Caller: Send + Sync + 'static {
    /// Makes an action's call at an engine's address. Dropped when the action is cancelled.
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault>;
}
