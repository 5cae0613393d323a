//! The simulator against reality: the quickstart's own run, and what the simulator makes of
//! its trace.

use std::path::Path;

use anyhow::{Context as _, ensure};
use rollwright_e2e::program::program;
use serde_json::Value;
use tokio::process::Command;

use crate::table::Row;

/// Policy of the run, and of the simulation.
const RUN: &str = "action-level";
const SIMULATED: &str = "elastic";
/// How far the simulated mean may be from the real one.
const WITHIN: f64 = 0.1;

/// Runs the quickstart, then the simulator on what it recorded.
pub(crate) async fn measure(python: Option<&Path>) -> anyhow::Result<Vec<Row>> {
    let Some(python) = python else {
        eprintln!("replay: left out, it needs --python \"$(examples/quickstart/agent/venv.sh)\"");
        return Ok(Vec::new());
    };
    eprintln!("replay: the quickstart's rollouts ...");
    let out = tempfile::Builder::new().prefix("rwb-").tempdir_in("/tmp")?;
    let mut quickstart = Command::new(program("rollwright-quickstart")?);
    quickstart.arg("--python").arg(python).args(["--policies", RUN]).arg("--out").arg(out.path());
    let ran = quickstart.kill_on_drop(true).output().await.context("the quickstart")?;
    ensure!(ran.status.success(), "the quickstart: {}", String::from_utf8_lossy(&ran.stderr));
    let records: Value = serde_json::from_slice(&std::fs::read(out.path().join("records.json"))?)?;
    let real = Real::of(&records).context("the quickstart recorded no action")?;

    let trace = out.path().join(format!("replay-{RUN}"));
    let (act, queue) = simulated(&trace, SIMULATED, None).await?;
    let ratio = act / real.act;
    let mut rows = vec![Row {
        figure: format!("simulated mean ACT of the quickstart's {} actions", real.actions),
        ours: format!("{act:.2} s (queue {queue:.2} s)"),
        baseline: format!(
            "{:.2} s really (queue {:.2} s, our overhead {:.0} ms)",
            real.act,
            real.queue,
            real.overhead * 1e3
        ),
        ratio: format!("{ratio:.3}"),
        target: format!("{:.2} to {:.2}", 1.0 - WITHIN, 1.0 + WITHIN),
        reached: (ratio - 1.0).abs() <= WITHIN,
    }];
    let (unbounded, _) = simulated(&trace, "elastic-unbounded", None).await?;
    rows.push(look_ahead("the same workload, look-ahead of `elastic`", act, unbounded));
    let (unbounded, _) = simulated(&trace, "tangram", None).await?;
    for depth in [1, 2] {
        let (act, _) = simulated(&trace, "tangram", Some(depth)).await?;
        let figure = format!("the same workload, `tangram` of depth {depth}");
        rows.push(look_ahead(&figure, act, unbounded));
    }
    Ok(rows)
}

/// Mean ACT with a bounded look-ahead, against the same policy without bounds.
fn look_ahead(figure: &str, act: f64, unbounded: f64) -> Row {
    let ratio = act / unbounded;
    Row {
        figure: figure.to_owned(),
        ours: format!("{act:.2} s"),
        baseline: format!("{unbounded:.2} s without bounds"),
        ratio: format!("{ratio:.3}"),
        target: "<= 1.02".to_owned(),
        reached: ratio <= 1.02,
    }
}

/// Mean ACT and queueing in seconds of a recorded run under a policy of the simulator.
async fn simulated(trace: &Path, policy: &str, depth: Option<u64>) -> anyhow::Result<(f64, f64)> {
    let cluster = trace.join("cluster.json");
    let mut shape: Value = serde_json::from_slice(&std::fs::read(&cluster)?)?;
    if let Some(depth) = depth {
        shape["depth"] = depth.into();
    }
    let shaped = trace.join("shaped.json");
    std::fs::write(&shaped, shape.to_string())?;
    let mut simulate = Command::new(program("kubectl-rollwright")?);
    simulate.args(["simulate", "actions", "--policy", policy, "--seed", "1", "--json"]);
    simulate.arg("--cluster").arg(shaped).arg("--workload").arg(trace.join("workload.jsonl"));
    let simulated = simulate.output().await.context("kubectl-rollwright")?;
    ensure!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
    let simulated: Value = serde_json::from_slice(&simulated.stdout)?;
    let mean = |of: &str| simulated[of]["mean"].as_f64().context("no mean");
    Ok((mean("act_s")?, mean("queue_s")?))
}

/// Means over the actions of a run, in seconds.
struct Real {
    actions: usize,
    act: f64,
    queue: f64,
    overhead: f64,
}

impl Real {
    fn of(records: &Value) -> Option<Self> {
        let trajectories = records[0]["trajectories"].as_array()?;
        let actions: Vec<&Value> =
            trajectories.iter().filter_map(|t| t["actions"].as_array()).flatten().collect();
        let mean = |part: &dyn Fn(&Value) -> Option<f64>| {
            let sum: Option<f64> = actions.iter().map(|action| part(action)).sum();
            sum.map(|sum| sum / actions.len() as f64)
        };
        let queue = |a: &Value| Some(a["queue_s"].as_f64()? + a["sandbox_queue_s"].as_f64()?);
        let act = |a: &Value| {
            let answered = a["ended_s"].as_f64()? - a["submitted_s"].as_f64()?;
            Some(answered + a["sandbox_queue_s"].as_f64()?)
        };
        let overhead = |a: &Value| Some(act(a)? - queue(a)? - a["exec_s"].as_f64()?);
        let (act, queue, overhead) = (mean(&act)?, mean(&queue)?, mean(&overhead)?);
        (!actions.is_empty()).then_some(Self { actions: actions.len(), act, queue, overhead })
    }
}
