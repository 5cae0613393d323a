//! The engines of a node: programs that a launcher starts, moved each in its own way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};

use super::backend::Backend;
use super::http::Http;
use super::launch::{Launcher, Program};
use super::mover::Mover;
use super::sleep::EngineSleep;
use super::spec::{EngineSpec, EvictBy, Found, Occupant};

/// Between two looks whether an engine that starts is ready.
const READY: Duration = Duration::from_millis(100);
/// Between two looks whether it still lives.
const LIVES: Duration = Duration::from_millis(500);

/// The movers that a node has beside the engines' own sleep, which every node has.
#[derive(Clone, Default)]
pub struct Movers {
    /// Weights in pinned memory of the node.
    pub pinned: Option<Arc<dyn Mover>>,
    /// The driver's checkpoint of a process.
    pub checkpoint: Option<Arc<dyn Mover>>,
}

/// The real thing, as far as there is no fake before it.
pub struct Engines {
    launcher: Arc<dyn Launcher>,
    sleep: Arc<EngineSleep>,
    movers: Movers,
    http: Http,
    known: Mutex<BTreeMap<EngineId, Program>>,
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engines").finish_non_exhaustive()
    }
}

impl Engines {
    /// Without engines until [`Backend::found`] has looked for them.
    pub fn new(launcher: Arc<dyn Launcher>, movers: Movers) -> Self {
        let (sleep, http, known) = (Arc::default(), Http::default(), Mutex::default());
        Self { launcher, sleep, movers, http, known }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<EngineId, Program>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn program(&self, engine: EngineId) -> Result<Program, Trouble> {
        let program = self.known().get(&engine).cloned();
        program.ok_or_else(|| Trouble::Died("the agent has no such engine".into()))
    }

    fn mover(&self, by: EvictBy) -> Result<Arc<dyn Mover>, Trouble> {
        let lacks =
            |what: &str| Trouble::Refused(Order::Launch, format!("this node has no {what}"));
        match by {
            EvictBy::EngineSleep => Ok(Arc::clone(&self.sleep) as Arc<dyn Mover>),
            EvictBy::HostPinned => {
                self.movers.pinned.clone().ok_or_else(|| lacks("pinned memory for engines"))
            }
            EvictBy::CudaCheckpoint => {
                self.movers.checkpoint.clone().ok_or_else(|| lacks("checkpoints of processes"))
            }
        }
    }

    /// Waits until a program answers `/health`; the order's own limit ends this. The address of
    /// a container that has ended may not even refuse, so its processes are watched beside it.
    async fn healthy(&self, program: &Program) -> Result<(), Trouble> {
        let health = format!("{}/health", program.url);
        let answers = async {
            while self.http.get(&health).await.is_err() {
                tokio::time::sleep(READY).await;
            }
        };
        let ends = async {
            loop {
                // What cannot be known now is asked again.
                if let Some(trouble) = self.death(program.engine).await {
                    return trouble;
                }
                tokio::time::sleep(LIVES).await;
            }
        };
        tokio::select! {
            () = answers => Ok(()),
            trouble = ends => Err(trouble),
        }
    }
}

#[async_trait]
impl Backend for Engines {
    async fn launch(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<(), Trouble> {
        let mover = self.mover(spec.evict)?;
        let program = self.launcher.start(engine, spec, chunk).await?;
        self.known().insert(engine, program.clone());
        self.healthy(&program).await?;
        mover.started(&program).await
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        let program = self.program(engine)?;
        self.mover(program.spec.evict)?.wake(&program).await
    }

    async fn wake_on(&self, engine: EngineId, chunk: Chunk) -> Result<(), Trouble> {
        let program = self.program(engine)?;
        let mover = self.mover(program.spec.evict)?;
        let there = Program { chunk, ..program.clone() };
        // Whatever comes of it: that is where its memory is looked for.
        self.known().insert(engine, there.clone());
        mover.wake_on(&program, chunk).await?;
        self.launcher.moved(&there).await
    }

    async fn is_movable(&self, engine: EngineId) -> bool {
        let Ok(program) = self.program(engine) else { return false };
        self.mover(program.spec.evict).is_ok_and(|mover| mover.is_movable(&program))
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        let program = self.program(engine)?;
        self.mover(program.spec.evict)?.evict(&program).await
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        self.launcher.end(engine).await?;
        let program = self.known().remove(&engine);
        if let Some(program) = program
            && let Ok(mover) = self.mover(program.spec.evict)
        {
            mover.gone(engine).await;
        }
        Ok(())
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        let program = self.program(engine)?;
        self.mover(program.spec.evict)?.is_asleep(&program).await
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        let program = self.program(engine)?;
        let probe = program.spec.probe();
        let url = format!("{}{}", program.url, probe.path);
        Ok(self.http.post(&url, Some(probe.body)).await.is_ok())
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.program(engine).ok().map(|program| program.url)
    }

    async fn occupant(&self, engine: EngineId) -> Result<Option<Occupant>, Trouble> {
        let Ok(Program { chunk, spec, .. }) = self.program(engine) else { return Ok(None) };
        let lent = self.mover(spec.evict).map_or(0, |mover| mover.lent(engine));
        Ok(Some(Occupant { chunk, pids: self.launcher.pids(engine).await?, lent }))
    }

    async fn death(&self, engine: EngineId) -> Option<Trouble> {
        if self.launcher.pids(engine).await.is_ok_and(|pids| pids.is_empty()) {
            return Some(self.launcher.cause(engine).await);
        }
        None
    }

    async fn found(&self) -> Vec<Found> {
        let programs = self.launcher.found().await;
        let mut known = self.known();
        let found = programs.into_iter().map(|program| {
            let (engine, spec, chunk) = (program.engine, Arc::clone(&program.spec), program.chunk);
            known.insert(engine, program);
            Found { engine, spec, chunk, proof: None }
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use rollwright_core::gpu::Degree;

    use super::*;

    /// Starts what has ended at once, at an address that takes connections and says nothing.
    struct Mute(tokio::net::TcpListener);

    #[async_trait]
    impl Launcher for Mute {
        async fn start(
            &self,
            engine: EngineId,
            spec: Arc<EngineSpec>,
            chunk: Chunk,
        ) -> Result<Program, Trouble> {
            let url = format!("http://{}", self.0.local_addr().expect("it listens"));
            Ok(Program { engine, spec, chunk, url, arena: "".into() })
        }

        async fn end(&self, _: EngineId) -> Result<(), Trouble> {
            Ok(())
        }

        async fn pids(&self, _: EngineId) -> Result<Vec<u32>, Trouble> {
            Ok(Vec::new())
        }

        async fn cause(&self, _: EngineId) -> Trouble {
            Trouble::HostOutgrown("declare more".into())
        }

        async fn found(&self) -> Vec<Program> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn an_engine_that_ended_is_not_waited_for() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let engines = Engines::new(Arc::new(Mute(listener)), Movers::default());
        let chunk = Chunk::new(0, 0, Degree::new(1).unwrap()).unwrap();
        let launch = engines.launch(EngineId(1), Arc::new(EngineSpec::bare()), chunk);
        let launched = tokio::time::timeout(Duration::from_mins(1), launch).await;
        let ended = Err(Trouble::HostOutgrown("declare more".into()));
        assert_eq!(launched.expect("it was seen to have ended"), ended);
    }
}
