//! The simulator as a program.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::{Parser, ValueEnum};
use rollwright_engine_sim::{
    Capacity, Config, Dialect, Disaggregation, EngineSim, Fast, Fault, Latency, Part, Script,
    ScriptFile,
};

/// A SIMULATOR of the HTTP interfaces of vLLM and SGLang: no model, no GPU, no result of a
/// real engine.
///
/// Text comes from a hash of the context (the same context, seed and weight version always
/// give the same tokens), or from a script. The log-prob of a token is -(weight version)
/// minus at most 0.5, so it tells which weights made it.
#[derive(Debug, Parser)]
#[command(name = "engine-sim", version, after_long_help = EXAMPLES)]
struct Args {
    /// Whose interface
    #[arg(long, value_enum, default_value = "vllm")]
    dialect: DialectArg,
    /// Address to listen on; anybody who reaches it may do everything
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR")]
    host: IpAddr,
    /// Port there; 0 = any free one. The address is printed on the first line
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Model id that is served
    #[arg(long, default_value = "engine-sim")]
    model: String,
    /// Key that generation asks for; admin routes are not guarded, as in vLLM
    #[arg(long, env = "ENGINE_SIM_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seed of the policy; engines of one job share it
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Mean length of a reply in tokens; 0 = replies end at their limit only
    #[arg(long, default_value_t = 64)]
    mean_tokens: u64,
    /// Replies as JSON lines, see below
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Weight version at the start
    #[arg(long, default_value_t = 0)]
    weight_version: u64,
    /// Sequences that run at once
    #[arg(long, default_value_t = 256)]
    max_num_seqs: usize,
    /// Requests that wait; more are refused with 503
    #[arg(long, default_value_t = 65_536)]
    max_waiting: usize,
    /// KV cache in tokens; 0 = without limit
    #[arg(long, default_value_t = 0)]
    kv_tokens: usize,
    /// Longest context in tokens
    #[arg(long, default_value_t = 32_768)]
    max_model_len: usize,
    /// Tokens of a KV block
    #[arg(long, default_value_t = 16)]
    block_size: usize,
    /// Honour `priority` (vLLM: lower first; SGLang: higher first)
    #[arg(long)]
    priority_scheduling: bool,
    /// `/pause?mode=keep` keeps the KV cache whatever `clear_cache` says
    #[arg(long)]
    keep_ignores_clear_cache: bool,
    /// It only prefills, or only decodes, and hands KV over (vLLM: it has a connector; what it
    /// does is what a request says)
    #[arg(long, value_enum)]
    disaggregation: Option<PartArg>,
    /// Port on 127.0.0.1 of its side channel (SGLang's bootstrap server); 0 = any free one,
    /// which is printed on the second line
    #[arg(long, default_value_t = 0, requires = "disaggregation")]
    side_channel_port: u16,
    /// How long one side of a handover waits for the other, in milliseconds
    #[arg(long, default_value_t = 300_000.0, requires = "disaggregation")]
    transfer_timeout_ms: f64,
    /// What becomes of a request whose KV does not come (vLLM's `kv_load_failure_policy`)
    #[arg(long, value_enum, default_value = "fail", requires = "disaggregation")]
    kv_load_failure: LostKv,
    /// Added to every time to first token, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    ttft_ms: f64,
    /// Prompt tokens prefilled in a second; 0 = at once
    #[arg(long, default_value_t = 0.0)]
    prefill_rate: f64,
    /// A decode step, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    step_ms: f64,
    /// What each sequence of the batch adds to a decode step, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    step_per_sequence_ms: f64,
    /// Loading weights, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    load_ms: f64,
    /// Going to sleep, and waking up, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    sleep_ms: f64,
    /// A fault to come, as JSON (repeat for more), see below
    #[arg(long, value_name = "JSON")]
    fault: Vec<String>,
    /// For benchmarks of proxies: one fixed reply; no scheduler, keys or faults
    #[arg(long)]
    fast: bool,
    /// Bytes of text of the fixed reply
    #[arg(long, default_value_t = 64, requires = "fast")]
    reply_bytes: usize,
    /// Tokens of the fixed reply when it is streamed
    #[arg(long, default_value_t = 16, requires = "fast")]
    stream_tokens: usize,
    /// Between two of them, in milliseconds
    #[arg(long, default_value_t = 0.0, requires = "fast")]
    stream_interval_ms: f64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DialectArg {
    Vllm,
    Sglang,
    Openai,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PartArg {
    Prefill,
    Decode,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LostKv {
    /// It fails
    Fail,
    /// It is computed
    Recompute,
}

const EXAMPLES: &str = r#"Script lines (the first whose conditions all hold replies):
  {"contains": "2 + 2", "text": "4"}
  {"task": "FrozenLake", "turn": 0, "texts": ["left", "right"]}
  {"turn": 1, "text": "Looking.", "tool_call": {"name": "bash", "arguments": {"command": "ls"}}}
Conditions: contains (last user message), observation (last message), task, trajectory, turn.

Weights: a path that exists; its version is {"version": N} in version.json (in the directory,
or the file itself), else the number at the end of weight_version, else one more than before.

What only a simulator has:
  GET  /sim/state | /sim/requests | /sim/calls | /sim/violations
  POST /sim/faults   {"fault": "reset", "after_tokens": 3, "times": 1}
                     reset, half_json, never, error_body, server_error, too_many_requests
                     (retry_after), slow (byte_ms), sleep_lies, wake_hangs; also: path, skip,
                     times (0 = until DELETE /sim/faults)
  POST /sim/restart  {"version": 0}   resets all connections, starts with old weights

Examples:
  engine-sim --dialect sglang --port 30000 --script replies.jsonl
  engine-sim --ttft-ms 20 --prefill-rate 8000 --step-ms 8 --max-num-seqs 16 --kv-tokens 20000
  engine-sim --dialect sglang --disaggregation prefill --side-channel-port 8998
  engine-sim --fast --reply-bytes 200 --stream-tokens 50 --stream-interval-ms 10
  engine-sim --fault '{"fault":"server_error","times":2}'"#;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let faults = args
        .fault
        .iter()
        .map(|json| serde_json::from_str(json).with_context(|| format!("--fault {json}")))
        .collect::<Result<Vec<Fault>>>()?;
    let engine = EngineSim::start(config(args)?).await?;
    for fault in faults {
        engine.inject(fault).map_err(|message| anyhow!(message))?;
    }
    let mut out = std::io::stdout();
    writeln!(out, "engine-sim (a simulator, no model) listening on {}", engine.url())?;
    if let Some(port) = engine.side_port() {
        writeln!(out, "side channel on 127.0.0.1:{port}")?;
    }
    out.flush()?;
    stopped().await?;
    engine.stop().await;
    Ok(())
}

fn config(args: Args) -> Result<Config> {
    let script = match &args.script {
        Some(path) => Some(Arc::new(ScriptFile::read(path)?) as Arc<dyn Script>),
        None => None,
    };
    let fast = Fast {
        reply_bytes: args.reply_bytes,
        stream_tokens: args.stream_tokens,
        stream_interval: millis("--stream-interval-ms", args.stream_interval_ms)?,
    };
    let disaggregation = match args.disaggregation {
        None => None,
        Some(part) => Some(Disaggregation {
            part: match part {
                PartArg::Prefill => Part::Prefill,
                PartArg::Decode => Part::Decode,
            },
            port: args.side_channel_port,
            timeout: millis("--transfer-timeout-ms", args.transfer_timeout_ms)?,
            recompute: matches!(args.kv_load_failure, LostKv::Recompute),
        }),
    };
    Ok(Config {
        dialect: match args.dialect {
            DialectArg::Vllm => Dialect::Vllm,
            DialectArg::Sglang => Dialect::Sglang,
            DialectArg::Openai => Dialect::OpenAi,
        },
        host: args.host,
        port: args.port,
        model: args.model,
        api_key: args.api_key,
        seed: args.seed,
        mean_tokens: args.mean_tokens,
        version: args.weight_version,
        capacity: Capacity {
            slots: args.max_num_seqs,
            waiting: args.max_waiting,
            kv_tokens: args.kv_tokens,
            context: args.max_model_len,
            block: args.block_size,
        },
        latency: Latency {
            base: millis("--ttft-ms", args.ttft_ms)?,
            prefill_rate: args.prefill_rate,
            step: millis("--step-ms", args.step_ms)?,
            step_per_sequence: millis("--step-per-sequence-ms", args.step_per_sequence_ms)?,
            load: millis("--load-ms", args.load_ms)?,
            sleep: millis("--sleep-ms", args.sleep_ms)?,
        },
        priority_scheduling: args.priority_scheduling,
        keep_ignores_clear_cache: args.keep_ignores_clear_cache,
        script,
        fast: args.fast.then_some(fast),
        disaggregation,
    })
}

fn millis(name: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value / 1000.0)
        .with_context(|| format!("{name} {value}: needs milliseconds from 0"))
}

/// SIGINT or SIGTERM.
async fn stopped() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
