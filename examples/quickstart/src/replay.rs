//! A run as the simulator's input: `kubectl-rollwright simulate actions` plays it again.
//!
//! Recorded are what no scheduler decides: when each trajectory came, what passed between its
//! actions (generation, and the wait for a sandbox), and how long each action had what it was
//! granted. Waiting is left out: that is what the simulation is to find.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::record::{ActionRecord, Run, TrajectoryRecord};

/// The serial fraction where no command ran on different units: what the queue assumes too.
const ASSUMED_SERIAL: f64 = 0.25;
/// Nothing is quicker: the format wants durations above what rounds to nothing.
const LEAST_S: f64 = 1e-6;

/// Writes `cluster.json` and `workload.jsonl` of a run into a directory.
pub(crate) fn write(run: &Run, dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    std::fs::write(dir.join("cluster.json"), cluster(run).to_string())?;
    std::fs::write(dir.join("workload.jsonl"), workload(run))?;
    Ok(())
}

/// The machine. Memory is not scarce: a trajectory waits for its place before it comes.
fn cluster(run: &Run) -> Value {
    json!({"pools": [
        {"name": "cpu", "kind": "cpu", "nodes": 1, "cores": run.cores, "memory_gib": 1},
    ]})
}

fn workload(run: &Run) -> String {
    let serial = serial(run);
    let first = run.trajectories.iter().map(|t| t.begin_s).fold(f64::INFINITY, f64::min);
    let mut lines = String::new();
    for trajectory in &run.trajectories {
        let line = json!({
            "trajectory": trajectory.id,
            "arrival_s": trajectory.begin_s - first,
            "phases": phases(run, trajectory, serial),
        });
        let _ = writeln!(lines, "{line}");
    }
    lines
}

fn phases(run: &Run, of: &TrajectoryRecord, serial: f64) -> Vec<Value> {
    let mut phases = Vec::new();
    let mut before = of.begin_s;
    for action in &of.actions {
        phases.push(json!({"generate_s": (action.submitted_s - before).max(0.0)}));
        before = action.ended_s;
        let units = run.units.get(&action.profile).cloned().unwrap_or(vec![action.units]);
        // A share takes its time at one unit.
        let slower = serial + (1.0 - serial) / action.units.max(1.0);
        phases.push(json!({"action": {
            "pool": "cpu",
            "kind": action.profile,
            "units": units,
            "duration_s": (held_s(action) / slower).max(LEAST_S),
            "serial": serial,
        }}));
    }
    let rest = (of.end_s - before).max(0.0);
    phases.push(json!({"generate_s": rest}));
    phases
}

/// From the grant to the result: the program, and our overhead.
fn held_s(action: &ActionRecord) -> f64 {
    (action.act_s() - action.queueing_s()).max(0.0)
}

/// The part that more cores do not shorten: by the commands that ran on different units in
/// this very run, each against itself on the fewest that it had.
fn serial(run: &Run) -> f64 {
    let mut commands: BTreeMap<&str, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for action in run.actions().filter(|action| action.units >= 1.0) {
        let units = action.units.round() as u64;
        let of = commands.entry(&action.command).or_default();
        of.entry(units).or_default().push(action.exec_s);
    }
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let mut found = Vec::new();
    for by_units in commands.values() {
        let Some((few, slow)) = by_units.first_key_value() else { continue };
        for (many, fast) in by_units.iter().skip(1) {
            let ratio = mean(fast) / mean(slow).max(LEAST_S);
            // ratio = (s + (1 - s) / many) / (s + (1 - s) / few), solved for s.
            let (few, many) = (1.0 / *few as f64, 1.0 / *many as f64);
            let serial = (ratio * few - many) / ((1.0 - many) - ratio * (1.0 - few));
            if serial.is_finite() {
                found.push(serial.clamp(0.0, 1.0));
            }
        }
    }
    if found.is_empty() { ASSUMED_SERIAL } else { mean(&found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn waiting_is_left_out_and_gaps_are_kept() {
        let run = run("action-level");
        let text = workload(&run);
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), run.trajectories.len());
        for (line, trajectory) in lines.iter().zip(&run.trajectories) {
            let phases = line["phases"].as_array().unwrap();
            assert_eq!(phases.len(), 2 * trajectory.actions.len() + 1);
            let seconds: f64 = phases
                .iter()
                .map(|phase| phase["generate_s"].as_f64())
                .map(|gap| gap.unwrap_or(0.0))
                .sum();
            let acted: f64 = trajectory.actions.iter().map(|a| a.ended_s - a.submitted_s).sum();
            let lived = trajectory.end_s - trajectory.begin_s;
            assert!((seconds + acted - lived).abs() < 1e-9, "{seconds} + {acted}, not {lived}");
            for (phase, action) in phases.iter().skip(1).step_by(2).zip(&trajectory.actions) {
                let held = action.ended_s - action.submitted_s - action.queue_s;
                let found = phase["action"]["duration_s"].as_f64().unwrap();
                assert!(found >= held - 1e-9 && found < held * 2.0 + 1e-9, "{found}");
            }
        }
    }

    #[test]
    fn how_commands_scale_is_taken_from_those_that_ran_on_different_units() {
        let mut run = run("action-level");
        let mut actions = run.trajectories.iter_mut().flat_map(|t| &mut t.actions);
        let (first, second) = (actions.next().unwrap(), actions.next().unwrap());
        // Half of four seconds scales.
        for (action, units, exec_s) in [(first, 1.0, 4.0), (second, 2.0, 3.0)] {
            (action.units, action.exec_s) = (units, exec_s);
            action.command = "pytest -n $ROLLWRIGHT_CPUS".to_owned();
        }
        run.trajectories.iter_mut().for_each(|t| t.actions.retain(|a| !a.command.is_empty()));
        assert!((serial(&run) - 0.5).abs() < 1e-9, "{}", serial(&run));
        run.trajectories.iter_mut().for_each(|t| t.actions.clear());
        assert!((serial(&run) - ASSUMED_SERIAL).abs() < 1e-9);
    }
}
