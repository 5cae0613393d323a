//! `EngineSleep`: engines leave the device by their own sleep mode, over HTTP. Their admin
//! routes are not guarded by any key, so they must be reachable from the agent alone.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollwright_core::gpu::{EngineId, Order, Trouble};
use serde_json::{Value, json};

use super::http::Http;
use super::launch::Program;
use super::mover::Mover;
use super::spec::{EngineKind, EngineSpec};

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

impl SleepMode {
    /// A vLLM that declares no memory of the node keeps its weights nowhere while it sleeps.
    pub fn of(spec: &EngineSpec) -> Self {
        match spec.engine {
            EngineKind::Sglang => Self::Sglang,
            EngineKind::Vllm if spec.footprint.host == 0 => Self::VllmDiscard,
            EngineKind::Vllm | EngineKind::Other => Self::VllmOffload,
        }
    }
}

/// Engines with a sleep mode.
#[derive(Debug, Default)]
pub struct EngineSleep {
    http: Http,
    /// SGLang does not say whether it sleeps: those whose last call put them to sleep.
    told: Mutex<BTreeSet<EngineId>>,
}

impl EngineSleep {
    async fn post(
        &self,
        what: Order,
        program: &Program,
        route: &str,
        body: Option<Value>,
    ) -> Result<(), Trouble> {
        let reply = self.http.post(&format!("{}{route}", program.url), body).await;
        reply.map(drop).map_err(|why| Trouble::Refused(what, why))
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<EngineId>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both kinds of memory, by the names that SGLang gives them.
fn all_memory() -> Value {
    json!({"tags": ["kv_cache", "weights"]})
}

#[async_trait]
impl Mover for EngineSleep {
    async fn wake(&self, program: &Program) -> Result<(), Trouble> {
        let what = Order::Wake;
        match SleepMode::of(&program.spec) {
            SleepMode::VllmOffload => self.post(what, program, "/wake_up", None).await?,
            SleepMode::VllmDiscard => {
                // The KV cache comes last: it must not be there when weights are loaded.
                self.post(what, program, "/wake_up?tags=weights", None).await?;
                let reload = Some(json!({"method": "reload_weights"}));
                self.post(what, program, "/collective_rpc", reload).await?;
                self.post(what, program, "/wake_up?tags=kv_cache", None).await?;
            }
            SleepMode::Sglang => {
                self.post(what, program, "/resume_memory_occupation", Some(all_memory())).await?;
            }
        }
        self.told().remove(&program.engine);
        Ok(())
    }

    async fn evict(&self, program: &Program) -> Result<(), Trouble> {
        let (route, body) = match SleepMode::of(&program.spec) {
            SleepMode::VllmOffload => ("/sleep?level=1", None),
            SleepMode::VllmDiscard => ("/sleep?level=2", None),
            SleepMode::Sglang => ("/release_memory_occupation", Some(all_memory())),
        };
        self.post(Order::Evict, program, route, body).await?;
        self.told().insert(program.engine);
        Ok(())
    }

    async fn is_asleep(&self, program: &Program) -> Result<bool, Trouble> {
        if SleepMode::of(&program.spec) == SleepMode::Sglang {
            return Ok(self.told().contains(&program.engine));
        }
        let reply = self.http.get(&format!("{}/is_sleeping", program.url)).await;
        let reply = reply.map_err(Trouble::Died)?;
        reply.get("is_sleeping").and_then(Value::as_bool).ok_or_else(|| {
            let url = &program.url;
            Trouble::Died(format!("{url}/is_sleeping did not say whether it sleeps"))
        })
    }

    async fn gone(&self, engine: EngineId) {
        self.told().remove(&engine);
    }
}
