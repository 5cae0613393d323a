//! The timeline as Chrome trace events, which Perfetto opens: a track for each
//! trajectory and for each core, one pair of processes for each policy.

use serde_json::{Value, json};

use crate::record::{ActionRecord, Run, TrajectoryRecord};

/// All events of all runs; each run begins at zero.
pub(crate) fn events(runs: &[Run]) -> Value {
    let mut events = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let (trajectories, cores) = (2 * number + 1, 2 * number + 2);
        events.push(name(
            "process_name",
            trajectories,
            0,
            &format!("{}: trajectories", run.policy),
        ));
        events.push(name("process_name", cores, 0, &format!("{}: cores", run.policy)));
        for core in 0..run.cores as usize {
            events.push(name("thread_name", cores, core, &format!("core {core}")));
        }
        for (track, trajectory) in run.trajectories.iter().enumerate() {
            events.push(name("thread_name", trajectories, track, &trajectory.id));
            push_trajectory(&mut events, trajectories, track, trajectory);
            for action in &trajectory.actions {
                push_cores(&mut events, cores, &trajectory.id, action);
            }
        }
        push_granted(&mut events, cores, run);
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn push_trajectory(events: &mut Vec<Value>, pid: usize, tid: usize, of: &TrajectoryRecord) {
    for think in &of.thinks {
        events.push(slice("generate", "generate", pid, tid, think.begin_s, think.end_s));
    }
    if let Some(sandbox) = &of.sandbox {
        let waited = sandbox.requested_s + sandbox.queue_s;
        if sandbox.queue_s > 0.0 {
            events.push(slice("wait for sandbox", "queue", pid, tid, sandbox.requested_s, waited));
        }
        events.push(slice("reset", "reset", pid, tid, waited, sandbox.ready_s));
    }
    if let Some(scoring) = of.scoring {
        // Until its action: the new sandbox, and the copy of what is scored.
        let actions = of.actions.iter().map(|action| action.submitted_s);
        let until = actions.filter(|at| *at >= scoring.begin_s).fold(scoring.end_s, f64::min);
        events.push(slice("prepare score", "score", pid, tid, scoring.begin_s, until));
    }
    for action in &of.actions {
        let started = action.submitted_s + action.queue_s;
        if action.queue_s > 0.0 {
            events.push(slice("queue", "queue", pid, tid, action.submitted_s, started));
        }
        let mut exec = slice(&action.name, "exec", pid, tid, started, started + action.exec_s);
        exec["args"] = json!({
            "units": action.units,
            "cpu_s": action.cpu_s,
            "overhead_ms": action.overhead_s() * 1e3,
            "exit_code": action.exit_code,
        });
        events.push(exec);
    }
}

/// Exclusive cores only: shares overlap, and are in the counter.
fn push_cores(events: &mut Vec<Value>, pid: usize, id: &str, action: &ActionRecord) {
    if action.units < 1.0 {
        return;
    }
    let started = action.submitted_s + action.queue_s;
    for core in &action.cores {
        let label = format!("{} {id}", action.name);
        let tid = *core as usize;
        events.push(slice(&label, "core", pid, tid, started, started + action.exec_s));
    }
}

/// The sum of granted units over time.
fn push_granted(events: &mut Vec<Value>, pid: usize, run: &Run) {
    let mut changes: Vec<(f64, f64)> = run
        .actions()
        .flat_map(|action| {
            let started = action.submitted_s + action.queue_s;
            [(started, action.units), (started + action.exec_s, -action.units)]
        })
        .collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut units = 0.0;
    for (at, change) in changes {
        units += change;
        let value = f64::max(units, 0.0);
        events.push(json!({
            "ph": "C", "name": "units granted", "pid": pid, "ts": micros(at), "args": {"units": value}
        }));
    }
}

fn name(what: &str, pid: usize, tid: usize, value: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": value } })
}

fn slice(name: &str, category: &str, pid: usize, tid: usize, begin: f64, end: f64) -> Value {
    json!({
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
        "ts": micros(begin), "dur": micros((end - begin).max(0.0)),
    })
}

fn micros(seconds: f64) -> f64 {
    (seconds * 1e6).round()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn slices_of_one_track_do_not_overlap() {
        let trace = events(&[run("action-level"), run("static")]);
        let mut slices: Vec<(u64, u64, f64, f64)> = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| {
                let begin = event["ts"].as_f64().unwrap();
                (
                    event["pid"].as_u64().unwrap(),
                    event["tid"].as_u64().unwrap(),
                    begin,
                    begin + event["dur"].as_f64().unwrap(),
                )
            })
            .collect();
        slices.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert!(slices.len() > 8);
        for pair in slices.windows(2) {
            let same_track = (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
            assert!(!same_track || pair[0].3 <= pair[1].2, "{pair:?}");
        }
    }
}
