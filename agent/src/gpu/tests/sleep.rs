//! Engines with sleep routes, as engine-sim (a simulator) has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Limits, Trouble};
use rollwright_engine_sim::{Config, Dialect, EngineSim};
use serde_json::json;
use tokio::sync::Mutex;

use super::node::{Wired, config, kind, spec};
use crate::gpu::launch::{Launcher, Program};
use crate::gpu::sleep::SleepMode;
use crate::gpu::spec::{EngineKind, EngineSpec, Needs, Occupant, Probe};
use crate::gpu::{Device, Engines, Movers};

/// Engine-sims in this process. As a device it goes by the calls that they took.
#[derive(Default)]
struct Sims {
    dialect: Dialect,
    running: Mutex<BTreeMap<EngineId, EngineSim>>,
}

#[async_trait]
impl Launcher for Sims {
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble> {
        let config = Config { dialect: self.dialect, ..Config::default() };
        let sim = EngineSim::start(config).await.map_err(|e| Trouble::Died(e.to_string()))?;
        let url = sim.url();
        self.running.lock().await.insert(engine, sim);
        Ok(Program { engine, spec, chunk, url, arena: "".into() })
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        if let Some(sim) = self.running.lock().await.remove(&engine) {
            sim.stop().await;
        }
        Ok(())
    }

    async fn pids(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        let there = self.running.lock().await.contains_key(&engine);
        Ok(there.then(std::process::id).into_iter().collect())
    }

    async fn cause(&self, _: EngineId) -> Trouble {
        Trouble::Died("it was stopped".into())
    }

    async fn found(&self) -> Vec<Program> {
        Vec::new()
    }
}

/// Calls that change what an engine holds, in order.
fn moves(sim: &EngineSim) -> Vec<String> {
    let calls = sim.calls().into_iter().map(|call| call.uri);
    let moves = ["sleep", "wake_up", "occupation", "collective_rpc"];
    calls
        .filter(|path| moves.iter().any(|part| path.contains(part) && !path.contains("is_")))
        .collect()
}

#[async_trait]
impl Device for Sims {
    async fn held(&self, engine: EngineId, _: Option<&Occupant>) -> Result<u64, Trouble> {
        let running = self.running.lock().await;
        let Some(sim) = running.get(&engine) else { return Ok(0) };
        let last = moves(sim).pop();
        let asleep = last.is_some_and(|path| path.contains("sleep") || path.contains("release"));
        Ok(if asleep { 1 } else { 6 })
    }
}

async fn taking_turns(mode: SleepMode, dialect: Dialect) -> Vec<Vec<String>> {
    let sims = Arc::new(Sims { dialect, ..Sims::default() });
    let body = match dialect {
        Dialect::Sglang => json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}),
        _ => json!({"model": Config::default().model, "prompt": "1", "max_tokens": 1}),
    };
    let route = if dialect == Dialect::Sglang { "/generate" } else { "/v1/completions" };
    let engine = if dialect == Dialect::Sglang { EngineKind::Sglang } else { EngineKind::Vllm };
    let mut spec = spec(kind(0));
    (spec.engine, spec.probe) = (engine, Some(Probe { path: route.into(), body }));
    if mode == SleepMode::VllmDiscard {
        spec.footprint = Needs { host: 0, ..spec.footprint };
    }
    assert_eq!(SleepMode::of(&spec), mode);
    let backend = Engines::new(Arc::clone(&sims) as Arc<dyn Launcher>, Movers::default());
    let device = Arc::clone(&sims) as Arc<dyn Device>;
    let config = config(2, Limits::default());
    let mut wired = Wired::new(config, spec, Arc::new(backend), device).await;
    for _ in 0..2 {
        for service in [0, 1] {
            wired.submit(service).await;
            wired.finish().await;
        }
    }
    wired.assert_all_served();
    let stats = wired.pool.stats();
    assert_eq!((stats.launches, stats.wakes, stats.evictions, stats.failures), (2, 2, 3, 0));
    let running = sims.running.lock().await;
    for sim in running.values() {
        assert_eq!(sim.violations().len(), 0, "{:?}", sim.violations());
    }
    running.values().map(moves).collect()
}

#[tokio::test]
async fn vllm_sleeps_at_level_one() {
    let calls = taking_turns(SleepMode::VllmOffload, Dialect::Vllm).await;
    let (sleep, wake) = ("/sleep?level=1", "/wake_up");
    assert_eq!(calls, [vec![sleep, wake, sleep], vec![sleep, wake]]);
}

#[tokio::test]
async fn vllm_at_level_two_reads_its_weights_again() {
    let calls = taking_turns(SleepMode::VllmDiscard, Dialect::Vllm).await;
    let weights = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"];
    assert_eq!(calls[1], [&["/sleep?level=2"], &weights[..]].concat());
    assert_eq!(calls[0], [&["/sleep?level=2"], &weights[..], &["/sleep?level=2"]].concat());
}

#[tokio::test]
async fn sglang_releases_and_resumes() {
    let calls = taking_turns(SleepMode::Sglang, Dialect::Sglang).await;
    let (release, resume) = ("/release_memory_occupation", "/resume_memory_occupation");
    assert_eq!(calls, [vec![release, resume, release], vec![release, resume]]);
}
