//! The control side of an engine: its health, the version that it holds, and the calls of
//! a weight update in the order that keeps no KV of the old weights alive (RollArt 6.2).
//!
//! For every engine the order is [`Control::pause`], [`Control::update`],
//! [`Control::flush_cache`], [`Control::verify`], [`Control::resume`]; what each step
//! means is the dialect's. Repeating a step does no harm.

mod load;
mod reload;
mod request;
mod sglang;
mod vllm;

use std::time::Duration;

use http::HeaderValue;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use rollwright_crds::engine::{Engine, EngineType};
use serde_json::Value;

use crate::outbound;

pub use load::Load;
use request::Requests;

/// How an engine is told what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM with its development endpoints (`VLLM_SERVER_DEV_MODE=1`).
    Vllm,
    /// `SGLang`.
    SGLang,
    /// Any other: it can only load weights while it is idle.
    Reload {
        /// Where the new weights are posted, such as `/update_weights_from_disk`.
        path: String,
    },
}

impl From<&Engine> for Dialect {
    fn from(engine: &Engine) -> Self {
        match engine.kind {
            EngineType::Vllm => Self::Vllm,
            EngineType::SGLang => Self::SGLang,
            EngineType::OpenAI => Self::Reload { path: engine.reload_path.clone() },
        }
    }
}

/// What becomes of requests that still run when an engine pauses. Freezing them
/// (vLLM `keep`, SGLang `in_place`) is not offered: they would go on with old KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// They end and return what they have.
    Abort,
    /// They end by themselves before the engine pauses (vLLM), or are put back in its
    /// line and recomputed by the new weights (SGLang `retract`).
    Wait,
}

/// Where the new weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory or file that the engine can read.
    Disk {
        /// Its path on the engine's machine.
        path: String,
    },
    /// The trainer has put them into the engine's memory already.
    External,
}

/// A step of a transfer that the trainer drives itself, relayed to an engine that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferStep {
    /// The engine joins the trainer's communication group.
    Init,
    /// An update begins.
    Start,
    /// Weights come.
    Update,
    /// An update ends (vLLM), or the group is left (SGLang).
    Finish,
}

/// How long each kind of step may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Health, version, load.
    pub probe: Duration,
    /// Pause (with [`PauseMode::Wait`] the running requests' time included).
    pub pause: Duration,
    /// Update, and each external transfer step.
    pub update: Duration,
    /// Flush, resume, abort.
    pub step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(5),
            pause: Duration::from_mins(5),
            update: Duration::from_mins(10),
            step: Duration::from_mins(1),
        }
    }
}

/// The control side of one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    requests: Requests,
    dialect: Dialect,
    limits: Limits,
}

impl Control {
    /// Of the engine at `url`, such as `http://10.0.0.7:8000`; `key` is what it was given
    /// as `--api-key`.
    pub fn new(
        url: &str,
        dialect: Dialect,
        key: Option<&str>,
        limits: Limits,
    ) -> Result<Self, Fault> {
        let authorization = key.map(bearer).transpose()?;
        Ok(Self { requests: Requests::new(url, authorization)?, dialect, limits })
    }

    /// Ok when it says that it can serve.
    pub async fn health(&self) -> Result<(), Fault> {
        self.requests.get("/health", self.limits.probe).await.map(drop)
    }

    /// The version of the weights that it says it holds; `None` where it cannot say, or
    /// where what it says is no version of ours (`default`).
    pub async fn version(&self) -> Result<Option<Version>, Fault> {
        let (requests, limit) = (&self.requests, self.limits.probe);
        match &self.dialect {
            Dialect::Vllm => vllm::version(requests, limit).await,
            Dialect::SGLang => sglang::version(requests, limit).await,
            Dialect::Reload { .. } => Ok(None),
        }
    }

    /// What it does at this moment; `None` where it shows no metrics that we know.
    pub async fn load(&self) -> Result<Option<Load>, Fault> {
        load::read(&self.requests, self.limits.probe).await
    }

    /// Stops generation. What ran has no KV afterwards.
    pub async fn pause(&self, mode: PauseMode) -> Result<(), Fault> {
        let (requests, limits) = (&self.requests, &self.limits);
        match &self.dialect {
            Dialect::Vllm => vllm::pause(requests, mode, limits).await,
            Dialect::SGLang => sglang::pause(requests, mode, limits).await,
            Dialect::Reload { .. } => Ok(()),
        }
    }

    /// Loads weights into a paused engine and tells it their version.
    pub async fn update(&self, source: &Source, version: Version) -> Result<(), Fault> {
        let (requests, limits) = (&self.requests, &self.limits);
        match &self.dialect {
            Dialect::Vllm => vllm::update(requests, source, version, limits).await,
            Dialect::SGLang => sglang::update(requests, source, version, limits).await,
            Dialect::Reload { path } => {
                reload::update(requests, path, source, version, limits).await
            }
        }
    }

    /// Drops the prefix cache, so that nothing computed by older weights is left.
    pub async fn flush_cache(&self) -> Result<(), Fault> {
        let (requests, limit) = (&self.requests, self.limits.step);
        match &self.dialect {
            Dialect::Vllm => requests.post("/reset_prefix_cache", None, limit).await.map(drop),
            Dialect::SGLang => requests.post("/flush_cache", None, limit).await.map(drop),
            Dialect::Reload { .. } => Ok(()),
        }
    }

    /// Fails when it says that it holds another version. Where it says none after it was
    /// told one, the update is believed.
    pub async fn verify(&self, version: Version) -> Result<(), Fault> {
        match self.version().await? {
            Some(held) if held != version => {
                let message = format!(
                    "the engine at {} holds version {held} after an update to {version}: it is updated again before it serves",
                    self.requests.shown()
                );
                Err(Fault::new(FaultKind::Infrastructure, "EngineVersionMismatch", message))
            }
            _ => Ok(()),
        }
    }

    /// Lets generation go on.
    pub async fn resume(&self) -> Result<(), Fault> {
        let (requests, limit) = (&self.requests, self.limits.step);
        match &self.dialect {
            Dialect::Vllm => vllm::resume(requests, limit).await,
            Dialect::SGLang => sglang::resume(requests, limit).await,
            Dialect::Reload { .. } => Ok(()),
        }
    }

    /// Ends a request by the id that it was sent with. False where the engine has no call
    /// for that: then closing its connection ends it.
    pub async fn abort(&self, rid: &str) -> Result<bool, Fault> {
        let (requests, limit) = (&self.requests, self.limits.step);
        match &self.dialect {
            Dialect::Vllm => vllm::abort(requests, rid, limit).await,
            Dialect::SGLang => sglang::abort(requests, rid, limit).await,
            Dialect::Reload { .. } => Ok(false),
        }
    }

    /// Relays one step of the trainer's own transfer, its body as it is.
    pub async fn transfer(&self, step: TransferStep, body: &Value) -> Result<(), Fault> {
        let (requests, limit) = (&self.requests, self.limits.update);
        match &self.dialect {
            Dialect::Vllm => vllm::transfer(requests, step, body, limit).await,
            Dialect::SGLang => sglang::transfer(requests, step, body, limit).await,
            Dialect::Reload { .. } => Err(reload::external(requests)),
        }
    }
}

fn bearer(key: &str) -> Result<HeaderValue, Fault> {
    outbound::bearer(key).ok_or_else(|| {
        let message = "the engine's API key has characters that no HTTP header may have";
        Fault::new(FaultKind::User, "InvalidEngineKey", message)
    })
}

/// A version as engines say it: a number, or text that is one.
fn parse_version(value: &Value) -> Option<Version> {
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    number.map(Version)
}
