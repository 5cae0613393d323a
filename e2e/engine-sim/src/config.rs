//! How an engine-sim is set up.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::script::Script;

/// Whose HTTP interface is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// vLLM with the development routes (`VLLM_SERVER_DEV_MODE=1`) and sleep mode.
    #[default]
    Vllm,
    /// SGLang with `--enable-metrics` and `--enable-memory-saver`.
    Sglang,
    /// Any server with OpenAI's routes, and a route that reloads weights.
    OpenAi,
}

/// How long things take. All zero by default: as fast as the machine goes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Added to the time to the first token of every request.
    pub base: Duration,
    /// Prompt tokens that the engine prefills in a second, one request after the other,
    /// those found in the prefix cache not counted; 0 = at once.
    pub prefill_rate: f64,
    /// A decode step with an empty batch.
    pub step: Duration,
    /// What each sequence of the batch adds to a decode step.
    pub step_per_sequence: Duration,
    /// Loading weights, from disk or by transfer.
    pub load: Duration,
    /// Going to sleep, and waking up.
    pub sleep: Duration,
}

/// What the engine can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that run at once (vLLM's `max_num_seqs`).
    pub slots: usize,
    /// Requests that wait for a slot; more are refused with 503.
    pub waiting: usize,
    /// Tokens of KV cache; 0 = without limit. A context is never longer than this.
    pub kv_tokens: usize,
    /// The longest context in tokens, prompt and reply (vLLM's `max_model_len`).
    pub context: usize,
    /// Tokens of a KV block, the grain of the prefix cache.
    pub block: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { slots: 256, waiting: 65_536, kv_tokens: 0, context: 32_768, block: 16 }
    }
}

impl Capacity {
    /// The longest context that fits, in tokens.
    pub fn longest(&self) -> usize {
        if self.kv_tokens == 0 { self.context } else { self.context.min(self.kv_tokens) }
    }
}

/// How an instance that only prefills, or only decodes, hands KV over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disaggregation {
    /// Its part (SGLang's `--disaggregation-mode`). A vLLM instance with a connector does
    /// what a request says, whatever its part.
    pub part: Part,
    /// The port of its side channel on 127.0.0.1; 0 = any free one (vLLM's
    /// `VLLM_NIXL_SIDE_CHANNEL_PORT`, SGLang's `--disaggregation-bootstrap-port`).
    pub port: u16,
    /// How long one side waits for the other, and KV is kept.
    pub timeout: Duration,
    /// vLLM's `kv_load_failure_policy`: KV that does not come is computed; else its request
    /// fails.
    pub recompute: bool,
}

impl Disaggregation {
    /// An instance of this part, with the limits of real engines.
    pub fn of(part: Part) -> Self {
        Self { part, port: 0, timeout: Duration::from_mins(5), recompute: false }
    }
}

/// The part of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It prefills.
    Prefill,
    /// It decodes.
    Decode,
}

/// A fixed reply for the benchmarks of proxies: no scheduler, least CPU a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fast {
    /// The length of the reply's text in bytes, when it is not streamed.
    pub reply_bytes: usize,
    /// Tokens of a streamed reply.
    pub stream_tokens: usize,
    /// Between two of them.
    pub stream_interval: Duration,
}

impl Default for Fast {
    fn default() -> Self {
        Self { reply_bytes: 64, stream_tokens: 16, stream_interval: Duration::ZERO }
    }
}

/// The set-up of an [`EngineSim`](crate::EngineSim).
#[derive(Debug, Clone)]
pub struct Config {
    /// Whose interface.
    pub dialect: Dialect,
    /// The address that is listened on. Nobody is asked who they are: other than the loopback
    /// only where nobody else comes.
    pub host: IpAddr,
    /// The port there; 0 = any free one.
    pub port: u16,
    /// The model id that is served.
    pub model: String,
    /// With a key, generation asks for `Authorization: Bearer KEY`. As in vLLM, the admin
    /// routes are not guarded.
    pub api_key: Option<String>,
    /// The seed of the policy: engines of one job share it.
    pub seed: u64,
    /// The mean length of a reply in tokens; 0 = replies end at `max_tokens` only.
    pub mean_tokens: u64,
    /// The weight version at the start, and after a restart.
    pub version: u64,
    /// What it can hold.
    pub capacity: Capacity,
    /// How long things take.
    pub latency: Latency,
    /// vLLM `--scheduling-policy priority`, SGLang `--enable-priority-scheduling`. Without
    /// it, vLLM refuses a non-zero `priority` and SGLang ignores it.
    pub priority_scheduling: bool,
    /// vLLM's `/pause?mode=keep` keeps the KV cache even with `clear_cache=true`, as its
    /// source says of some versions; by default it clears, as its documentation says.
    pub keep_ignores_clear_cache: bool,
    /// What replies say, where a script has one; else the policy's noise.
    pub script: Option<Arc<dyn Script>>,
    /// The fixed reply of benchmarks, on the generation routes.
    pub fast: Option<Fast>,
    /// It shares generations with other instances.
    pub disaggregation: Option<Disaggregation>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dialect: Dialect::Vllm,
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            model: "engine-sim".into(),
            api_key: None,
            seed: 0,
            mean_tokens: 64,
            version: 0,
            capacity: Capacity::default(),
            latency: Latency::default(),
            priority_scheduling: false,
            keep_ignores_clear_cache: false,
            script: None,
            fast: None,
            disaggregation: None,
        }
    }
}
