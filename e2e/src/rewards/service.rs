//! Reward services of the tests, as manifests.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::program;

/// Environment variable of our engines.
pub(super) const MARK: &str = "ROLLWRIGHT_TEST";

/// What serves a reward service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// engine-sim with vLLM's interface, as a program of one's own: `type: OpenAI`.
    Vllm,
    /// engine-sim with SGLang's interface, which the agent starts as it starts SGLang.
    Sglang,
    /// The [test server](super::own) in the place of a program of one's own.
    Own,
}

/// A reward service of the test.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, and its model's.
    pub name: String,
    /// GPUs that its engines may have.
    pub degrees: Vec<u32>,
    /// GiB of each GPU, awake; asleep it keeps one.
    pub device: u32,
    /// GiB of the node's memory as long as its process lives.
    pub host: u32,
    /// Milliseconds that a token takes.
    pub step_ms: u32,
    /// Seconds that a sleeping engine may take to come back.
    pub wake: u32,
    /// Calls that may run together on one of its engines.
    pub batch: u32,
    /// What a job asks of it: `spec.gpu.ask`.
    pub ask: &'static str,
    /// Version of its weights, and so its log-probabilities and scores.
    pub version: u64,
    /// What serves it. Of the [test server](Engine::Own) `step_ms` and `version` are nothing.
    pub engine: Engine,
}

impl Service {
    /// A fast one, of which a GPU of 80 GiB holds one awake.
    pub fn new(name: &str, degrees: &[u32]) -> Self {
        let (name, degrees) = (name.to_owned(), degrees.to_vec());
        let (batch, ask, version, engine) = (1, "Reward", 0, Engine::Vllm);
        Self {
            name,
            degrees,
            device: 50,
            host: 1,
            step_ms: 1,
            wake: 60,
            batch,
            ask,
            version,
            engine,
        }
    }

    /// Served by SGLang's interface, and asked for what its reward model says.
    #[must_use]
    pub fn sglang(self) -> Self {
        Self { engine: Engine::Sglang, ask: "Pooling", ..self }
    }

    /// Served by a program of one's own, and asked for its reward.
    #[must_use]
    pub fn own(self) -> Self {
        Self { engine: Engine::Own, ask: "Reward", ..self }
    }

    /// `spec.gpu.engine` and, where it needs one, `spec.gpu.probe`.
    fn served(&self, env: &Value) -> anyhow::Result<(Value, Option<Value>)> {
        let Self { name, step_ms, version, engine, .. } = self;
        let sim = format!("--mean-tokens 0 --step-ms {step_ms} --weight-version {version}");
        let path = |program_name| anyhow::Ok(program(program_name)?.display().to_string());
        let probe = |path: &str, body: Value| json!({"path": path, "body": body.to_string()});
        let (kind, program, args, probe) = match engine {
            Engine::Vllm => {
                let args = format!("--host {{host}} --port {{port}} --model {name} {sim}");
                ("OpenAI", Some(path("engine-sim")?), args, None)
            }
            // A reward model of SGLang completes no text.
            Engine::Sglang => {
                let probe = probe("/classify", json!({"text": "1"}));
                ("SGLang", None, format!("--is-embedding {sim}"), Some(probe))
            }
            Engine::Own => {
                let subject = json!({"token_ids": [1], "loss_mask": [1], "turns": 1});
                let args = "--listen {host}:{port}".to_owned();
                ("OpenAI", Some(path("own-judge")?), args, Some(probe("/reward", subject)))
            }
        };
        let words = args.split_whitespace().map(str::to_owned);
        let args: Vec<String> = program.into_iter().chain(words).collect();
        Ok((json!({"type": kind, "image": "process", "args": args, "env": env}), probe))
    }
}

/// A `python3` in a directory, for the agent's `PATH`: its SGLang is engine-sim, a simulator.
pub(super) fn pretend_sglang(dir: &Path) -> anyhow::Result<()> {
    let engine_sim = program("engine-sim")?;
    let script = format!(
        r#"#!/bin/sh
# engine-sim, a SIMULATOR, in the place of SGLang.
set -eu
[ "$1 $2" = "-m sglang.launch_server" ]
shift 2
left=$#
while [ "$left" -gt 0 ]; do
  word=$1 left=$((left - 1)) && shift
  case $word in
    --is-embedding | --enable-memory-saver) continue ;;
    --model-path | --tp-size) left=$((left - 1)) && shift && continue ;;
    --served-model-name) word=--model ;;
  esac
  set -- "$@" "$word"
done
exec "{}" --dialect sglang "$@"
"#,
        engine_sim.display()
    );
    let python = dir.join("python3");
    std::fs::write(&python, script)?;
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The queue `rewards`, its pool and services.
pub(super) fn manifest(services: &[Service], dir: &Path) -> anyhow::Result<String> {
    let queue = "apiVersion: rollwright.dev/v1alpha1
kind: ActionQueue
metadata: {name: rewards}
spec:
  pools: [judges]
";
    Ok(format!("{queue}---\n{}", documents("rewards", services, dir)?))
}

/// The pool `judges` and the services of a queue, whose engines are known by `dir`.
pub fn documents(queue: &str, services: &[Service], dir: &Path) -> anyhow::Result<String> {
    let mut text = String::from(
        "apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: judges}
spec:
  gpu:
    class: fake
    profile: {tflops: 1, hbm: 80Gi, hbmTbps: 1}
    gpusPerNode: 8
    hosts: [Reward]
",
    );
    for service in services {
        let Service { name, degrees, device, host, wake, batch, ask, .. } = service;
        let (engine, probe) = service.served(&json!({MARK: dir}))?;
        // JSON is YAML.
        let probe = probe.map(|probe| format!("\n    probe: {probe}")).unwrap_or_default();
        write!(
            text,
            "---
apiVersion: rollwright.dev/v1alpha1
kind: RewardService
metadata: {{name: {name}}}
spec:
  gpu:
    queue: {queue}
    pool: judges
    model: {{path: {name}}}
    ask: {ask}
    batch: {batch}
    timeout: 10m
    engine: {engine}{probe}
    degrees: {degrees:?}
    footprints:
"
        )?;
        for degree in degrees {
            writeln!(
                text,
                "      - {{degree: {degree}, device: {device}Gi, residue: 1Gi, host: {host}Gi}}"
            )?;
        }
        writeln!(text, "    limits: {{launch: 2m, wake: {wake}s, evict: 1m, stop: 1m}}")?;
    }
    Ok(text)
}
