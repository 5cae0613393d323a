//! What a turn costs on a class of hardware: the roofline of its two phases.
//!
//! Generation has two phases (`RollArt` 3.1): prefill is bound by arithmetic, decoding
//! by memory bandwidth. For a turn with `p` tokens to prefill, `d` to decode and a
//! context of `l`, a model of `n` active parameters, `w` bytes of weights and `k` bytes
//! of KV cache a token, on `g` GPUs of `f` FLOP/s, `m` bytes/s and `h` bytes each:
//!
//! ```text
//! prefill = p * 2n / (g f PREFILL)                  two operations per weight and token
//! batch   = min(slots, (g h USABLE - w) / (k l))    contexts that fit beside the weights
//! decode  = d * max((w / batch + k l) / (g m DECODE),  weights shared by a batch, own KV
//!                   2n / (g f PREFILL))                or arithmetic, if that is slower
//! cost    = price * g * (prefill + decode)
//! ```
//!
//! This prices the share of the hardware that the turn takes, not its latency, so
//! classes of different size and price compare; with table 2 of the paper it gives the
//! same order as the paper's measurement (figure 4). The order of the classes does not
//! depend on how many turns a trajectory has; its cost does.

use super::config::{ClassProfile, ModelShape};

/// Part of the peak arithmetic that a prefill reaches.
const PREFILL: f64 = 0.5;
/// Part of the peak bandwidth that decoding reaches.
const DECODE: f64 = 0.6;
/// Part of the memory that an engine gives to weights and KV cache.
const USABLE: f64 = 0.9;
const SECONDS_PER_HOUR: f64 = 3600.0;
const TERA: f64 = 1e12;
const GIB: f64 = (1u64 << 30) as f64;

/// The mean turn of a task, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Turn {
    /// Tokens of the prompt that were in no cache.
    pub prefill: f64,
    /// Tokens generated.
    pub decode: f64,
    /// Tokens of the context while it decodes.
    pub context: f64,
}

/// Cost of one turn on a worker of this class that serves up to `slots` at once, in the
/// currency of the profile. `None` if the model does not fit, or the profile says
/// nothing usable (a rate or size that is not above zero).
pub fn of_turn(turn: &Turn, class: &ClassProfile, model: &ModelShape, slots: u32) -> Option<f64> {
    let gpus = f64::from(class.gpus.max(1));
    let flops = gpus * class.tflops * TERA * PREFILL;
    let bandwidth = gpus * class.hbm_tbps * TERA * DECODE;
    let room = gpus * class.hbm_gib * GIB * USABLE - model.weight_bytes;
    if !(flops > 0.0 && bandwidth > 0.0 && room > 0.0) {
        return None;
    }
    let per_token = 2.0 * model.active_parameters / flops;
    let kv = model.kv_bytes_per_token * turn.context.max(1.0);
    let batch = (room / kv).min(f64::from(slots.max(1))).max(1.0);
    let decode = ((model.weight_bytes / batch + kv) / bandwidth).max(per_token);
    let seconds = turn.prefill * per_token + turn.decode * decode;
    let cost = class.cost_per_hour * gpus * seconds / SECONDS_PER_HOUR;
    cost.is_finite().then_some(cost)
}
