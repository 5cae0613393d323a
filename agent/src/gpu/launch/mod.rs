//! Starting the programs that engines are, and finding them again.

use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Trouble};

use crate::gpu::spec::EngineSpec;

/// An engine's program.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Which engine it is.
    pub engine: EngineId,
    /// What was started.
    pub spec: Arc<EngineSpec>,
    /// On which GPUs.
    pub chunk: Chunk,
    /// Where it listens, such as `http://127.0.0.1:30001`.
    pub url: String,
}

/// Starts and ends the programs of engines.
#[async_trait]
pub trait Launcher: Send + Sync + 'static {
    /// Starts a program; it need not be ready.
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble>;

    /// Ends a program, with all that it started.
    async fn end(&self, engine: EngineId) -> Result<(), Trouble>;

    /// Its processes, as this machine numbers them; none is one that has ended.
    async fn pids(&self, engine: EngineId) -> Vec<u32>;

    /// The end of what it printed, for the message of a failure.
    async fn last_words(&self, engine: EngineId) -> String;

    /// Programs that live, those of an earlier process of the agent among them.
    async fn found(&self) -> Vec<Program>;
}
