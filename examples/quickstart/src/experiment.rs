//! The whole experiment: the workload under each policy, then tables and timeline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::progress::{self, Live};
use crate::record::Run;
use crate::rollout::{Scene, play};
use crate::service::{Service, left_over};
use crate::workload::Trajectory;
use crate::{report, trace, workload};

/// Runs real trajectories over real packages, with CPU per action and with cores for life.
#[derive(Debug, Parser)]
#[command(name = "rollwright-quickstart", version)]
pub(crate) struct Options {
    /// Directory with trajectories.jsonl, edits/ and manifests/.
    #[arg(long, default_value = "examples/quickstart")]
    workload: PathBuf,
    /// The rollwright binary; default: the one beside this binary.
    #[arg(long)]
    rollwright: Option<PathBuf>,
    /// The static helper of sandboxes; default: rollwright-init beside this binary.
    #[arg(long, env = "ROLLWRIGHT_INIT")]
    init: Option<PathBuf>,
    /// Directory for the timeline, the records and the logs.
    #[arg(long, default_value = "target/quickstart")]
    out: PathBuf,
    /// Policies to run, in order: directories of WORKLOAD/manifests.
    #[arg(long, value_delimiter = ',', default_value = "action-level,static")]
    policies: Vec<String>,
    /// Groups (packages) to run, of the 6 recorded.
    #[arg(long, default_value_t = 4)]
    groups: usize,
    /// Factor on the recorded think times.
    #[arg(long, default_value_t = 0.3)]
    think_scale: f64,
}

/// Runs everything; an error where a policy could not be run or left something behind.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    ensure!(
        options.think_scale.is_finite() && options.think_scale >= 0.0,
        "--think-scale is {}; it must be zero or more",
        options.think_scale
    );
    let trajectories = workload::load(&options.workload, options.groups)?;
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("{} cannot be made", options.out.display()))?;
    println!("{}", report::introduction(&trajectories, options.think_scale));

    let mut runs = Vec::new();
    for policy in &options.policies {
        runs.push(run_policy(&options, policy, &trajectories).await?);
    }

    println!("{}", report::tables(&runs));
    let timeline = options.out.join("timeline.json");
    std::fs::write(&timeline, serde_json::to_vec(&trace::events(&runs))?)?;
    let records = options.out.join("records.json");
    std::fs::write(&records, serde_json::to_vec_pretty(&runs)?)?;
    println!("timeline  {}   (open it at https://ui.perfetto.dev)", full(&timeline).display());
    println!("records   {}", full(&records).display());
    let unscored = report::unscored(&runs);
    ensure!(unscored == 0, "{unscored} trajectories ended without a reward (see above)");
    Ok(())
}

fn full(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// One policy from the start of standalone to the proof that nothing was left.
async fn run_policy(
    options: &Options,
    policy: &str,
    trajectories: &[Trajectory],
) -> anyhow::Result<Run> {
    let beside = std::env::current_exe()?;
    let beside = |name: &str| beside.with_file_name(name);
    let binary = options.rollwright.clone().unwrap_or_else(|| beside("rollwright"));
    let init = options.init.clone().unwrap_or_else(|| beside("rollwright-init"));
    ensure!(init.is_file(), "{} is missing; build it with `make build`", init.display());
    let manifests = options.workload.join("manifests").join(policy);
    ensure!(manifests.is_dir(), "{} is not a directory of manifests", manifests.display());
    let scratch = tempfile::Builder::new().prefix("rollwright-").tempdir()?;
    let log = options.out.join(format!("standalone-{policy}.log"));
    let prefix = format!("quickstart-{}-{policy}", std::process::id());

    let (mut service, client) =
        Service::start(&binary, &full(&init), &manifests, scratch.path(), &log).await?;
    let result = tokio::select! {
        run = play_all(&client, options, policy, &prefix, trajectories) => run,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let stopped = service.stop().await;
    let run = result?;
    stopped?;
    let left = left_over(&prefix).await?;
    if !left.is_empty() {
        bail!("standalone left {} sandboxes: {}", left.len(), left.join(", "));
    }
    Ok(run)
}

async fn play_all(
    client: &Client,
    options: &Options,
    policy: &str,
    prefix: &str,
    trajectories: &[Trajectory],
) -> anyhow::Result<Run> {
    let cores = client.stats().await?.nodes.iter().map(|node| node.cores).sum();
    let total = trajectories.len();
    let begin = Instant::now();
    let live = Arc::new(Live::default());
    let scene = Arc::new(Scene {
        client: client.clone(),
        live: Arc::clone(&live),
        begin,
        think_scale: options.think_scale,
        prefix: prefix.to_owned(),
    });
    let mut background = JoinSet::new();
    background.spawn(progress::show(Arc::clone(&live), policy.to_owned(), total, cores));
    let mut playing = JoinSet::new();
    for trajectory in trajectories {
        playing.spawn(play(Arc::clone(&scene), trajectory.clone()));
    }
    let mut records = playing.join_all().await;
    let makespan = begin.elapsed();
    background.shutdown().await;
    progress::finish(&live, policy, total, cores, makespan);
    records.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Run {
        policy: policy.to_owned(),
        held_for_life: policy == "static",
        cores,
        makespan_s: makespan.as_secs_f64(),
        trajectories: records,
    })
}
