//! The words before the run and the tables after it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::record::{ActionRecord, Run};
use crate::reward::Verdict;
use crate::workload::Trajectory;

/// What is about to happen, and what in it is a stand-in.
pub(crate) fn introduction(trajectories: &[Trajectory], think_scale: f64) -> String {
    let mut groups: Vec<&str> = trajectories.iter().map(|t| t.group.as_str()).collect();
    groups.dedup();
    let steps: usize = trajectories.iter().map(|t| t.steps.len()).sum();
    let thinks: f64 = trajectories.iter().flat_map(|t| &t.steps).map(|step| step.think_s).sum();
    format!(
        "{} trajectories in {} groups ({}), {steps} actions and {} rewards.\n\
         Real: packages, edits, commands, containers, test suites and rewards.\n\
         Stand-in: no model runs. Recorded think times (mean {:.1} s, drawn from the published\n\
         gaps of real agent runs: p50 3.2 s, p90 11.9 s), times {think_scale}, take the place of generation.\n",
        trajectories.len(),
        groups.len(),
        groups.join(", "),
        trajectories.len(),
        thinks / steps.max(1) as f64,
    )
}

/// Trajectories without a reward, over all runs.
pub(crate) fn unscored(runs: &[Run]) -> usize {
    runs.iter()
        .flat_map(|run| &run.trajectories)
        .filter(|trajectory| matches!(trajectory.verdict, Verdict::Unscored { .. }))
        .count()
}

/// The comparison and the rewards.
pub(crate) fn tables(runs: &[Run]) -> String {
    let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut row = |name, value: &dyn Fn(&Run) -> f64| {
        rows.push((name, runs.iter().map(value).collect()));
    };
    let actions = |run: &Run, part: fn(&ActionRecord) -> f64| Sample::new(run.actions().map(part));
    row("makespan, s", &|run| run.makespan_s);
    row("trajectory, mean s", &|run| {
        Sample::new(run.trajectories.iter().map(|t| t.end_s - t.begin_s)).mean()
    });
    row("wait for a sandbox, mean s", &|run| {
        Sample::new(run.sandboxes().map(|s| s.queue_s)).mean()
    });
    row("make a sandbox ready, mean s", &|run| {
        Sample::new(run.sandboxes().map(|s| s.ready_s - s.requested_s - s.queue_s)).mean()
    });
    row("waiting per trajectory, mean s", &|run| {
        run.actions().map(ActionRecord::queueing_s).sum::<f64>()
            / run.trajectories.len().max(1) as f64
    });
    row("ACT, mean s", &|run| actions(run, ActionRecord::act_s).mean());
    row("ACT, p50 s", &|run| actions(run, ActionRecord::act_s).quantile(0.5));
    row("ACT, p99 s", &|run| actions(run, ActionRecord::act_s).quantile(0.99));
    row("  queueing, mean s", &|run| actions(run, ActionRecord::queueing_s).mean());
    row("  execution, mean s", &|run| actions(run, |a| a.exec_s).mean());
    row("  our overhead, mean ms", &|run| actions(run, ActionRecord::overhead_s).mean() * 1e3);
    row("  our overhead, p99 ms", &|run| {
        actions(run, ActionRecord::overhead_s).quantile(0.99) * 1e3
    });
    row("cores used, mean", &Run::cores_used);
    row("cores held, mean", &Run::cores_held);
    row("rewards of 1", &|run| {
        count(run, |v| matches!(v, Verdict::Scored { reward, .. } if *reward > 0.0))
    });
    row("rewards of 0", &|run| {
        count(run, |v| matches!(v, Verdict::Scored { reward, .. } if *reward == 0.0))
    });
    row("no reward (fault)", &|run| count(run, |v| matches!(v, Verdict::Unscored { .. })));

    let mut text = format!("\n{:<32}", "");
    for run in runs {
        let _ = write!(text, "{:>16}", run.policy);
    }
    if runs.len() == 2 {
        text.push_str("     ratio");
    }
    text.push('\n');
    for (name, values) in rows {
        let _ = write!(text, "{name:<32}");
        for value in &values {
            let _ = write!(text, "{:>16}", number(*value, name));
        }
        if let [first, second] = values[..]
            && !name.contains("reward")
            && first > 0.0
        {
            let _ = write!(text, "{:>9.2}x", second / first);
        }
        text.push('\n');
    }
    text.push_str(&rewards(runs));
    text
}

fn number(value: f64, name: &str) -> String {
    if name.contains("reward") { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn count(run: &Run, wanted: fn(&Verdict) -> bool) -> f64 {
    run.trajectories.iter().filter(|t| wanted(&t.verdict)).count() as f64
}

/// Rewards by group, and the reason for each that is missing.
fn rewards(runs: &[Run]) -> String {
    let mut text = String::from("\nrewards by group (tests passed / tests of the suite)\n");
    let mut missing = String::new();
    for run in runs {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for trajectory in &run.trajectories {
            let cell = match &trajectory.verdict {
                Verdict::Scored { reward, passed, expected } => {
                    format!("{reward:.0} ({passed}/{expected})")
                }
                Verdict::Unscored { reason } => {
                    let _ = writeln!(missing, "no reward: {}: {reason}", trajectory.id);
                    "none".to_owned()
                }
            };
            groups.entry(&trajectory.group).or_default().push(cell);
        }
        for (group, cells) in groups {
            let _ = writeln!(text, "  {:<13} {group:<15} {}", run.policy, cells.join("  "));
        }
    }
    text + &missing
}

/// Values in ascending order.
struct Sample(Vec<f64>);

impl Sample {
    fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The smallest value that at least a part `q` of all values do not exceed.
    fn quantile(&self, q: f64) -> f64 {
        let rank = (q * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::{SandboxRecord, Span, TrajectoryRecord};

    /// Two trajectories: a second of thought, a share for 1 s, one core for 2 s.
    pub(crate) fn run(policy: &str, held_for_life: bool) -> Run {
        let action = |name: &str, at: f64, exec: f64, units: f64, cores: Vec<u32>| ActionRecord {
            name: name.to_owned(),
            profile: "x".to_owned(),
            submitted_s: at,
            ended_s: at + 0.5 + exec + 0.001,
            queue_s: 0.5,
            sandbox_queue_s: 0.0,
            exec_s: exec,
            cpu_s: exec * 0.5,
            units,
            cores,
            exit_code: Some(0),
        };
        let trajectory = |number: u32, verdict| TrajectoryRecord {
            id: format!("t/{number}"),
            group: "t".to_owned(),
            begin_s: 0.0,
            end_s: 8.0,
            thinks: vec![Span { begin_s: 1.0, end_s: 2.0 }],
            sandboxes: vec![SandboxRecord {
                template: "python".to_owned(),
                requested_s: 0.0,
                ready_s: 1.0,
                closed_s: 8.0,
                queue_s: 0.75,
            }],
            actions: vec![
                action("look", 2.0, 1.0, 0.25, vec![0, 1]),
                action("test", 4.0, 2.0, 1.0, vec![number]),
            ],
            verdict,
        };
        let scored = Verdict::Scored { reward: 1.0, passed: 9, expected: 9 };
        let unscored = Verdict::Unscored { reason: "NodeLost: gone".to_owned() };
        Run {
            policy: policy.to_owned(),
            held_for_life,
            cores: 2,
            makespan_s: 10.0,
            trajectories: vec![trajectory(0, scored), trajectory(1, unscored)],
        }
    }

    #[test]
    fn cores_used_and_held_are_means_over_the_makespan() {
        assert!((run("a", false).cores_used() - 0.3).abs() < 1e-9);
        assert!((run("a", false).cores_held() - 0.45).abs() < 1e-9, "2 x (0.25 + 2) / 10");
        assert!((run("s", true).cores_held() - 1.4).abs() < 1e-9, "2 x 7 / 10");
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let sample = Sample::new((1..=100).map(f64::from));
        assert!((sample.quantile(0.5) - 50.0).abs() < 1e-9);
        assert!((sample.quantile(0.99) - 99.0).abs() < 1e-9);
        assert!(Sample::new(std::iter::empty()).quantile(0.5).abs() < 1e-9);
    }

    #[test]
    fn the_table_puts_the_policies_side_by_side_and_names_what_is_missing() {
        let text = tables(&[run("action-level", false), run("static", true)]);
        let held = text.lines().find(|line| line.starts_with("cores held")).unwrap();
        assert_eq!(held.split_whitespace().skip(3).collect::<Vec<_>>(), ["0.45", "1.40", "3.11x"]);
        assert!(text.contains("no reward: t/1: NodeLost: gone"));
        assert_eq!(unscored(&[run("static", true)]), 1);
    }
}
