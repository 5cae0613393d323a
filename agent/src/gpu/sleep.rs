//! `EngineSleep`: engines leave the device by their own sleep mode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::gpu::{Chunk, EngineId, Kind, Order, Trouble};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::backend::Backend;
use super::http::Http;

/// Between two looks whether an engine that starts is ready.
const READY: Duration = Duration::from_millis(100);

/// Whose sleep routes an engine has, and how deep it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepMode {
    /// vLLM's level 1: weights go to the node's memory.
    VllmOffload,
    /// vLLM's level 2: weights are dropped, and read from disk at wake-up.
    VllmDiscard,
    /// SGLang with `--enable-memory-saver`.
    Sglang,
}

/// A small request of the kind that a service serves.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Where it is posted, such as `/score` or `/v1/completions`.
    pub route: String,
    /// What is posted.
    pub body: Value,
}

/// Starts and ends the processes of engines.
#[async_trait]
pub trait Processes: Send + Sync + 'static {
    /// Starts an engine; its address, such as `http://127.0.0.1:30001`. It need not be ready.
    async fn start(&self, engine: EngineId, kind: Kind, chunk: Chunk) -> Result<String, Trouble>;

    /// Ends an engine, with all that it started.
    async fn end(&self, engine: EngineId) -> Result<(), Trouble>;
}

/// Engines with a sleep mode, over HTTP. Their admin routes are not guarded by any key, so
/// they must listen on this node's loopback alone.
pub struct EngineSleep {
    mode: SleepMode,
    probe: Probe,
    processes: Arc<dyn Processes>,
    http: Http,
    engines: Mutex<BTreeMap<EngineId, Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    url: String,
    /// SGLang does not say whether it sleeps: what its last call achieved.
    asleep: bool,
}

impl std::fmt::Debug for EngineSleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineSleep").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl EngineSleep {
    /// Without engines.
    pub fn new(mode: SleepMode, probe: Probe, processes: Arc<dyn Processes>) -> Self {
        Self { mode, probe, processes, http: Http::new(), engines: Mutex::default() }
    }

    async fn url(&self, engine: EngineId) -> Result<String, Trouble> {
        let known = self.engines.lock().await.get(&engine).map(|known| known.url.clone());
        known.ok_or_else(|| Trouble::Died("the agent has no such engine".into()))
    }

    async fn post(&self, engine: EngineId, what: Order, route: &str) -> Result<(), Trouble> {
        self.post_json(engine, what, route, None).await
    }

    async fn post_json(
        &self,
        engine: EngineId,
        what: Order,
        route: &str,
        body: Option<Value>,
    ) -> Result<(), Trouble> {
        let url = format!("{}{route}", self.url(engine).await?);
        let reply = self.http.post(&url, body).await;
        reply.map(|_| ()).map_err(|why| Trouble::Refused(what, why))
    }

    async fn note(&self, engine: EngineId, asleep: bool) {
        if let Some(known) = self.engines.lock().await.get_mut(&engine) {
            known.asleep = asleep;
        }
    }
}

/// Both kinds of memory, by the names that SGLang gives them.
fn all_memory() -> Value {
    json!({"tags": ["kv_cache", "weights"]})
}

#[async_trait]
impl Backend for EngineSleep {
    async fn launch(&self, engine: EngineId, kind: Kind, chunk: Chunk) -> Result<(), Trouble> {
        let url = self.processes.start(engine, kind, chunk).await?;
        let health = format!("{url}/health");
        self.engines.lock().await.insert(engine, Known { url, asleep: false });
        // The order's own limit ends this.
        while self.http.get(&health).await.is_err() {
            tokio::time::sleep(READY).await;
        }
        Ok(())
    }

    async fn wake(&self, engine: EngineId) -> Result<(), Trouble> {
        match self.mode {
            SleepMode::VllmOffload => self.post(engine, Order::Wake, "/wake_up").await?,
            SleepMode::VllmDiscard => {
                // The KV cache comes last: it must not be there when weights are loaded.
                self.post(engine, Order::Wake, "/wake_up?tags=weights").await?;
                let reload = Some(json!({"method": "reload_weights"}));
                self.post_json(engine, Order::Wake, "/collective_rpc", reload).await?;
                self.post(engine, Order::Wake, "/wake_up?tags=kv_cache").await?;
            }
            SleepMode::Sglang => {
                let route = "/resume_memory_occupation";
                self.post_json(engine, Order::Wake, route, Some(all_memory())).await?;
            }
        }
        self.note(engine, false).await;
        Ok(())
    }

    async fn evict(&self, engine: EngineId) -> Result<(), Trouble> {
        match self.mode {
            SleepMode::VllmOffload => self.post(engine, Order::Evict, "/sleep?level=1").await?,
            SleepMode::VllmDiscard => self.post(engine, Order::Evict, "/sleep?level=2").await?,
            SleepMode::Sglang => {
                let route = "/release_memory_occupation";
                self.post_json(engine, Order::Evict, route, Some(all_memory())).await?;
            }
        }
        self.note(engine, true).await;
        Ok(())
    }

    async fn stop(&self, engine: EngineId) -> Result<(), Trouble> {
        self.processes.end(engine).await?;
        self.engines.lock().await.remove(&engine);
        Ok(())
    }

    async fn is_asleep(&self, engine: EngineId) -> Result<bool, Trouble> {
        let url = self.url(engine).await?;
        if self.mode == SleepMode::Sglang {
            let known = self.engines.lock().await.get(&engine).is_some_and(|known| known.asleep);
            return Ok(known);
        }
        let reply = self.http.get(&format!("{url}/is_sleeping")).await;
        let reply = reply.map_err(Trouble::Died)?;
        reply.get("is_sleeping").and_then(Value::as_bool).ok_or_else(|| {
            Trouble::Died(format!("{url}/is_sleeping did not say whether it sleeps"))
        })
    }

    async fn probe(&self, engine: EngineId) -> Result<bool, Trouble> {
        let url = self.url(engine).await?;
        let Probe { route, body } = &self.probe;
        Ok(self.http.post(&format!("{url}{route}"), Some(body.clone())).await.is_ok())
    }

    async fn address(&self, engine: EngineId) -> Option<String> {
        self.url(engine).await.ok()
    }
}
