//! A **fake** of GPUs, for machines that have none. It stands before a backend whose engines
//! need no GPU (processes of a simulator, or [`Phantoms`]): times follow a stated bandwidth,
//! memory a stated capacity, and every failure can be ordered. No figure of it is a figure of
//! a real device.

mod failure;
mod memory;
mod phantoms;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use tokio::sync::mpsc;

pub use failure::FakeFailure;
pub use memory::FakeMemory;
pub use phantoms::Phantoms;

use super::backend::{Backend, Device};
use super::spec::{EngineSpec, EvictBy, Found, Incident, Inventory, Needs, Occupant};

/// Between two looks at what was ordered by files.
const LOOK: Duration = Duration::from_millis(200);

/// What a fake node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeConfig {
    /// Number of GPUs.
    pub gpus: u32,
    /// Bytes of each.
    pub memory: u64,
    /// Bytes of the node's memory for engines.
    pub host: u64,
    /// Host to device and back, in bytes a second for each GPU.
    pub bandwidth: u64,
    /// From the page cache into a new process, in bytes a second for each GPU.
    pub load: u64,
    /// A directory in which failures are ordered: a file is one, by its name as
    /// [`FakeFailure`] has it, and is removed when it happens; `lost-N` takes GPU N away as long
    /// as it is there.
    pub orders: Option<PathBuf>,
}

/// The fake.
pub struct FakeGpus {
    config: FakeConfig,
    inner: Arc<dyn Backend>,
    incidents: mpsc::Sender<Incident>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    accounts: BTreeMap<EngineId, Account>,
    /// Failures to come, in order.
    failures: Vec<FakeFailure>,
    lost: BTreeSet<u32>,
}

/// What the fake device says of an engine.
#[derive(Debug)]
struct Account {
    spec: Arc<EngineSpec>,
    chunk: Chunk,
    held: u64,
    mute: bool,
}

impl std::fmt::Debug for FakeGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        let mut shown = f.debug_struct("FakeGpus");
        shown.field("config", &self.config).field("state", &*state).finish_non_exhaustive()
    }
}

impl FakeGpus {
    /// A fake before the backend that starts its engines.
    pub fn new(
        config: FakeConfig,
        inner: Arc<dyn Backend>,
        incidents: mpsc::Sender<Incident>,
    ) -> Self {
        Self { config, inner, incidents, state: Mutex::default() }
    }

    /// What the fake node offers.
    pub fn inventory(&self) -> Inventory {
        let FakeConfig { gpus, memory, host, .. } = self.config;
        let lost = self.state().lost.iter().copied().collect();
        Inventory { gpus, memory, host, lost, fake: true }
    }

    /// The next order that can fail in this way does.
    pub fn fail(&self, failure: FakeFailure) {
        self.state().failures.push(failure);
    }

    /// A GPU falls off, with the engines on it, or is well again.
    pub async fn lose(&self, gpu: u32, lost: bool) {
        let dead: Vec<EngineId> = {
            let mut state = self.state();
            let news = if lost { state.lost.insert(gpu) } else { state.lost.remove(&gpu) };
            if !news {
                return;
            }
            let there = state.accounts.iter();
            let there = there.filter(|(_, account)| account.chunk.gpus().contains(&gpu));
            there.map(|(id, _)| *id).collect()
        };
        // Nobody listens at the agent's end.
        let _closed = self.incidents.send(Incident::Gpu { gpu, lost }).await;
        for engine in dead.into_iter().filter(|_| lost) {
            let _closed = self.incidents.send(Incident::Broke(engine, Trouble::GpuLost)).await;
        }
    }

    /// Carries out what files of [`FakeConfig::orders`] say of lost GPUs, without end.
    pub async fn watch(&self) {
        let Some(dir) = &self.config.orders else { return };
        loop {
            for gpu in 0..self.config.gpus {
                self.lose(gpu, dir.join(format!("lost-{gpu}")).exists()).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Bytes of a GPU in use.
    pub fn used(&self, gpu: u32) -> u64 {
        self.state().used(gpu, None)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A fake holds nothing that a panic could leave half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, what: Order) -> Option<FakeFailure> {
        let mut state = self.state();
        if let Some(next) = state.failures.iter().position(|failure| failure.of(what)) {
            return Some(state.failures.remove(next));
        }
        failure::ordered(self.config.orders.as_deref()?, what)
    }

    fn needs(&self, engine: EngineId) -> Result<Needs, Trouble> {
        let needs = self.state().accounts.get(&engine).map(|account| account.spec.footprint);
        needs.ok_or_else(|| Trouble::Died("the fake has no such engine".into()))
    }

    /// Puts an engine's bytes onto the device, or says why it cannot.
    async fn load(
        &self,
        engine: EngineId,
        failure: Option<FakeFailure>,
        bandwidth: u64,
    ) -> Result<(), Trouble> {
        let needs = self.needs(engine)?;
        if failure == Some(FakeFailure::WakeHangs) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(transfer(needs.device - needs.residue.min(needs.device), bandwidth))
            .await;
        match failure {
            Some(FakeFailure::DiesRestoring) => {
                self.inner.stop(engine).await?;
                self.state().accounts.remove(&engine);
                return Err(Trouble::Died("the fake killed it".into()));
            }
            Some(FakeFailure::MemoryError) => return Err(Trouble::GpuLost),
            _ => {}
        }
        let mut state = self.state();
        let Some(chunk) = state.accounts.get(&engine).map(|account| account.chunk) else {
            return Err(Trouble::Died("it was ended meanwhile".into()));
        };
        if chunk.gpus().any(|gpu| state.lost.contains(&gpu)) {
            return Err(Trouble::GpuLost);
        }
        let full = |gpu| state.used(gpu, Some(engine)) + needs.device > self.config.memory;
        if chunk.gpus().any(full) {
            return Err(Trouble::Died("out of memory on the fake device".into()));
        }
        if let Some(account) = state.accounts.get_mut(&engine) {
            account.held = needs.device;
            account.mute = failure == Some(FakeFailure::WakesMute);
        }
        Ok(())
    }
}

impl State {
    /// Bytes of a GPU that engines have, but for one.
    fn used(&self, gpu: u32, without: Option<EngineId>) -> u64 {
        let there = self
            .accounts
            .iter()
            .filter(|(id, account)| account.chunk.gpus().contains(&gpu) && Some(**id) != without);
        there.map(|(_, account)| account.held).sum()
    }
}

fn transfer(bytes: u64, bandwidth: u64) -> Duration {
    let seconds = bytes as f64 / bandwidth.max(1) as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[async_trait]
impl Backend for FakeGpus {
    async fn launch(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<(), Trouble> {
        let failure = self.failure(Order::Launch);
        {
            let mut state = self.state();
            let used: u64 = state.accounts.values().map(|a| a.spec.footprint.host).sum();
            let short = used + spec.footprint.host > self.config.host;
            if short || failure == Some(FakeFailure::HostShort) {
                return Err(Trouble::HostMemoryShort("the fake node has no more".into()));
            }
            let account = Account { spec: Arc::clone(&spec), chunk, held: 0, mute: false };
            state.accounts.insert(engine, account);
        }
        self.inner.launch(engine, spec, chunk).await?;
        self.load(engine, failure, self.config.load).await
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        let failure = self.failure(Order::Wake);
        self.load(engine, failure, self.config.bandwidth).await?;
        self.inner.wake(engine).await
    }

    async fn wake_on(&self, engine: EngineId, chunk: Chunk) -> Result<(), Trouble> {
        if !self.inner.is_movable(engine).await {
            // It says why.
            return self.inner.wake_on(engine, chunk).await;
        }
        let failure = self.failure(Order::Wake);
        if let Some(account) = self.state().accounts.get_mut(&engine) {
            account.chunk = chunk;
        }
        self.load(engine, failure, self.config.bandwidth).await?;
        self.inner.wake_on(engine, chunk).await
    }

    async fn is_movable(&self, engine: EngineId) -> bool {
        self.inner.is_movable(engine).await
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        let failure = self.failure(Order::Evict);
        let needs = self.needs(engine)?;
        if failure == Some(FakeFailure::SleepLies) {
            return Ok(());
        }
        let evict = self.state().accounts.get(&engine).map(|account| account.spec.evict);
        // Weights that the node keeps already, or not at all, are not copied.
        if evict != Some(EvictBy::HostPinned) && needs.host > 0 {
            let bytes = needs.device - needs.residue.min(needs.device);
            tokio::time::sleep(transfer(bytes, self.config.bandwidth)).await;
        }
        self.inner.evict(engine).await?;
        if failure != Some(FakeFailure::MemoryStays)
            && let Some(account) = self.state().accounts.get_mut(&engine)
        {
            // The driver takes all of a process.
            let whole = evict == Some(EvictBy::CudaCheckpoint);
            account.held = if whole { 0 } else { needs.residue };
        }
        Ok(())
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        if self.failure(Order::Stop) == Some(FakeFailure::StopHangs) {
            std::future::pending::<()>().await;
        }
        self.inner.stop(engine).await?;
        self.state().accounts.remove(&engine);
        Ok(())
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        self.inner.is_asleep(engine).await
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        if self.state().accounts.get(&engine).is_some_and(|account| account.mute) {
            return Ok(false);
        }
        self.inner.probe(engine).await
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.inner.address(engine).await
    }

    async fn occupant(&self, engine: EngineId) -> Result<Option<Occupant>, Trouble> {
        self.inner.occupant(engine).await
    }

    async fn death(&self, engine: EngineId) -> Option<Trouble> {
        self.inner.death(engine).await
    }

    async fn found(&self) -> Vec<Found> {
        let found = self.inner.found().await;
        for Found { engine, spec, chunk, .. } in &found {
            // A fake that was started again goes by what its engines say.
            let asleep = self.inner.is_asleep(*engine).await.unwrap_or(false);
            let Needs { device, residue, .. } = spec.footprint;
            let held = if asleep { residue } else { device };
            let account = Account { spec: Arc::clone(spec), chunk: *chunk, held, mute: false };
            self.state().accounts.entry(*engine).or_insert(account);
        }
        found
    }
}

#[async_trait]
impl Device for FakeGpus {
    async fn held(&self, engine: EngineId, _: Option<&Occupant>) -> Result<u64, Trouble> {
        let state = self.state();
        let Some(account) = state.accounts.get(&engine) else { return Ok(0) };
        if account.chunk.gpus().any(|gpu| state.lost.contains(&gpu)) {
            return Err(Trouble::GpuLost);
        }
        Ok(account.held)
    }
}
