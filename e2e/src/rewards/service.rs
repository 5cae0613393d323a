//! Reward services of the tests, as manifests.

use std::fmt::Write as _;
use std::path::Path;

use crate::program::program;

/// Environment variable of our engines.
pub(super) const MARK: &str = "ROLLWRIGHT_TEST";

/// A reward service of the test: an engine-sim.
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
}

impl Service {
    /// A fast one, of which a GPU of 80 GiB holds one awake.
    pub fn new(name: &str, degrees: &[u32]) -> Self {
        let (name, degrees) = (name.to_owned(), degrees.to_vec());
        let (batch, ask, version) = (1, "Reward", 0);
        Self { name, degrees, device: 50, host: 1, step_ms: 1, wake: 60, batch, ask, version }
    }
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
    let program = program("engine-sim")?;
    for service in services {
        let Service { name, degrees, device, host, step_ms, wake, batch, ask, version } = service;
        let (program, dir) = (program.display(), dir.display());
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
    engine:
      type: OpenAI
      image: process
      args: [\"{program}\", --host, \"{{host}}\", --port, \"{{port}}\", --model, {name},
        --mean-tokens, \"0\", --step-ms, \"{step_ms}\", --weight-version, \"{version}\"]
      env: {{{MARK}: \"{dir}\"}}
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
