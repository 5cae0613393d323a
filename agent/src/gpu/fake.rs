//! A **fake** of GPUs and of the engines on them, for machines that have none. Times follow a
//! stated bandwidth, memory a stated capacity, and every failure can be ordered. No figure of
//! it is a figure of a real device: its addresses begin with `fake://`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Footprint, Kind, Order, Trouble};

use super::backend::{Backend, Device};

/// What a fake node has.
#[derive(Debug, Clone)]
pub struct FakeConfig {
    /// Bytes of each GPU.
    pub memory: u64,
    /// Bytes of the node's memory for engines.
    pub host: u64,
    /// Host to device, in bytes a second for each GPU.
    pub bandwidth: u64,
    /// What each service at each degree needs.
    pub kinds: BTreeMap<Kind, Footprint>,
}

/// A failure to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeFailure {
    /// A sleep returns without an error, and nothing is done.
    SleepLies,
    /// A sleep does what it says, and the memory does not return.
    MemoryStays,
    /// A wake-up does not return.
    WakeHangs,
    /// A wake-up returns, and the engine answers nothing.
    WakesMute,
    /// The process dies while it is restored.
    DiesRestoring,
    /// The device reports an error of its memory.
    MemoryError,
    /// The node has no memory for another engine.
    HostShort,
    /// The process cannot be ended.
    StopHangs,
}

impl FakeFailure {
    /// The order that it fails.
    fn of(self, what: Order) -> bool {
        match self {
            Self::SleepLies | Self::MemoryStays => what == Order::Evict,
            Self::WakeHangs => what == Order::Wake,
            Self::WakesMute | Self::DiesRestoring | Self::MemoryError => {
                matches!(what, Order::Wake | Order::Launch)
            }
            Self::HostShort => what == Order::Launch,
            Self::StopHangs => what == Order::Stop,
        }
    }
}

/// The fake.
#[derive(Debug)]
pub struct FakeGpus {
    config: FakeConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    engines: BTreeMap<EngineId, Fake>,
    /// Failures to come, in order.
    failures: Vec<FakeFailure>,
}

#[derive(Debug)]
struct Fake {
    kind: Kind,
    chunk: Chunk,
    asleep: bool,
    held: u64,
    mute: bool,
}

impl FakeGpus {
    /// Without engines.
    pub fn new(config: FakeConfig) -> Self {
        Self { config, state: Mutex::default() }
    }

    /// The next order that can fail in this way does.
    pub fn fail(&self, failure: FakeFailure) {
        self.state().failures.push(failure);
    }

    /// Bytes of a GPU in use.
    pub fn used(&self, gpu: u32) -> u64 {
        let state = self.state();
        let there = state.engines.values().filter(|engine| engine.chunk.gpus().contains(&gpu));
        there.map(|engine| engine.held).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A fake holds nothing that a panic could leave half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, what: Order) -> Option<FakeFailure> {
        let mut state = self.state();
        let next = state.failures.iter().position(|failure| failure.of(what))?;
        Some(state.failures.remove(next))
    }

    fn footprint(&self, kind: Kind) -> Result<Footprint, Trouble> {
        let footprint = self.config.kinds.get(&kind).copied();
        footprint.ok_or_else(|| Trouble::Died("the fake knows no such service".into()))
    }

    /// Moves an engine's bytes onto the device.
    async fn load(&self, engine: EngineId, failure: Option<FakeFailure>) -> Result<(), Trouble> {
        let kind = self.state().engines.get(&engine).map(|fake| fake.kind);
        let kind = kind.ok_or_else(|| Trouble::Died("the fake has no such engine".into()))?;
        let footprint = self.footprint(kind)?;
        if failure == Some(FakeFailure::WakeHangs) {
            std::future::pending::<()>().await;
        }
        let bytes = footprint.device as f64 / self.config.bandwidth.max(1) as f64;
        tokio::time::sleep(Duration::try_from_secs_f64(bytes).unwrap_or(Duration::MAX)).await;
        let mut state = self.state();
        match failure {
            Some(FakeFailure::DiesRestoring) => {
                state.engines.remove(&engine);
                return Err(Trouble::Died("the fake killed it".into()));
            }
            Some(FakeFailure::MemoryError) => return Err(Trouble::GpuLost),
            _ => {}
        }
        let chunk = state.engines.get(&engine).map(|fake| fake.chunk);
        let others = |gpu: u32| -> u64 {
            let others = state.engines.iter().filter(|(id, _)| **id != engine);
            others.filter(|(_, fake)| fake.chunk.gpus().contains(&gpu)).map(|(_, f)| f.held).sum()
        };
        let full = chunk.is_some_and(|chunk| {
            chunk.gpus().any(|gpu| others(gpu) + footprint.device > self.config.memory)
        });
        if full {
            return Err(Trouble::Died("out of memory on the fake device".into()));
        }
        if let Some(fake) = state.engines.get_mut(&engine) {
            (fake.asleep, fake.held) = (false, footprint.device);
            fake.mute = failure == Some(FakeFailure::WakesMute);
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for FakeGpus {
    async fn launch(&self, engine: EngineId, kind: Kind, chunk: Chunk) -> Result<(), Trouble> {
        let need = self.footprint(kind)?.host;
        let failure = self.failure(Order::Launch);
        let kinds: Vec<Kind> = self.state().engines.values().map(|fake| fake.kind).collect();
        let used = kinds.iter().filter_map(|kind| self.config.kinds.get(kind));
        let used: u64 = used.map(|footprint| footprint.host).sum();
        if used + need > self.config.host || failure == Some(FakeFailure::HostShort) {
            return Err(Trouble::HostMemoryShort("the fake node has no more".into()));
        }
        let fake = Fake { kind, chunk, asleep: true, held: 0, mute: false };
        self.state().engines.insert(engine, fake);
        self.load(engine, failure).await
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        let failure = self.failure(Order::Wake);
        self.load(engine, failure).await
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        let failure = self.failure(Order::Evict);
        let kind = self.state().engines.get(&engine).map(|fake| fake.kind);
        let kind = kind.ok_or_else(|| Trouble::Died("the fake has no such engine".into()))?;
        let residue = self.footprint(kind)?.residue;
        if failure != Some(FakeFailure::SleepLies)
            && let Some(fake) = self.state().engines.get_mut(&engine)
        {
            fake.asleep = true;
            if failure != Some(FakeFailure::MemoryStays) {
                fake.held = residue;
            }
        }
        Ok(())
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        if self.failure(Order::Stop) == Some(FakeFailure::StopHangs) {
            std::future::pending::<()>().await;
        }
        self.state().engines.remove(&engine);
        Ok(())
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        let asleep = self.state().engines.get(&engine).map(|fake| fake.asleep);
        asleep.ok_or_else(|| Trouble::Died("the fake has no such engine".into()))
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        Ok(self.state().engines.get(&engine).is_some_and(|fake| !fake.asleep && !fake.mute))
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.state().engines.get(&engine).map(|_| format!("fake://engine/{}", engine.0))
    }
}

#[async_trait]
impl Device for FakeGpus {
    async fn held(&self, engine: EngineId) -> Result<u64, Trouble> {
        Ok(self.state().engines.get(&engine).map_or(0, |fake| fake.held))
    }
}
