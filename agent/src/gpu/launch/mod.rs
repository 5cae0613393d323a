//! Starting the programs that engines are, and finding them again.

mod container;
mod fence;
mod line;
mod log;
mod process;
mod record;
mod roster;
mod session;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

pub use container::Containers;
pub use fence::Fence;
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

    /// Its processes, as this machine numbers them; none is one that has ended. What cannot be
    /// known is an error, never none.
    async fn pids(&self, engine: EngineId) -> Result<Vec<u32>, Trouble>;

    /// Writes down that a program is on other GPUs now. Asked only of processes: a container has
    /// the GPUs that it was made with.
    async fn moved(&self, program: &Program) -> Result<(), Trouble> {
        let why = format!("a container cannot be moved to {}", program.chunk);
        Err(Trouble::Refused(Order::Wake, why))
    }

    /// Why one that has ended did, with the end of what it printed.
    async fn cause(&self, engine: EngineId) -> Trouble;

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
    /// Who started an engine. A process has a record before it is started, so any other is a
    /// container, or was to be one.
    fn of(&self, engine: EngineId) -> &dyn Launcher {
        match &self.containers {
            Some(containers) if !self.processes.has(engine) => &**containers,
            _ => &*self.processes,
        }
    }
}

/// What reads and writes files, off the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Trouble> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Trouble::Unknown(error.to_string()))
}

/// The trouble of an engine that was killed for lack of memory, where all of the node have
/// `bytes`.
fn outgrown(bytes: u64, words: &str) -> Trouble {
    let all =
        if bytes == 0 { String::new() } else { format!(", and all of its node {bytes} bytes") };
    Trouble::HostOutgrown(format!(
        "declare more `host` in its footprint (it may take that and {} GiB for each GPU{all}): {words}",
        EngineSpec::BESIDE >> 30
    ))
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
        self.of(engine).end(engine).await
    }

    async fn pids(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        self.of(engine).pids(engine).await
    }

    async fn moved(&self, program: &Program) -> Result<(), Trouble> {
        self.of(program.engine).moved(program).await
    }

    async fn cause(&self, engine: EngineId) -> Trouble {
        self.of(engine).cause(engine).await
    }

    async fn found(&self) -> Vec<Program> {
        let mut found = self.processes.found().await;
        if let Some(containers) = &self.containers {
            found.extend(containers.found().await);
        }
        found
    }
}
