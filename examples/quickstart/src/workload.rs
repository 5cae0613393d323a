//! The recorded trajectories: what the policy does, and how long it thinks before each step.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// One recorded trajectory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectory {
    /// Package that it works on: the rollouts of one package are a group.
    pub group: String,
    /// Number within the group.
    pub rollout: u32,
    /// File name of its edit below `edits/`, and after loading the patch itself.
    pub edit: String,
    /// Its actions, in order.
    pub steps: Vec<Step>,
}

/// One action of a trajectory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What it is for; `edit` gets the patch on its standard input.
    pub name: String,
    /// Think time before it in seconds, unscaled: stands in for generation.
    pub think_s: f64,
    /// Command line.
    pub shell: String,
}

/// Reads `trajectories.jsonl` and `edits/` of a directory, and keeps the first `groups`
/// groups.
pub fn load(dir: &Path, groups: usize) -> anyhow::Result<Vec<Trajectory>> {
    let path = dir.join("trajectories.jsonl");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read; pass its directory", path.display()))?;
    let mut names: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{}, line {}", path.display(), number + 1);
        let mut trajectory: Trajectory = serde_json::from_str(line).with_context(place)?;
        if !names.contains(&trajectory.group) {
            if names.len() == groups {
                continue;
            }
            names.push(trajectory.group.clone());
        }
        let before = all.iter().filter(|t: &&Trajectory| t.group == trajectory.group).count();
        ensure!(
            trajectory.rollout as usize == before,
            "{}: rollout {} of {} should be number {before}: rollouts lie in order",
            place(),
            trajectory.rollout,
            trajectory.group
        );
        let edit = dir.join("edits").join(&trajectory.edit);
        trajectory.edit = std::fs::read_to_string(&edit)
            .with_context(|| format!("{} cannot be read", edit.display()))?;
        ensure!(
            trajectory.edit.contains("\n+++ b/"),
            "{} names no changed file; it should be a unified diff",
            edit.display()
        );
        all.push(trajectory);
    }
    ensure!(!all.is_empty(), "{} has no trajectory, or --groups is 0", path.display());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_workload_is_whole() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let all = load(dir, usize::MAX).unwrap();
        assert_eq!(all.len(), 24);
        for trajectory in &all {
            assert!(trajectory.steps.iter().any(|step| step.name == "edit"));
            assert!(trajectory.steps.iter().all(|step| step.think_s > 0.0 && step.think_s <= 60.0));
            let tests = trajectory.steps.iter().filter(|step| step.name.starts_with("test"));
            assert!(tests.clone().count() > 0);
            assert!(tests.clone().all(|step| step.shell.contains("pytest -q -o addopts=")));
        }
        assert_eq!(load(dir, 2).unwrap().len(), 8);
    }

    #[test]
    fn the_manifests_are_valid_and_score_every_group() {
        use rollwright_crds::Manifest;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        for policy in ["action-level", "static"] {
            let manifests =
                rollwright_crds::parse::directory(&dir.join("manifests").join(policy)).unwrap();
            let jobs: Vec<_> = manifests
                .iter()
                .filter_map(|m| if let Manifest::RolloutJob(job) = m { Some(job) } else { None })
                .collect();
            let services: Vec<_> = manifests
                .iter()
                .filter_map(|m| if let Manifest::RewardService(r) = m { Some(r) } else { None })
                .collect();
            for trajectory in load(dir, usize::MAX).unwrap() {
                let wanted = trajectory.group.as_str();
                let named = jobs[0]
                    .spec
                    .reward_services
                    .iter()
                    .find(|service| service.tasks.contains(&trajectory.group))
                    .unwrap();
                let service = services
                    .iter()
                    .find(|service| service.metadata.name.as_deref() == Some(named.name.as_str()))
                    .unwrap();
                let command = &service.spec.sandbox.as_ref().unwrap().command;
                assert_eq!(command.shell.as_deref(), Some(&*format!("grade {wanted}")));
            }
        }
    }
}
