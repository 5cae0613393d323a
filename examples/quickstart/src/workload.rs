//! The recorded trajectories: what each does, and how long it thinks before each step.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// One recorded trajectory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trajectory {
    /// Package that it works on: the rollouts of one package are a group.
    pub(crate) group: String,
    /// Number within the group.
    pub(crate) rollout: u32,
    /// File name of its edit below `edits/`, and after loading the patch itself.
    pub(crate) edit: String,
    /// Command that runs the package's own test suite.
    pub(crate) suite: String,
    /// Tests that pass when the package is unchanged.
    pub(crate) suite_tests: u32,
    /// Command that unpacks the package into `repo`.
    pub(crate) unpack: String,
    /// Its actions, in order.
    pub(crate) steps: Vec<Step>,
}

/// One action of a trajectory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// What it is for; `edit` gets the patch on its standard input.
    pub(crate) name: String,
    /// Action profile.
    pub(crate) profile: String,
    /// Think time before it in seconds, unscaled: stands in for generation.
    pub(crate) think_s: f64,
    /// Command line.
    pub(crate) shell: String,
}

impl Trajectory {
    /// The files that the patch changes, relative to the package.
    pub(crate) fn edited_files(&self) -> Vec<String> {
        let name = |line: &str| line.strip_prefix("+++ b/").map(|path| path.trim().to_owned());
        self.edit.lines().filter_map(name).collect()
    }
}

/// Reads `trajectories.jsonl` and `edits/` of a directory, and keeps the first `groups`
/// groups.
pub(crate) fn load(dir: &Path, groups: usize) -> anyhow::Result<Vec<Trajectory>> {
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
        let edit = dir.join("edits").join(&trajectory.edit);
        trajectory.edit = std::fs::read_to_string(&edit)
            .with_context(|| format!("{} cannot be read", edit.display()))?;
        ensure!(
            !trajectory.edited_files().is_empty(),
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
            assert!(trajectory.suite.contains("-n $ROLLWRIGHT_CPUS"));
        }
        assert_eq!(load(dir, 2).unwrap().len(), 8);
    }

    #[test]
    fn the_manifests_are_valid_and_name_what_the_workload_uses() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let profiles: Vec<String> = load(dir, usize::MAX)
            .unwrap()
            .iter()
            .flat_map(|trajectory| trajectory.steps.iter().map(|step| step.profile.clone()))
            .collect();
        for policy in ["action-level", "static"] {
            let manifests =
                rollwright_crds::parse::directory(&dir.join("manifests").join(policy)).unwrap();
            let queue = manifests
                .iter()
                .find_map(|manifest| match manifest {
                    rollwright_crds::Manifest::ActionQueue(queue) => Some(queue),
                    _ => None,
                })
                .unwrap();
            let named: Vec<&str> =
                queue.spec.profiles.iter().map(|profile| profile.name.as_ref()).collect();
            assert!(profiles.iter().all(|profile| named.contains(&profile.as_str())));
            for template in ["python", "pristine"] {
                assert!(queue.spec.templates.iter().any(|t| t.name.as_ref() == template));
            }
        }
    }
}
