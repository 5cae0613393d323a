//! Starting the programs that engines are, and finding them again.

mod container;
mod line;
mod process;
mod record;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

pub use container::Containers;
pub use process::Processes;
pub use record::Records;

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
    /// The socket on which a server whose weights the agent keeps waits for them.
    pub arena: PathBuf,
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

/// Both: what names an image is a container, else a process.
#[derive(Debug)]
pub struct Either {
    /// Starts processes.
    pub processes: Arc<Processes>,
    /// Starts containers; `None` where there is no Docker.
    pub containers: Option<Arc<Containers>>,
}

impl Either {
    /// Who started an engine; processes for one that nobody knows.
    fn of(&self, engine: EngineId) -> &dyn Launcher {
        match &self.containers {
            Some(containers) if containers.has(engine) => &**containers,
            _ => &*self.processes,
        }
    }
}

#[async_trait]
impl Launcher for Either {
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble> {
        if spec.image.is_none() {
            return self.processes.start(engine, spec, chunk).await;
        }
        let Some(containers) = &self.containers else {
            let why = "it has an image, and this node has no Docker for engines";
            return Err(Trouble::Refused(Order::Launch, why.into()));
        };
        containers.start(engine, spec, chunk).await
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        // One that was about to be started may be either.
        if let Some(containers) = &self.containers {
            containers.end(engine).await?;
        }
        self.processes.end(engine).await
    }

    async fn pids(&self, engine: EngineId) -> Vec<u32> {
        self.of(engine).pids(engine).await
    }

    async fn last_words(&self, engine: EngineId) -> String {
        self.of(engine).last_words(engine).await
    }

    async fn found(&self) -> Vec<Program> {
        let mut found = self.processes.found().await;
        if let Some(containers) = &self.containers {
            found.extend(containers.found().await);
        }
        found
    }
}
