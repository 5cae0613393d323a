//! Engines that are nothing but a flag: the fake without processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

use crate::gpu::backend::Backend;
use crate::gpu::spec::{EngineSpec, EvictBy, Found, Occupant};

/// Engines that do what they are told, at once. Their addresses begin with `fake://`.
#[derive(Debug, Default)]
pub struct Phantoms(Mutex<BTreeMap<EngineId, Phantom>>);

#[derive(Debug)]
struct Phantom {
    spec: Arc<EngineSpec>,
    chunk: Chunk,
    asleep: bool,
}

impl Phantoms {
    fn all(&self) -> MutexGuard<'_, BTreeMap<EngineId, Phantom>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, engine: EngineId, asleep: bool) -> Result<(), Trouble> {
        let mut all = self.all();
        let phantom = all.get_mut(&engine).ok_or_else(gone)?;
        phantom.asleep = asleep;
        Ok(())
    }
}

fn gone() -> Trouble {
    Trouble::Died("there is no such phantom".into())
}

#[async_trait]
impl Backend for Phantoms {
    async fn launch(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<(), Trouble> {
        self.all().insert(engine, Phantom { spec, chunk, asleep: false });
        Ok(())
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        self.set(engine, false)
    }

    async fn wake_on(&self, engine: EngineId, chunk: Chunk) -> Result<(), Trouble> {
        if !self.is_movable(engine).await {
            let why = format!("it cannot be moved to {chunk}: wake it where it was");
            return Err(Trouble::Refused(Order::Wake, why));
        }
        self.all().get_mut(&engine).ok_or_else(gone)?.chunk = chunk;
        self.set(engine, false)
    }

    async fn is_movable(&self, engine: EngineId) -> bool {
        self.all().get(&engine).is_some_and(|of| of.spec.evict == EvictBy::CudaCheckpoint)
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        self.set(engine, true)
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        self.all().remove(&engine);
        Ok(())
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        self.all().get(&engine).map(|phantom| phantom.asleep).ok_or_else(gone)
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        Ok(self.all().get(&engine).is_some_and(|phantom| !phantom.asleep))
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.all().contains_key(&engine).then(|| format!("fake://engine/{}", engine.0))
    }

    async fn occupant(&self, engine: EngineId) -> Result<Option<Occupant>, Trouble> {
        let chunk = self.all().get(&engine).map(|phantom| phantom.chunk);
        Ok(chunk.map(|chunk| Occupant { chunk, pids: Vec::new(), lent: 0 }))
    }

    async fn death(&self, engine: EngineId) -> Option<Trouble> {
        (!self.all().contains_key(&engine)).then(gone)
    }

    async fn found(&self) -> Vec<Found> {
        let all = self.all();
        let found = all.iter().map(|(engine, phantom)| {
            let (engine, spec) = (*engine, Arc::clone(&phantom.spec));
            Found { engine, spec, chunk: phantom.chunk, proof: None }
        });
        found.collect()
    }
}
