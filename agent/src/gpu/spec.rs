//! What the agent is told to start, and what it finds of it later.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rollwright_core::gpu::{Chunk, EngineId, Proof, Trouble};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An engine of a reward service, at one degree. It travels with the order to launch it. Its
/// `Debug` leaves out what may hold secrets.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// The reward service, with its namespace.
    pub service: String,
    /// Whose interface it has.
    pub engine: EngineKind,
    /// Container image; `None` is a process of this node.
    pub image: Option<String>,
    /// Further arguments of the engine; of a process that no image holds, its whole command
    /// line. They may hold secrets.
    pub args: Vec<String>,
    /// Environment. It may hold secrets: never logged.
    pub env: BTreeMap<String, String>,
    /// Directory or name of the model.
    pub model: String,
    /// Name under which the model is served.
    pub served_name: String,
    /// GPUs that work on it: 1, 2, 4 or 8.
    pub degree: u32,
    /// How it leaves the device.
    pub evict: EvictBy,
    /// What proves that it serves; `None` is the engine's default.
    pub probe: Option<Probe>,
    /// What it needs.
    pub footprint: Needs,
}

impl fmt::Debug for EngineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, engine, image, model, degree, evict, footprint, .. } = self;
        let mut shown = f.debug_struct("EngineSpec");
        shown.field("service", service).field("engine", engine).field("image", image);
        shown.field("model", model).field("degree", degree).field("evict", evict);
        shown.field("footprint", footprint).finish_non_exhaustive()
    }
}

/// Whose interface an engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineKind {
    /// vLLM's OpenAI server.
    Vllm,
    /// SGLang's server.
    Sglang,
    /// A program with the sleep routes of vLLM, as the reference reward server has them.
    Other,
}

/// How an engine leaves the device between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictBy {
    /// By its own sleep mode.
    EngineSleep,
    /// The agent keeps its weights in pinned memory of the node.
    HostPinned,
    /// By the driver's checkpoint of its process.
    CudaCheckpoint,
}

/// A small request of the kind that a service serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Where it is posted, such as `/score` or `/v1/completions`.
    pub path: String,
    /// What is posted.
    pub body: Value,
}

/// Bytes that one engine needs; see [`rollwright_core::gpu::Footprint`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// On each GPU while it is resident.
    pub device: u64,
    /// On each GPU while it sleeps.
    pub residue: u64,
    /// Of the node's memory as long as it lives.
    pub host: u64,
}

/// An engine that lives, as one of an earlier process of the agent may.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The id under which it was launched.
    pub engine: EngineId,
    /// What was launched.
    pub spec: Arc<EngineSpec>,
    /// On which GPUs.
    pub chunk: Chunk,
    /// Its state as it was verified; `None` where that could not be had.
    pub proof: Option<Proof>,
}

/// What happens without an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incident {
    /// An engine is in trouble by itself.
    Broke(EngineId, Trouble),
    /// A GPU fell off, or is well again.
    Gpu {
        /// Which of the node's.
        gpu: u32,
        /// It fell off.
        lost: bool,
    },
}

/// What of a node engines may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Number of GPUs; none is a node without a driver.
    pub gpus: u32,
    /// Bytes of each.
    pub memory: u64,
    /// Bytes of the node's own memory.
    pub host: u64,
    /// GPUs that fell off.
    pub lost: Vec<u32>,
    /// The GPUs are a **fake**.
    pub fake: bool,
}

impl EngineSpec {
    /// Bytes of the node's memory that an engine may take for each GPU beside what it declares:
    /// runtime, libraries, shared memory.
    pub const BESIDE: u64 = 4 << 30;

    /// Bytes of the node's memory that it may take; `None` for one that declares nothing.
    pub fn most_memory(&self) -> Option<u64> {
        let beside = u64::from(self.degree) * Self::BESIDE;
        (self.footprint.host > 0).then(|| self.footprint.host.saturating_add(beside))
    }

    /// What proves that it serves: what was asked for, else the shortest completion.
    pub fn probe(&self) -> Probe {
        self.probe.clone().unwrap_or_else(|| Probe {
            path: "/v1/completions".into(),
            body: serde_json::json!({
                "model": self.served_name, "prompt": "1", "max_tokens": 1
            }),
        })
    }
}

#[cfg(test)]
impl EngineSpec {
    /// A process on one GPU, of no program in particular.
    pub(crate) fn bare() -> Self {
        Self {
            service: "s".into(),
            engine: EngineKind::Other,
            image: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            model: String::new(),
            served_name: String::new(),
            degree: 1,
            evict: EvictBy::EngineSleep,
            probe: None,
            footprint: Needs::default(),
        }
    }
}

/// The GPUs of an engine and the processes that it consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Where it is.
    pub chunk: Chunk,
    /// Its processes, as this machine numbers them.
    pub pids: Vec<u32>,
    /// Bytes on each GPU that the agent itself has for it.
    pub lent: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let spec: EngineSpec = serde_json::from_value(serde_json::json!({
            "service": "ns/judge", "engine": "Vllm", "image": "vllm:1", "model": "judge",
            "args": ["--api-key", "hunter2"], "env": {"HF_TOKEN": "hunter3"}, "degree": 2,
            "served_name": "judge", "evict": "EngineSleep", "probe": null,
            "footprint": {"device": 5, "residue": 1, "host": 7}
        }))
        .unwrap();
        let shown = format!("{spec:?}");
        assert!(shown.contains("ns/judge") && !shown.contains("hunter"), "{shown}");
        assert_eq!(spec.most_memory(), Some(7 + 2 * EngineSpec::BESIDE));
        let footprint = Needs { host: 0, ..spec.footprint };
        assert_eq!(EngineSpec { footprint, ..spec }.most_memory(), None);
    }
}
