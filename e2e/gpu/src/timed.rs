//! A backend that remembers how long its orders took.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rollwright_agent::gpu::{Backend, EngineSpec, Found, Occupant};
use rollwright_core::gpu::{Chunk, EngineId, Trouble};

/// In front of the real one.
pub(crate) struct Timed {
    pub(crate) inner: Arc<dyn Backend>,
    times: Mutex<Times>,
}

/// What orders took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times {
    pub(crate) wakes: Vec<Duration>,
    pub(crate) evicts: Vec<Duration>,
    /// Proofs: questions whether an engine sleeps; looks for its processes, at the same time as
    /// these; and requests that show that it serves.
    pub(crate) questions: Vec<Duration>,
    pub(crate) looks: Vec<Duration>,
    pub(crate) probes: Vec<Duration>,
}

impl Timed {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner, times: Mutex::default() })
    }

    /// What was remembered; it is forgotten.
    pub(crate) fn take(&self) -> Times {
        std::mem::take(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, of: impl FnOnce(&mut Times) -> &mut Vec<Duration>, since: Instant) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        of(&mut times).push(since.elapsed());
    }
}

#[async_trait]
impl Backend for Timed {
    async fn launch(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<(), Trouble> {
        self.inner.launch(engine, spec, chunk).await
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        let begun = Instant::now();
        self.inner.wake(engine).await?;
        self.note(|times| &mut times.wakes, begun);
        Ok(())
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        let begun = Instant::now();
        self.inner.evict(engine).await?;
        self.note(|times| &mut times.evicts, begun);
        Ok(())
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        self.inner.stop(engine).await
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        let begun = Instant::now();
        let asleep = self.inner.is_asleep(engine).await;
        self.note(|times| &mut times.questions, begun);
        asleep
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        let begun = Instant::now();
        let answers = self.inner.probe(engine).await;
        self.note(|times| &mut times.probes, begun);
        answers
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.inner.address(engine).await
    }

    async fn occupant(&self, engine: EngineId) -> Result<Option<Occupant>, Trouble> {
        let begun = Instant::now();
        let occupant = self.inner.occupant(engine).await;
        self.note(|times| &mut times.looks, begun);
        occupant
    }

    async fn found(&self) -> Vec<Found> {
        self.inner.found().await
    }
}
