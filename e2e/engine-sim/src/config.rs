//! How an engine-sim is set up.

/// Whose HTTP interface is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// vLLM with the development routes (`VLLM_SERVER_DEV_MODE=1`) and sleep mode.
    #[default]
    Vllm,
    /// SGLang with `--enable-metrics` and `--enable-memory-saver`.
    Sglang,
    /// Any server with OpenAI's routes.
    OpenAi,
}

/// The set-up of an [`EngineSim`](crate::EngineSim).
#[derive(Debug, Clone)]
pub struct Config {
    /// Whose interface.
    pub dialect: Dialect,
    /// The port on 127.0.0.1; 0 = any free one. No other address is listened on.
    pub port: u16,
    /// The model id that is served.
    pub model: String,
    /// With a key, the generation routes ask for `Authorization: Bearer KEY`. As in vLLM,
    /// the admin routes are not guarded.
    pub api_key: Option<String>,
    /// The seed of the policy: engines of one job share it.
    pub seed: u64,
    /// The mean length of a reply in tokens; 0 = replies end at `max_tokens` only.
    pub mean_tokens: u64,
    /// The weight version at the start.
    pub version: u64,
    /// The longest context in tokens, prompt and reply.
    pub max_model_len: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dialect: Dialect::Vllm,
            port: 0,
            model: "engine-sim".into(),
            api_key: None,
            seed: 0,
            mean_tokens: 64,
            version: 0,
            max_model_len: 32_768,
        }
    }
}
