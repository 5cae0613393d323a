//! What the router is made of.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Class, Task};

/// Settings of one [`super::Router`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Which classes of hardware a task prefers.
    pub affinity: Affinity,
    /// When a trajectory leaves its worker although it could stay.
    pub sticky: Sticky,
    /// When a worker that fails gets no more requests.
    pub breaker: Breaker,
    /// A request that waits longer for a worker is refused.
    pub max_wait: Duration,
    /// Requests that may wait at once; a newcomer beyond that is refused.
    pub max_pending: usize,
    /// What a refused newcomer is told to wait before it tries again.
    pub retry_after: Duration,
    /// How often a request is sent whose generation failed; at least 1.
    pub max_attempts: u32,
    /// Within one priority a worker may take a request that fits it better (its own
    /// trajectory, a task that prefers its class) before one that came earlier, unless
    /// that one has waited for longer than this. Zero keeps the order of arrival.
    pub patience: Duration,
    /// Workers that only prefill, or only decode, can do both: they do while none of the
    /// other kind is in use.
    pub alone: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            affinity: Affinity::default(),
            sticky: Sticky::default(),
            breaker: Breaker::default(),
            max_wait: Duration::from_mins(10),
            max_pending: 20_000,
            retry_after: Duration::from_secs(1),
            max_attempts: 3,
            patience: Duration::from_secs(5),
            alone: false,
        }
    }
}

/// Hardware affinity: tasks to classes of hardware (`RollArt` 5.2).
///
/// No preference excludes a class: a less preferred one takes what the preferred ones
/// have no room for, so that nothing stalls.
#[derive(Debug, Clone)]
pub enum Affinity {
    /// As declared.
    Declared {
        /// The classes of a task, the preferred first; those not named come last.
        tasks: BTreeMap<Task, Vec<Class>>,
        /// The classes of every other task.
        default: Vec<Class>,
    },
    /// From what each task is seen to do and what each class can do.
    Auto(Auto),
}

impl Default for Affinity {
    fn default() -> Self {
        Self::Declared { tasks: BTreeMap::new(), default: Vec::new() }
    }
}

/// Affinity by estimated cost: see [`super::cost`].
#[derive(Debug, Clone)]
pub struct Auto {
    /// What each class can do. A class without a profile is preferred last.
    pub classes: BTreeMap<Class, ClassProfile>,
    /// The model that is served.
    pub model: ModelShape,
    /// Turns of a task that must have been seen before it prefers anything.
    pub min_turns: u32,
    /// After so many further turns an observation counts half.
    pub half_life: u32,
    /// Another class becomes the preferred one only when it is cheaper by this
    /// fraction, 0 to 1.
    pub hysteresis: f64,
}

impl Default for Auto {
    fn default() -> Self {
        Self {
            classes: BTreeMap::new(),
            model: ModelShape::default(),
            min_turns: 64,
            half_life: 1024,
            hysteresis: 0.1,
        }
    }
}

/// What one GPU of a class can do, as in `RollArt`'s table 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassProfile {
    /// Dense BF16 TFLOPS of one GPU.
    pub tflops: f64,
    /// Memory bandwidth of one GPU, in TB/s (10^12 bytes).
    pub hbm_tbps: f64,
    /// Memory of one GPU, in GiB.
    pub hbm_gib: f64,
    /// Price of one GPU per hour, in any currency, the same for all classes.
    pub cost_per_hour: f64,
    /// GPUs of one worker of this class.
    pub gpus: u32,
}

/// What of a model decides its speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelShape {
    /// Parameters that take part in the generation of one token.
    pub active_parameters: f64,
    /// Size of all weights, in bytes.
    pub weight_bytes: f64,
    /// Size of the KV cache of one token, in bytes.
    pub kv_bytes_per_token: f64,
}

impl Default for ModelShape {
    /// Qwen3-8B in BF16: 8.2 billion parameters; 36 layers of 8 KV heads of 128.
    fn default() -> Self {
        Self {
            active_parameters: 8.2e9,
            weight_bytes: 16.4e9,
            kv_bytes_per_token: f64::from(36 * 8 * 128 * 2 * 2),
        }
    }
}

/// A trajectory's turns go to one worker, whose cache holds its context.
#[derive(Debug, Clone, Copy)]
pub struct Sticky {
    /// It moves when its worker's load (requests in flight / slots) exceeds that of
    /// the least loaded worker of a class as good by more than this fraction.
    pub margin: f64,
    /// A trajectory without a request for so long may lose its place, and does after
    /// twice that time.
    pub idle: Duration,
    /// Trajectories whose place is remembered; beyond, the longest unseen lose theirs.
    pub max_trajectories: usize,
}

impl Default for Sticky {
    fn default() -> Self {
        Self { margin: 0.5, idle: Duration::from_mins(30), max_trajectories: 100_000 }
    }
}

/// Circuit breaker of a worker: open after failures in a row, for a time that doubles
/// with every failed probe.
#[derive(Debug, Clone, Copy)]
pub struct Breaker {
    /// Failures in a row that open it; at least 1.
    pub failures: u32,
    /// How long it stays open the first time.
    pub base: Duration,
    /// How long it stays open at most.
    pub max: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 3, base: Duration::from_secs(1), max: Duration::from_mins(1) }
    }
}
