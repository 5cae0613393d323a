//! The whole experiment: the workload under each policy, then tables and timeline.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use rollwright_crds::Manifest;
use rollwright_quickstart::workload::Trajectory;
use rollwright_quickstart::{script, workload};

use crate::agent::{self, Played, Task};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::record::Run;
use crate::service::{Place, Service, left_over};
use crate::{replay, report, trace};

/// Runs rollouts over real packages, with CPU per action and with cores for life.
#[derive(Debug, Parser)]
#[command(name = "rollwright-quickstart", version)]
pub(crate) struct Options {
    /// Python with the packages of WORKLOAD/agent/requirements.txt: what agent/venv.sh prints.
    #[arg(long)]
    python: PathBuf,
    /// A vLLM server to generate with; default: engine-sim, which replays recorded
    /// trajectories.
    #[arg(long, value_name = "URL")]
    engine_url: Option<String>,
    /// Directory with trajectories.jsonl, edits/, manifests/ and agent/.
    #[arg(long, default_value = "examples/quickstart")]
    workload: PathBuf,
    /// The Rollwright client for Python.
    #[arg(long, default_value = "clients/python/src")]
    client: PathBuf,
    /// Directory of the binaries rollwright and engine-sim; default: the one of this binary.
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// The static helper of sandboxes; default: rollwright-init beside this binary.
    #[arg(long, env = "ROLLWRIGHT_INIT")]
    init: Option<PathBuf>,
    /// Directory for the timeline, the records and the logs.
    #[arg(long, default_value = "target/quickstart")]
    out: PathBuf,
    /// Policies to run, in order: directories of WORKLOAD/manifests. A real model is run
    /// under the first only: it never does the same twice.
    #[arg(long, value_delimiter = ',', default_value = "action-level,static")]
    policies: Vec<String>,
    /// Groups (packages) to run, of the 6 recorded.
    #[arg(long, default_value_t = 4)]
    groups: usize,
    /// Factor on the recorded think times.
    #[arg(long, default_value_t = 0.3)]
    think_scale: f64,
}

/// Runs everything; an error where a policy could not be run, left something behind, or gave
/// other rewards, or was told to end. Nothing that was started is left then.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::new()?;
    ensure!(
        options.think_scale.is_finite() && options.think_scale >= 0.0,
        "--think-scale is {}; it must be zero or more",
        options.think_scale
    );
    let trajectories = workload::load(&options.workload, options.groups)?;
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("{} cannot be made", options.out.display()))?;
    let real = options.engine_url.as_deref();
    println!("{}", report::introduction(&trajectories, real, options.think_scale));

    let policies =
        if real.is_some() { options.policies.get(..1) } else { Some(&*options.policies) };
    let mut runs = Vec::new();
    for policy in policies.unwrap_or_default() {
        runs.push(run_policy(&options, policy, &trajectories, &mut interrupt).await?);
    }

    println!("{}", report::tables(&runs));
    let timeline = options.out.join("timeline.json");
    std::fs::write(&timeline, serde_json::to_vec(&trace::events(&runs))?)?;
    let records = options.out.join("records.json");
    std::fs::write(&records, serde_json::to_vec_pretty(&runs)?)?;
    println!("timeline  {}   (open it at https://ui.perfetto.dev)", full(&timeline).display());
    println!("records   {}", full(&records).display());
    for run in &runs {
        let dir = options.out.join(format!("replay-{}", run.policy));
        replay::write(run, &dir)?;
        println!("replay    {}   (for kubectl-rollwright simulate actions)", full(&dir).display());
    }
    if let Some(missing) = report::missing(&runs, trajectories.len()) {
        bail!("trajectories are without a reward (see above): {missing}");
    }
    let differing = report::differing(&runs);
    ensure!(differing.is_empty(), "the policies gave other rewards: {}", differing.join(", "));
    if runs.len() > 1 {
        println!("rewards   the same under all policies");
    }
    Ok(())
}

fn full(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// One policy from the start of its services to the proof that nothing was left.
async fn run_policy(
    options: &Options,
    policy: &str,
    trajectories: &[Trajectory],
    interrupt: &mut Interrupt,
) -> anyhow::Result<Run> {
    let own = std::env::current_exe()?;
    let beside = own.parent().context("this binary is in no directory")?;
    let binaries = options.binaries.as_deref().unwrap_or(beside);
    let init = options.init.clone().unwrap_or_else(|| beside.join("rollwright-init"));
    ensure!(init.is_file(), "{} is missing; build it with `make build`", init.display());
    let manifests = options.workload.join("manifests").join(policy);
    ensure!(manifests.is_dir(), "{} is not a directory of manifests", manifests.display());
    let scratch = tempfile::Builder::new().prefix("rollwright-").tempdir()?;
    let log = |name: &str| options.out.join(format!("{name}-{policy}.log"));
    let prefix = format!("quickstart-{}-{policy}", std::process::id());

    let (mut engine, mut address) = (None, String::new());
    if let Some(url) = &options.engine_url {
        url.trim_end_matches('/').clone_into(&mut address);
    } else {
        let path = scratch.path().join("script.jsonl");
        std::fs::write(&path, script::lines(&prefix, trajectories))?;
        let step_ms = script::step_ms(options.think_scale);
        let binary = binaries.join("engine-sim");
        let log = log("engine-sim");
        let started = tokio::select! {
            started = Service::engine_sim(&binary, &path, step_ms, &log) => started?,
            error = interrupt.told() => return Err(error),
        };
        (engine, address) = (Some(started.0), started.1);
    }
    let place = Place {
        binary: &binaries.join("rollwright"),
        init: &full(&init),
        manifests: &manifests,
        scratch: scratch.path(),
        log: &log("standalone"),
        engine: &address,
        key: &key()?,
    };
    let (mut standalone, gateway) = Service::standalone(&place)?;
    let mut packages: Vec<&str> = trajectories.iter().map(|t| t.group.as_str()).collect();
    packages.dedup();
    let edits = options.engine_url.is_some().then(|| options.workload.join("edits"));
    let task = Task {
        python: &options.python,
        agent: &options.workload.join("agent"),
        client: &options.client,
        gateway: &gateway,
        key: place.key,
        queue: &place.queue(),
        engine: &address,
        prefix: &prefix,
        edits: edits.as_deref(),
        packages: &packages,
        log: &log("agent"),
    };
    let progress = Progress::new(policy, trajectories.len());
    let played = tokio::select! {
        played = agent::play(&task, &progress) => played,
        error = standalone.ended() => Err(error),
        error = interrupt.told() => Err(error),
    };
    let mut stopped = standalone.stop().await;
    if let Some(engine) = &mut engine {
        stopped = stopped.and(engine.stop().await);
    }
    let left = left_over(&prefix).await?;
    if !left.is_empty() {
        eprintln!("sandboxes are left, `make clean-sandboxes` removes them: {}", left.join(", "));
    }
    let Played { cores, granted_cores, trajectories, batches } = played?;
    stopped?;
    ensure!(left.is_empty(), "standalone left {} sandboxes", left.len());
    let (policy, units) = (policy.to_owned(), units(&manifests)?);
    Ok(Run { policy, cores, units, granted_cores, trajectories, batches })
}

/// The units that each profile of the manifests' queue allows.
fn units(manifests: &Path) -> anyhow::Result<BTreeMap<String, Vec<f64>>> {
    let queues = rollwright_crds::parse::directory(manifests)?.into_iter();
    let queues = queues.filter_map(|manifest| match manifest {
        Manifest::ActionQueue(queue) => Some(queue),
        _ => None,
    });
    let profiles = queues.flat_map(|queue| queue.spec.profiles);
    Ok(profiles.map(|profile| (profile.name.to_string(), profile.cpu_units)).collect())
}

/// A key for the gateway that nobody can guess.
fn key() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
