//! Workers that come and go, and the versions that they hold.

use super::{Command, Rollout};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, WorkerId};
use crate::router::{self, WorkerSpec};
use crate::time::Time;
use crate::trajectory;
use crate::version::Version;
use crate::weights;

impl Rollout {
    pub(super) fn worker_joined(
        &mut self,
        worker: WorkerId,
        spec: WorkerSpec,
        now: Time,
    ) -> Result<(), Fault> {
        let version = spec.version;
        let joined = router::Event::Joined { worker: worker.clone(), spec, held: true };
        self.route(joined, now)?;
        self.update(weights::Event::Joined { worker, version }, now)
    }

    pub(super) fn worker_left(&mut self, worker: &WorkerId, now: Time) -> Result<(), Fault> {
        self.update(weights::Event::Left(worker.clone()), now)?;
        self.route(router::Event::Left(worker.clone()), now)
    }

    pub(super) fn worker_restarted(
        &mut self,
        worker: WorkerId,
        version: Option<Version>,
        now: Time,
    ) -> Result<(), Fault> {
        self.update(weights::Event::Restarted { worker, version }, now)
    }

    /// Tells the weights which held workers have nothing in flight any more.
    pub(super) fn tell_idle(&mut self, now: Time) -> Result<(), Fault> {
        while let Some(worker) = self.idle.pop_front() {
            self.update(weights::Event::Idle(worker), now)?;
        }
        Ok(())
    }

    pub(super) fn pin(
        &mut self,
        group: &GroupId,
        version: Version,
        now: Time,
    ) -> Result<(), Fault> {
        self.update(weights::Event::Pin { group: group.clone(), version }, now)?;
        self.pins.insert(group.clone(), version);
        Ok(())
    }

    pub(super) fn unpin(&mut self, group: &GroupId, now: Time) {
        if self.pins.remove(group).is_some() {
            let unpinned = self.update(weights::Event::Unpin(group.clone()), now);
            debug_assert!(unpinned.is_ok(), "{unpinned:?}");
        }
    }

    /// Gives the weights an event, and carries their commands on.
    pub(super) fn update(&mut self, event: weights::Event, now: Time) -> Result<(), Fault> {
        for command in self.weights.on_event(event, now)? {
            match command {
                weights::Command::Hold { worker } => {
                    self.route(router::Event::Hold(worker), now)?;
                }
                weights::Command::TakeBack { worker, restart } => {
                    self.route(router::Event::TakeBack { worker, restart }, now)?;
                }
                weights::Command::SetVersion { worker, version } => {
                    self.route(router::Event::Version { worker, version }, now)?;
                }
                weights::Command::Reserve { worker, reserved } => {
                    self.route(router::Event::Reserve { worker, reserved }, now)?;
                }
                weights::Command::Release { worker } => {
                    self.route(router::Event::Release(worker), now)?;
                }
                weights::Command::PinLost { version } => self.pin_lost(version, now)?,
                weights::Command::Committed(committed) => {
                    let version = committed.version;
                    let source = self.weights.source().clone();
                    self.out.push(Command::Version { version, source });
                    self.version_changed(version, now)?;
                    self.out.push(Command::Weights(weights::Command::Committed(committed)));
                }
                weights::Command::Call { .. }
                | weights::Command::Begun { .. }
                | weights::Command::Aborted { .. } => self.out.push(Command::Weights(command)),
            }
        }
        Ok(())
    }

    /// Evaluations of a version that nobody holds any more cannot go on.
    fn pin_lost(&mut self, version: Version, now: Time) -> Result<(), Fault> {
        let lost: Vec<GroupId> = self
            .pins
            .iter()
            .filter(|(_, pinned)| **pinned == version)
            .map(|(group, _)| group.clone())
            .collect();
        for group in lost {
            self.pins.remove(&group);
            let message = format!("no worker holds version {version} any more");
            let fault = Fault::new(FaultKind::Infrastructure, "PinLost", message);
            self.live(trajectory::Event::AbortGroup { group, fault }, now)?;
        }
        Ok(())
    }
}
