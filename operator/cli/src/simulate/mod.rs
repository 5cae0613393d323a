//! `simulate`: how a cluster would serve a workload.

mod cluster;
mod trace;
mod workload;

use std::io::Read;
use std::path::Path;

use rollwright_sim::cluster::Cluster;
use rollwright_sim::workload::Trajectory;
use rollwright_sim::{Distribution, Policy, Report, simulate, without_replica};

use crate::command::Actions;
use crate::failure::Failure;
use crate::input::{self, Fault, InputError};
use crate::progress::Bar;
use crate::report::{Table, json};

/// Runs the simulation, and writes the trace where one is wanted.
pub(crate) fn actions(args: &Actions, stdin: &mut impl Read) -> Result<String, Failure> {
    let policy: Policy = args.policy.parse().map_err(|error: rollwright_sim::UnknownPolicy| {
        Fault::new(error.to_string()).in_file(Path::new("--policy"))
    })?;
    if args.cluster == Path::new("-") && args.workload == Path::new("-") {
        let fault = Fault::new("standard input is the cluster: name a file");
        return Err(fault.in_file(Path::new("--workload")).into());
    }
    let cluster = read_cluster(&args.cluster, stdin)?;
    if policy.reserves()
        && let Some(service) = without_replica(&cluster)
    {
        let what = "no replica fits beside those of the other services: give its pool more GPUs";
        let fault = Fault::new(what).at(service).in_field("services");
        return Err(fault.in_file(&args.cluster).into());
    }
    let (workload, lines) = read_workload(&args.workload, &cluster, stdin)?;
    let actions = workload.iter().map(|trajectory| trajectory.actions().count()).sum();
    let (report, records) =
        simulate(&cluster, &workload, policy, &mut Bar::new(actions)).map_err(|refused| {
            let line = lines[refused.trajectory];
            Fault::new(refused.misfit.to_string()).on_line(&args.workload, line)
        })?;
    if let Some(file) = &args.trace {
        std::fs::write(file, trace::chrome(&cluster, &workload, &records))
            .map_err(|error| Failure::Output { to: format!("{}", file.display()), error })?;
    }
    Ok(if args.json { json(&report) } else { table(&args.policy, &report) })
}

fn read_cluster(file: &Path, stdin: &mut impl Read) -> Result<Cluster, InputError> {
    let bytes = input::read(file, stdin)?;
    let value = input::parse(&bytes).map_err(|fault| fault.in_file(file))?;
    cluster::read(&value).map_err(|fault| fault.in_file(file))
}

/// The trajectories, and the line of each.
fn read_workload(
    file: &Path,
    cluster: &Cluster,
    stdin: &mut impl Read,
) -> Result<(Vec<Trajectory>, Vec<usize>), InputError> {
    let bytes = input::read(file, stdin)?;
    let mut reader = workload::Reader::new(cluster);
    let (mut workload, mut lines) = (Vec::new(), Vec::new());
    for (i, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let trajectory = input::parse(line).and_then(|value| reader.trajectory(&value));
        workload.push(trajectory.map_err(|fault| fault.on_line(file, i + 1))?);
        lines.push(i + 1);
    }
    if workload.is_empty() {
        let fault = Fault::new("the workload is empty: give one trajectory on each line");
        return Err(fault.on_line(file, 1));
    }
    Ok((workload, lines))
}

fn table(policy: &str, report: &Report) -> String {
    let mut times = Table::new(&["seconds", "mean", "p50", "p90", "p99", "max"]);
    for (name, times_of) in
        [("completion", report.act_s), ("queueing", report.queue_s), ("execution", report.exec_s)]
    {
        let Distribution { mean, p50, p90, p99, max } = times_of;
        let [mean, p50, p90, p99, max] = [mean, p50, p90, p99, max].map(|s| format!("{s:.3}"));
        times.row([name.to_owned(), mean, p50, p90, p99, max]);
    }
    let mut pools = Table::new(&["pool", "ran actions", "was held"]);
    for (name, part) in &report.utilization {
        let held = report.reserved.get(name).copied().unwrap_or(0.0);
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        pools.row([name.clone(), percent(*part), percent(held)]);
    }
    format!(
        "{} trajectories with {} actions under {policy} (simulated): {:.3} s\n\n{times}\n{pools}",
        report.trajectories, report.actions, report.makespan_s
    )
}
