//! `vllm serve MODEL ...` as the controllers write it, served by engine-sim, a SIMULATOR: what
//! stands in for vLLM's program in the tests' image. `$ENGINE_SIM` holds arguments for it.
#![forbid(unsafe_code)]

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [serve, path, ..] = &arguments[..] else { bail!("usage: vllm serve MODEL ...") };
    if serve != "serve" {
        bail!("usage: vllm serve MODEL ...");
    }
    // The later of two counts.
    let value = |name: &str| {
        let at = arguments.iter().rposition(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let model = value("--served-model-name").unwrap_or(path);
    let more = env::var("ENGINE_SIM").unwrap_or_default();
    // It takes this program's place: signals and the exit status are its own.
    let error = Command::new("/usr/local/bin/engine-sim")
        .args(["--dialect", "vllm", "--host", "0.0.0.0", "--model", model])
        .args(["--port", value("--port").unwrap_or("8000")])
        .args(more.split_whitespace())
        .exec();
    Err(error).context("engine-sim")
}
