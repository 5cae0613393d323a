//! The words before the run and the tables after it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rollwright_quickstart::workload::Trajectory;

use crate::record::{ActionRecord, Run, Span};

/// What is about to happen, and what in it is a stand-in.
pub(crate) fn introduction(
    trajectories: &[Trajectory],
    engine: Option<&str>,
    scale: f64,
) -> String {
    let mut groups: Vec<&str> = trajectories.iter().map(|t| t.group.as_str()).collect();
    groups.dedup();
    let steps: usize = trajectories.iter().map(|t| t.steps.len()).sum();
    let thinks: f64 = trajectories.iter().flat_map(|t| &t.steps).map(|step| step.think_s).sum();
    let head = format!(
        "{} trajectories in {} groups ({}).\n\
         Real: packages, commands, containers, test suites and rewards; gateway, token logs and batches.\n",
        trajectories.len(),
        groups.len(),
        groups.join(", "),
    );
    match engine {
        Some(url) => {
            format!("{head}Generation: the model at {url}, asked to repair planted bugs.\n")
        }
        None => format!(
            "{head}SIMULATED: generation. engine-sim replays recorded replies ({steps} commands); each takes\n\
             about its recorded think time (mean {:.1} s, drawn from the published gaps of real agent\n\
             runs: p50 3.2 s, p90 11.9 s), times {scale}.\n",
            thinks / steps.max(1) as f64,
        ),
    }
}

/// Trajectories short of those that each run needs, and why.
pub(crate) fn missing(runs: &[Run], needed: usize) -> Option<String> {
    let short: Vec<String> = runs
        .iter()
        .filter(|run| run.scored() < needed)
        .map(|run| format!("{} scored {} of {needed}", run.policy, run.scored()))
        .collect();
    (!short.is_empty()).then(|| short.join(", "))
}

/// Trajectories whose rewards differ between the first run and another.
pub(crate) fn differing(runs: &[Run]) -> Vec<String> {
    let rewards = |run: &Run| -> BTreeMap<(String, String), Option<u64>> {
        run.trajectories
            .iter()
            .map(|t| {
                let number = t.id.rsplit('.').next().unwrap_or_default().to_owned();
                ((t.group.clone(), number), t.reward.map(f64::to_bits))
            })
            .collect()
    };
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let expected = rewards(first);
    others
        .iter()
        .flat_map(|run| {
            let found = rewards(run);
            let differs = |key: &&(String, String)| found.get(*key) != expected.get(*key);
            let name = |(group, number): &(String, String)| format!("{group}.{number}");
            expected.keys().filter(differs).map(name).collect::<Vec<_>>()
        })
        .collect()
}

/// The comparison, the batches and the rewards.
pub(crate) fn tables(runs: &[Run]) -> String {
    let mut text = format!("\n{:<32}", "");
    for run in runs {
        let _ = write!(text, "{:>16}", run.policy);
    }
    if runs.len() == 2 {
        text.push_str("     ratio");
    }
    text.push('\n');
    for (name, value) in times() {
        let values: Vec<f64> = runs.iter().map(value).collect();
        let _ = write!(text, "{name:<32}");
        for value in &values {
            let _ = write!(text, "{value:>16.2}");
        }
        if let [first, second] = values[..]
            && first > 0.0
        {
            let _ = write!(text, "{:>9.2}x", second / first);
        }
        text.push('\n');
    }
    for (name, value) in counts() {
        let _ = write!(text, "{name:<32}");
        for run in runs {
            let _ = write!(text, "{:>16}", value(run));
        }
        text.push('\n');
    }
    text + &batches(runs) + &rewards(runs)
}

type Row<T> = (&'static str, fn(&Run) -> T);

fn times() -> [Row<f64>; 15] {
    fn actions(run: &Run, part: fn(&ActionRecord) -> f64) -> Sample {
        Sample::new(run.actions().map(part))
    }
    [
        ("makespan, s", Run::makespan_s),
        ("trajectory, mean s", |run| {
            Sample::new(run.trajectories.iter().map(|t| t.end_s - t.begin_s)).mean()
        }),
        ("wait for a sandbox, mean s", |run| {
            Sample::new(run.sandboxes().map(|s| s.queue_s)).mean()
        }),
        ("make a sandbox ready, mean s", |run| {
            Sample::new(run.sandboxes().map(|s| s.ready_s - s.requested_s - s.queue_s)).mean()
        }),
        ("generation of a turn, mean s", |run| {
            let thinks = run.trajectories.iter().flat_map(|t| &t.thinks);
            Sample::new(thinks.map(|think| think.seconds())).mean()
        }),
        ("from complete to reward, mean s", |run| {
            let scoring = run.trajectories.iter().filter_map(|t| t.scoring);
            Sample::new(scoring.map(Span::seconds)).mean()
        }),
        ("waiting per trajectory, mean s", |run| {
            run.actions().map(ActionRecord::queueing_s).sum::<f64>()
                / run.trajectories.len().max(1) as f64
        }),
        ("ACT, mean s", |run| actions(run, ActionRecord::act_s).mean()),
        ("ACT, p50 s", |run| actions(run, ActionRecord::act_s).quantile(0.5)),
        ("ACT, p99 s", |run| actions(run, ActionRecord::act_s).quantile(0.99)),
        ("  queueing, mean s", |run| actions(run, ActionRecord::queueing_s).mean()),
        ("  execution, mean s", |run| actions(run, |action| action.exec_s).mean()),
        ("  our overhead, mean ms", |run| actions(run, ActionRecord::overhead_s).mean() * 1e3),
        ("cores used, mean", Run::cores_used),
        ("cores granted, mean", |run| run.granted_cores),
    ]
}

fn counts() -> [Row<u64>; 7] {
    fn rewarded(run: &Run, wanted: fn(f64) -> bool) -> u64 {
        run.trajectories.iter().filter(|t| t.reward.is_some_and(wanted)).count() as u64
    }
    [
        ("trajectories scored", |run| run.scored() as u64),
        ("  with a reward above 0", |run| rewarded(run, |reward| reward > 0.0)),
        ("  with a reward of 0", |run| rewarded(run, |reward| reward == 0.0)),
        ("actions", |run| run.actions().count() as u64),
        ("turns through the gateway", |run| {
            run.trajectories.iter().map(|t| u64::from(t.turns)).sum()
        }),
        ("  tokens of prompts", |run| run.trajectories.iter().map(|t| t.prompt_tokens).sum()),
        ("  tokens generated", |run| run.trajectories.iter().map(|t| t.generated_tokens).sum()),
    ]
}

/// What the trainer took.
fn batches(runs: &[Run]) -> String {
    let mut text =
        String::from("\nbatches that the trainer took (token ids, log-probs and loss masks fit)\n");
    for run in runs {
        for batch in &run.batches {
            let versions: Vec<String> = batch.versions.iter().map(u64::to_string).collect();
            let _ = writeln!(
                text,
                "  {:<13} batch {}: {} groups, {} trajectories, {} tokens, {} to train on, version {}, mean reward {:.3}",
                run.policy,
                batch.id,
                batch.groups,
                batch.trajectories,
                batch.tokens,
                batch.trained_tokens,
                versions.join(" and "),
                batch.mean_reward,
            );
        }
    }
    text
}

/// Rewards by group, and the reason for each that is missing.
fn rewards(runs: &[Run]) -> String {
    let mut text = String::from("\nrewards by group\n");
    let mut missing = String::new();
    for run in runs {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for trajectory in &run.trajectories {
            let cell = trajectory.reward.map_or("none".to_owned(), |reward| reward.to_string());
            if trajectory.reward.is_none() {
                let why = trajectory.fault.as_deref().unwrap_or("it ended without one");
                let _ = writeln!(missing, "no reward: {}: {why}", trajectory.id);
            }
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
    use crate::record::{BatchRecord, SandboxRecord, TrajectoryRecord};

    /// Two trajectories: a second of thought, a share for 1 s, one core for 2 s.
    pub(crate) fn run(policy: &str) -> Run {
        let action = |name: &str, at: f64, exec: f64, units: f64, cores: Vec<u32>| ActionRecord {
            name: name.to_owned(),
            profile: "tests".to_owned(),
            command: String::new(),
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
        let trajectory = |number: u32, reward: Option<f64>| TrajectoryRecord {
            id: format!("{policy}-t.{number}"),
            group: "t".to_owned(),
            begin_s: 0.0,
            end_s: 10.0,
            thinks: vec![Span { begin_s: 1.0, end_s: 2.0 }],
            sandbox: Some(SandboxRecord {
                requested_s: 0.0,
                ready_s: 1.0,
                closed_s: 8.0,
                queue_s: 0.75,
            }),
            actions: vec![
                action("look", 2.0, 1.0, 0.25, vec![0, 1]),
                action("test", 4.0, 2.0, 1.0, vec![number]),
            ],
            scoring: Some(Span { begin_s: 7.0, end_s: 8.0 }),
            turns: 3,
            prompt_tokens: 100,
            generated_tokens: 20,
            reward,
            fault: reward.is_none().then(|| "NodeLost: gone".to_owned()),
        };
        Run {
            policy: policy.to_owned(),
            cores: 2,
            units: BTreeMap::from([("tests".to_owned(), vec![1.0, 2.0])]),
            granted_cores: 0.5,
            trajectories: vec![trajectory(0, Some(1.0)), trajectory(1, None)],
            batches: vec![BatchRecord {
                id: 1,
                groups: 1,
                trajectories: 1,
                tokens: 120,
                trained_tokens: 20,
                versions: vec![0],
                mean_reward: 1.0,
            }],
        }
    }

    fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.trim_start().trim_start_matches(name).split_whitespace().collect()
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
        let mut runs = [run("action-level"), run("static")];
        runs[1].granted_cores = 1.4;
        let text = tables(&runs);
        assert_eq!(row(&text, "cores granted, mean"), ["0.50", "1.40", "2.80x"]);
        assert_eq!(row(&text, "turns through the gateway"), ["6", "6"]);
        assert!(text.contains("1 trajectories, 120 tokens, 20 to train on, version 0"), "{text}");
        assert!(text.contains("no reward: action-level-t.1: NodeLost: gone"));
        assert_eq!(missing(&runs, 1), None);
        assert_eq!(missing(&runs[..1], 2).unwrap(), "action-level scored 1 of 2");
    }

    #[test]
    fn rewards_that_differ_are_named() {
        let mut runs = [run("action-level"), run("static")];
        assert!(differing(&runs).is_empty());
        runs[1].trajectories[0].reward = Some(0.0);
        assert_eq!(differing(&runs), ["t.0"]);
    }
}
