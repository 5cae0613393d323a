//! Models, a station for one run, and reward servers on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use futures::StreamExt as _;
use rollwright_agent::docker::labels::Owner;
use rollwright_agent::gpu::fake::FakeConfig;
use rollwright_agent::gpu::spec::{EngineKind, Needs, Probe};
use rollwright_agent::gpu::{
    Backend as _, Device, EngineSpec, Gpus, Ground, Inventory, Station, open,
};
use rollwright_agent::policy::EnginePolicy;
use rollwright_core::gpu::{Chunk, Degree, EngineId};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::settings::{Args, Keeps};
use crate::timed::Timed;

/// Servers that start at the same time.
const AT_ONCE: usize = 4;
/// Bytes of a block of the real arena, to which weights are rounded up.
const BLOCK: u64 = 256 << 20;
/// The first number of an engine: far from those that a pool gives.
pub(crate) const FIRST: u64 = 1_000_000;

/// Files of weights of each service.
pub(crate) struct Models {
    pub(crate) services: Vec<PathBuf>,
}

/// Random weights for each service.
pub(crate) async fn make_models(args: &Args, scratch: &Path) -> anyhow::Result<Models> {
    let services: Vec<_> = (0..args.services).map(|n| scratch.join(format!("model-{n}"))).collect();
    let made = futures::stream::iter(services.iter().enumerate())
        .map(|(seed, dir)| make_model(args, dir, args.file(), seed))
        .buffer_unordered(AT_ONCE);
    let made: Vec<anyhow::Result<()>> = made.collect().await;
    made.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(Models { services })
}

/// Random weights in a directory.
pub(crate) async fn make_model(
    args: &Args,
    dir: &Path,
    bytes: u64,
    seed: usize,
) -> anyhow::Result<()> {
    let mut command = Command::new(&args.python);
    command.arg(args.reward_server.join("make_model.py")).arg(dir);
    command.args(["--bytes", &bytes.to_string(), "--seed", &seed.to_string()]);
    let output = command.output().await.context("cannot run the model maker")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "no model in {}: {errors}", dir.display());
    Ok(())
}

/// A node with one GPU.
pub(crate) struct Bench {
    pub(crate) backend: Arc<Timed>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) inventory: Inventory,
    _care: JoinSet<()>,
}

impl Bench {
    /// Its state is in a directory of its own.
    pub(crate) fn open(
        args: &Args,
        dir: &Path,
        keeps: Keeps,
        weights: u64,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let bandwidth =
            if keeps == Keeps::Nothing { args.fake_page_cache } else { args.fake_bandwidth };
        let fake = FakeConfig {
            gpus: 1,
            memory: weights,
            host: u64::MAX / 2,
            bandwidth,
            load: args.fake_page_cache,
            orders: None,
        };
        let arena = if keeps == Keeps::Pinned { weights } else { 0 };
        let gpus =
            if args.fake { Gpus::Fake(fake) } else { Gpus::Driver { arena, most: u32::MAX } };
        let (programs, models) = (vec!["*".into()], vec!["*".into()]);
        let ground = Ground {
            gpus,
            host: u64::MAX / 2,
            state_dir: dir.to_owned(),
            policy: EnginePolicy { programs, models, ..EnginePolicy::default() },
            docker: None,
            docker_config: None,
            // None: a bench bounds nobody's memory.
            cgroup_root: dir.join("cgroups"),
            owner: Owner { node: "bench".into(), id: format!("bench-{}", std::process::id()) },
        };
        let station = open(ground)?.context("this node has no GPU: use --fake")?;
        let Station { backend, device, inventory, care, .. } = station;
        Ok(Self { backend: Timed::new(backend), device, inventory, _care: care })
    }

    /// Starts a service; it is awake.
    pub(crate) async fn launch(&self, args: &Args, plan: &Plan<'_>) -> anyhow::Result<EngineId> {
        let engine = EngineId(FIRST + plan.service as u64);
        let launched = self.backend.launch(engine, Arc::new(plan.spec(args)), chunk()?).await;
        launched.map_err(|trouble| anyhow!("service {}: {trouble}", plan.service))?;
        Ok(engine)
    }

    /// Bytes that an engine has on the GPU.
    pub(crate) async fn held(&self, engine: EngineId) -> anyhow::Result<u64> {
        let at = self.backend.occupant(engine).await.map_err(|trouble| anyhow!("{trouble}"))?;
        self.device.held(engine, at.as_ref()).await.map_err(|trouble| anyhow!("{trouble}"))
    }

    /// Does for each service what `work` says, at most `fit` at a time; in the order of
    /// services.
    pub(crate) async fn each<T>(
        &self,
        services: usize,
        fit: usize,
        work: impl AsyncFn(usize) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let all = futures::stream::iter(0..services).map(|service| work(service));
        let all = all.buffered(fit.clamp(1, AT_ONCE));
        let all: Vec<anyhow::Result<T>> = all.collect().await;
        all.into_iter().collect()
    }

    /// Ends all engines.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        for found in self.backend.found().await {
            let stopped = self.backend.stop(found.engine).await;
            stopped.map_err(|trouble| anyhow!("an engine does not end: {trouble}"))?;
        }
        Ok(())
    }
}

/// One service of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) service: usize,
    pub(crate) model: &'a Path,
    pub(crate) keeps: Keeps,
    /// Bytes that its weights are, or stand for.
    pub(crate) bytes: u64,
}

impl Plan<'_> {
    fn spec(&self, args: &Args) -> EngineSpec {
        let program = args.reward_server.join("serve.py");
        let mut line = vec![args.python.clone(), program.display().to_string(), "{model}".into()];
        let more = ["--port", "{port}", "--name", "{name}", "--device", args.device()];
        line.extend(more.map(str::to_owned));
        line.extend((self.keeps == Keeps::Nothing).then(|| "--keep-nothing".to_owned()));
        EngineSpec {
            service: format!("service-{}", self.service),
            engine: EngineKind::Other,
            image: None,
            args: line,
            env: BTreeMap::new(),
            model: self.model.display().to_string(),
            served_name: format!("service-{}", self.service),
            degree: 1,
            evict: self.keeps.evict(),
            probe: Some(Probe { path: "/reward".into(), body: serde_json::json!({"input": "1"}) }),
            footprint: Needs {
                device: self.bytes,
                residue: 0,
                host: u64::from(self.keeps != Keeps::Nothing),
            },
        }
    }
}

/// The one GPU.
pub(crate) fn chunk() -> anyhow::Result<Chunk> {
    Chunk::new(0, 0, Degree::new(1)?).context("GPU 0 is a chunk")
}

/// Bytes of an arena for so many weights.
pub(crate) fn arena(count: usize, bytes: u64) -> u64 {
    count as u64 * bytes.next_multiple_of(BLOCK)
}
