//! `CudaCheckpoint`: the driver takes a process off its GPUs and brings it back. Opt-in, for
//! services that are one process on one GPU: several that share memory need a newer driver.
//!
//! Where driver and GPUs allow it ([`Remap`]) it comes back on any GPU of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

use super::remap::{GpuId, Remap};
use crate::gpu::launch::{Launcher, Program};
use crate::gpu::mover::Mover;

/// How long calls that are under way in a process may take before it can be locked.
const LOCKS_IN: Duration = Duration::from_secs(10);

/// How a process stands with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// As ever.
    Running,
    /// Its calls wait.
    Locked,
    /// It is in memory of the node, and has no GPU.
    Checkpointed,
    /// The driver could not bring it back.
    Failed,
}

/// The driver's calls. All block; an error is the driver's sentence.
pub trait Checkpoints: Send + Sync + 'static {
    /// How a process stands; an error for one that does not use CUDA.
    fn state(&self, pid: u32) -> Result<ProcessState, String>;
    /// Lets its calls wait.
    fn lock(&self, pid: u32, limit: Duration) -> Result<(), String>;
    /// Takes a locked one off its GPUs.
    fn checkpoint(&self, pid: u32) -> Result<(), String>;
    /// Brings it back. `pairs` are the old and the new id of every GPU of the node; none: to
    /// where it was. It stays locked.
    fn restore(&self, pid: u32, pairs: &[(GpuId, GpuId)]) -> Result<(), String>;
    /// Lets its calls go on.
    fn unlock(&self, pid: u32) -> Result<(), String>;
}

/// Engines that the driver checkpoints.
pub struct CudaCheckpoint {
    driver: Arc<dyn Checkpoints>,
    launcher: Arc<dyn Launcher>,
    remap: Option<Remap>,
    /// A process could not be moved: this agent moves no other.
    failed: Arc<AtomicBool>,
}

impl std::fmt::Debug for CudaCheckpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaCheckpoint").finish_non_exhaustive()
    }
}

impl CudaCheckpoint {
    /// Over the launcher that knows which processes an engine is. Without `remap` all return
    /// to the GPUs that they left.
    pub fn new(
        driver: Arc<dyn Checkpoints>,
        launcher: Arc<dyn Launcher>,
        remap: Option<Remap>,
    ) -> Self {
        Self { driver, launcher, remap, failed: Arc::default() }
    }

    /// The one process of an engine that uses CUDA, and how it stands.
    async fn process(&self, program: &Program) -> Result<(u32, ProcessState), String> {
        let pids = self.launcher.pids(program.engine).await.map_err(|t| t.to_string())?;
        let driver = Arc::clone(&self.driver);
        let stand = move || pids.into_iter().map(|pid| (pid, driver.state(pid))).collect();
        let stand: Vec<_> = tokio::task::spawn_blocking(stand).await.map_err(|e| e.to_string())?;
        let using = stand.iter().filter_map(|(pid, state)| Some((*pid, *state.as_ref().ok()?)));
        match using.collect::<Vec<_>>()[..] {
            [one] => Ok(one),
            [] => {
                let why = stand.into_iter().find_map(|(_, state)| state.err());
                let why = why.unwrap_or_else(|| "it has none".into());
                Err(format!("none of its processes uses CUDA: {why}"))
            }
            _ => Err("several of its processes use CUDA: use EngineSleep".into()),
        }
    }

    async fn work(
        &self,
        what: Order,
        program: &Program,
        steps: impl FnOnce(&dyn Checkpoints, u32, ProcessState) -> Result<(), String> + Send + 'static,
    ) -> Result<(), Trouble> {
        let refused = |why| Trouble::Refused(what, why);
        let (pid, state) = self.process(program).await.map_err(refused)?;
        let driver = Arc::clone(&self.driver);
        let done = tokio::task::spawn_blocking(move || steps(&*driver, pid, state)).await;
        done.map_err(|error| refused(error.to_string()))?.map_err(refused)
    }
}

#[async_trait]
impl Mover for CudaCheckpoint {
    async fn started(&self, program: &Program) -> Result<(), Trouble> {
        if program.spec.degree != 1 {
            let why = "CudaCheckpoint is for engines of one GPU: use EngineSleep";
            return Err(Trouble::Refused(Order::Launch, why.into()));
        }
        self.work(Order::Launch, program, |_, _, _| Ok(())).await
    }

    async fn wake(&self, program: &Program) -> Result<(), Trouble> {
        self.work(Order::Wake, program, |driver, pid, state| {
            if state == ProcessState::Checkpointed {
                driver.restore(pid, &[])?;
            }
            if state == ProcessState::Running { Ok(()) } else { driver.unlock(pid) }
        })
        .await
    }

    async fn wake_on(&self, program: &Program, chunk: Chunk) -> Result<(), Trouble> {
        let remap = self.remap.as_ref().filter(|_| self.is_movable(program));
        let pairs = remap.and_then(|remap| remap.swap(program.chunk.start(), chunk.start()));
        let Some(pairs) = pairs else {
            let why = format!("it cannot be moved to {chunk}: wake it where it was");
            return Err(Trouble::Refused(Order::Wake, why));
        };
        let (failed, engine) = (Arc::clone(&self.failed), program.engine.0);
        self.work(Order::Wake, program, move |driver, pid, state| {
            if state != ProcessState::Checkpointed {
                return Err("it has not left its GPU: it cannot be moved".into());
            }
            driver.restore(pid, &pairs).inspect_err(|why| {
                tracing::warn!(engine, why, "it could not be moved: no engine is any more");
                failed.store(true, Relaxed);
            })?;
            driver.unlock(pid)
        })
        .await
    }

    /// A process: a container has the device files of its own GPUs alone, and the driver needs
    /// that of each that it restores to.
    fn is_movable(&self, program: &Program) -> bool {
        self.remap.is_some() && !self.failed.load(Relaxed) && program.spec.image.is_none()
    }

    async fn evict(&self, program: &Program) -> Result<(), Trouble> {
        self.work(Order::Evict, program, |driver, pid, state| {
            if state == ProcessState::Running {
                driver.lock(pid, LOCKS_IN)?;
            }
            if state == ProcessState::Checkpointed {
                return Ok(());
            }
            driver.checkpoint(pid).inspect_err(|_| {
                // It goes on where it is; that it is not asleep will be seen.
                let _stays_locked = driver.unlock(pid);
            })
        })
        .await
    }

    async fn is_asleep(&self, program: &Program) -> Result<bool, Trouble> {
        let (_, state) = self.process(program).await.map_err(Trouble::Died)?;
        match state {
            ProcessState::Checkpointed => Ok(true),
            ProcessState::Running | ProcessState::Locked => Ok(false),
            ProcessState::Failed => Err(Trouble::Died("the driver could not restore it".into())),
        }
    }

    async fn gone(&self, _: EngineId) {}
}
