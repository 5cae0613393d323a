//! The recorded trajectories as a script of `engine-sim`: what the policy says at each turn.

use std::collections::BTreeMap;

use serde_json::json;

use crate::workload::{Step, Trajectory};

/// Tokens (bytes, in `engine-sim`) that stand for a second of recorded thought.
const TOKENS_PER_SECOND: f64 = 150.0;
/// What fills a reply until it is as long as its thought was.
const THOUGHT: &str = "This stands in for a thought of the policy. ";

/// A decode step in milliseconds, so that replies take their recorded time, scaled.
pub fn step_ms(think_scale: f64) -> f64 {
    1000.0 * think_scale / TOKENS_PER_SECOND
}

/// One rule a line, for trajectories called `PREFIX-GROUP.NUMBER`. A trajectory that
/// replaces another has the next number, and plays the recordings from the first again.
pub fn lines(prefix: &str, trajectories: &[Trajectory]) -> String {
    let mut groups: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for trajectory in trajectories {
        groups.entry(&trajectory.group).or_default().push(trajectory);
    }
    let mut text = String::new();
    for (group, recorded) in groups {
        for (number, trajectory) in recorded.iter().chain(&recorded).enumerate() {
            let id = format!("{prefix}-{group}.{number}");
            let replies = trajectory.steps.iter().map(|step| reply(step, &trajectory.edit));
            let end = "The work is finished.\n\nDONE".to_owned();
            for (turn, reply) in replies.chain([end]).enumerate() {
                let rule = json!({ "trajectory": id, "turn": turn, "text": reply });
                text.push_str(&rule.to_string());
                text.push('\n');
            }
        }
    }
    text
}

/// A thought and a command. Short thoughts are as long as their command at least.
fn reply(step: &Step, edit: &str) -> String {
    let command = match step.name.as_str() {
        "edit" => format!("{} <<'EDIT'\n{edit}EDIT", step.shell),
        _ => step.shell.clone(),
    };
    let block = format!("\n\n```bash\n{command}\n```");
    let tokens = (step.think_s * TOKENS_PER_SECOND) as usize;
    let thought = tokens.saturating_sub(block.len());
    THOUGHT.chars().cycle().take(thought).chain(block.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, think_s: f64) -> Step {
        Step { name: name.to_owned(), think_s, shell: "patch -p1".to_owned() }
    }

    #[test]
    fn a_reply_is_as_long_as_its_thought_or_its_command() {
        assert_eq!(reply(&step("look", 4.0), "").len(), 600);
        assert_eq!(reply(&step("look", 0.1), ""), "\n\n```bash\npatch -p1\n```");
        let edit = reply(&step("edit", 0.0), "--- a\n+++ b\n");
        assert!(edit.contains("patch -p1 <<'EDIT'\n--- a\n+++ b\nEDIT\n```"), "{edit}");
    }

    #[test]
    fn every_trajectory_and_its_replacement_have_a_reply_for_each_turn() {
        let trajectory = |rollout| Trajectory {
            group: "g".to_owned(),
            rollout,
            edit: String::new(),
            steps: vec![step("look", 1.0)],
        };
        let text = lines("p", &[trajectory(0), trajectory(1)]);
        let rules: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let named: Vec<(String, u64)> = rules
            .iter()
            .map(|rule| {
                let id = rule["trajectory"].as_str().unwrap().to_owned();
                (id, rule["turn"].as_u64().unwrap())
            })
            .collect();
        let expected: Vec<(String, u64)> =
            (0..4).flat_map(|n| [(format!("p-g.{n}"), 0), (format!("p-g.{n}"), 1)]).collect();
        assert_eq!(named, expected);
        assert!(rules[1]["text"].as_str().unwrap().ends_with("\nDONE"));
    }
}
