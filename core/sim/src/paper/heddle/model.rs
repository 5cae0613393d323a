//! What a token costs, by a roofline of the hardware and models that the texts name.

use rollwright_core::placement::{Degree, Interference, InvalidInterference};

/// A model on GPUs of 80 GB at 3.35 TB/s (003, Table 2).
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    /// Billions of parameters.
    parameters: f64,
    /// GB of weights (003, Table 3).
    weights: f64,
    /// GB of KV cache of a token: layers x 8 heads x 128 x 2 x 2 bytes.
    kv: f64,
    layers: f64,
    /// GPUs of a worker where all are alike (000, 7.1).
    pub(super) degree: u64,
}

/// The three of the text (000, section 7).
pub(super) const MODELS: [Model; 3] = [
    Model { parameters: 8.0, weights: 15.26, kv: 36.0 * 4096e-9, layers: 36.0, degree: 1 },
    QWEN3_14B,
    Model { parameters: 32.0, weights: 61.02, kv: 64.0 * 4096e-9, layers: 64.0, degree: 2 },
];
/// The one of the ablations (000, 7.2 to 7.4).
pub(super) const QWEN3_14B: Model =
    Model { parameters: 14.0, weights: 27.51, kv: 40.0 * 4096e-9, layers: 40.0, degree: 1 };

/// GB/s of a GPU's memory.
const BANDWIDTH: f64 = 3350.0;
/// GB of it.
const MEMORY: f64 = 80.0;
/// GFLOP/s, of which half are put to use.
const GFLOPS: f64 = 989_500.0 * 0.5;
/// Seconds of a step that no hardware shortens.
const LAUNCH: f64 = 1e-3;
/// Seconds of one of the two reductions of a layer.
const REDUCTION: f64 = 10e-6;
/// Tokens of context on average.
const CONTEXT: f64 = 8_000.0;

impl Model {
    /// Seconds for a token alone on a worker: its weights are read once.
    pub(super) fn token_time(&self, gpus: u64) -> f64 {
        let reductions = if gpus > 1 { 2.0 * self.layers * REDUCTION } else { 0.0 };
        self.weights / gpus as f64 / BANDWIDTH + reductions + LAUNCH
    }

    /// What one more trajectory adds: its context is read too.
    pub(super) fn slope(&self) -> f64 {
        CONTEXT * self.kv / BANDWIDTH / self.token_time(1)
    }

    /// The factor of groups up to a size (000, 5.2: of the batch, and of the wait for it).
    /// What the slots of a worker's smallest degree do not hold waits its turn.
    pub(super) fn interference(&self, most: usize) -> Result<Interference, InvalidInterference> {
        let slots = self.slots(self.degree);
        let factor = |size: usize| {
            let running = self.slope().mul_add((size.min(slots) - 1) as f64, 1.0);
            running * (size as f64 / slots as f64).max(1.0)
        };
        Interference::new((1..=most).map(factor).collect())
    }

    /// Trajectories that a worker's memory holds.
    pub(super) fn slots(&self, gpus: u64) -> usize {
        let free = MEMORY * 0.9 * gpus as f64 - self.weights;
        (free / (CONTEXT * self.kv)).max(1.0) as usize
    }

    /// Seconds to read a token again where its KV cache is not.
    pub(super) fn prefill(&self, gpus: u64) -> f64 {
        2.0 * self.parameters / (GFLOPS * gpus as f64)
    }

    /// Degrees that hold the weights and some trajectories.
    pub(super) fn degrees(&self) -> Vec<Degree> {
        let fits = |&gpus: &u64| self.slots(gpus) > 8;
        let degree = |gpus| Degree { gpus, token_time: self.token_time(gpus) };
        [1, 2, 4, 8].into_iter().filter(fits).map(degree).collect()
    }
}
