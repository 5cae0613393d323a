//! Evaluations that need one version to the end.

use std::collections::BTreeSet;

use super::Weights;
use super::command::Command;
use super::worker::{Job, Phase, Plan};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, WorkerId};
use crate::version::Version;

/// Evaluations at a time.
const MAX_PINS: usize = 10_000;

impl Weights {
    pub(super) fn pin(&mut self, group: GroupId, version: Version) -> Result<(), Fault> {
        if let Some(pinned) = self.pins.get(&group) {
            if *pinned == version {
                return Ok(());
            }
            let message = format!("evaluation `{group}` pins version {pinned} already");
            return Err(Fault::new(FaultKind::User, "PinConflict", message));
        }
        let versions = self.pinned_versions();
        let limit = self.config.evaluation_workers as usize;
        if self.pins.len() >= MAX_PINS || !versions.contains(&version) && versions.len() >= limit {
            let message = format!(
                "evaluations pin {} versions and {limit} workers may serve them: wait for one to \
                 end, or allow more evaluation workers",
                versions.len()
            );
            let mut fault = Fault::new(FaultKind::Infrastructure, "TooManyPins", message);
            fault.retry_after = Some(self.config.retry_base);
            return Err(fault);
        }
        if !self.can_keep(version) {
            let message = format!(
                "no worker keeps version {version} of the weights: the current one is {}",
                self.current
            );
            return Err(Fault::new(FaultKind::User, "UnknownVersion", message));
        }
        self.pins.insert(group, version);
        Ok(())
    }

    /// Whether the version is kept, or still can be.
    fn can_keep(&self, version: Version) -> bool {
        let leaving = self.update.as_ref().is_some_and(super::Update::has_passed_over);
        version == self.current && !leaving
            || self.workers.values().any(|worker| worker.keeps(version))
    }

    pub(super) fn unpin(&mut self, group: &GroupId) {
        if let Some(version) = self.pins.remove(group) {
            self.free(version);
        }
    }

    /// Brings the workers up to date that were kept for a version that nobody pins.
    fn free(&mut self, version: Version) {
        if self.pins.values().any(|pinned| *pinned == version) {
            return;
        }
        for id in self.keepers(version) {
            self.bring(&id);
        }
    }

    fn keepers(&self, version: Version) -> Vec<WorkerId> {
        let keepers = self.workers.iter().filter(|(_, worker)| worker.keeps(version));
        keepers.map(|(id, _)| id.clone()).collect()
    }

    /// Versions that evaluations need.
    pub fn pinned_versions(&self) -> BTreeSet<Version> {
        self.pins.values().copied().collect()
    }

    /// Sets aside the workers that keep a pinned version through the update. All others
    /// are to be updated.
    pub(super) fn pass_over(&mut self) -> Vec<WorkerId> {
        let versions = self.pinned_versions();
        let quota = self.config.evaluation_workers as usize / versions.len().max(1);
        let mut kept = BTreeSet::new();
        for version in versions {
            let mut keepers = self.keepers(version);
            if version == self.current && keepers.is_empty() {
                let serving = self.workers.iter().filter(|(_, worker)| {
                    worker.serves(version) && matches!(worker.phase, Phase::Serving)
                });
                keepers = serving.map(|(id, _)| id.clone()).rev().take(quota.max(1)).collect();
                for id in &keepers {
                    self.enlist(id, Job { target: version, plan: Plan::Reserve });
                }
            }
            kept.extend(keepers.into_iter().take(quota.max(1)));
        }
        self.ids().into_iter().filter(|id| !kept.contains(id)).collect()
    }

    /// Ends the pins of versions that no worker holds any more.
    pub(super) fn check_pins(&mut self) {
        for version in self.pinned_versions() {
            if !self.can_keep(version) {
                self.pins.retain(|_, pinned| *pinned != version);
                self.out.push(Command::PinLost { version });
            }
        }
    }
}
