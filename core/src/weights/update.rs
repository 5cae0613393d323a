//! Begin, commit and abort of one update.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Weights;
use super::command::{Command, Committed};
use super::event::{Source, Transfer};
use super::worker::{At, Job, Phase, Plan, Trust, Worker};
use crate::fault::{Fault, FaultKind};
use crate::ids::WorkerId;
use crate::time::Time;
use crate::version::Version;

#[derive(Debug)]
pub(super) struct Update {
    pub(super) version: Version,
    transfer: Transfer,
    deadline: Time,
    stage: Stage,
    /// Workers that the stage waits for.
    pub(super) members: BTreeSet<WorkerId>,
    /// How often a worker was brought to the version.
    pub(super) succeeded: u32,
    pub(super) failures: Vec<(WorkerId, Fault)>,
    /// When the last bucket was pulled.
    pub(super) pulled: Option<Time>,
    pub(super) exposed: Mean,
}

#[derive(Debug)]
enum Stage {
    /// `ready`: the trainer has been told.
    Begun {
        ready: bool,
    },
    Committing {
        source: Source,
        since: Time,
    },
}

/// An update that was aborted.
#[derive(Debug)]
pub(super) struct Ended {
    version: Version,
    fault: Fault,
}

/// A mean of durations.
#[derive(Debug, Default)]
pub(super) struct Mean {
    sum: Duration,
    count: u32,
}

impl Mean {
    pub(super) fn push(&mut self, value: Duration) {
        self.sum += value;
        self.count += 1;
    }

    fn get(&self) -> Duration {
        self.sum / self.count.max(1)
    }
}

impl Update {
    /// When it is aborted by itself.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.commits()).then_some(self.deadline)
    }

    pub(super) fn commits(&self) -> bool {
        matches!(self.stage, Stage::Committing { .. })
    }

    /// The version being committed, and where it is to be had from.
    pub(super) fn committing(&self) -> Option<(Version, Source)> {
        match &self.stage {
            Stage::Begun { .. } => None,
            Stage::Committing { source, .. } => Some((self.version, source.clone())),
        }
    }

    /// It is settled which workers keep an older version for an evaluation.
    pub(super) fn has_passed_over(&self) -> bool {
        self.commits() || self.transfer == Transfer::External
    }
}

impl Weights {
    pub(super) fn begin(
        &mut self,
        version: Version,
        transfer: Transfer,
        deadline: Option<Duration>,
    ) -> Result<(), Fault> {
        if let Some(update) = &self.update {
            return self.begin_again(update.version, version, transfer);
        }
        if version <= self.current {
            let message = format!(
                "version {version} is not greater than {}, which is current: begin a greater one",
                self.current
            );
            return Err(Fault::new(FaultKind::User, "VersionNotGreater", message));
        }
        self.ended = None;
        self.update = Some(Update {
            version,
            transfer,
            deadline: self.now + deadline.unwrap_or(self.config.deadline),
            stage: Stage::Begun { ready: false },
            members: BTreeSet::new(),
            succeeded: 0,
            failures: Vec::new(),
            pulled: None,
            exposed: Mean::default(),
        });
        if transfer == Transfer::External {
            let target = self.current;
            for id in self.pass_over() {
                self.enlist(&id, Job { target, plan: Plan::Suspend });
            }
        }
        Ok(())
    }

    fn begin_again(
        &mut self,
        begun: Version,
        version: Version,
        transfer: Transfer,
    ) -> Result<(), Fault> {
        let Some(update) = &mut self.update else { return Ok(()) };
        if begun == version && update.transfer == transfer {
            if let Stage::Begun { ready } = &mut update.stage {
                // The answer is given again, now or when it is ready.
                *ready = false;
            }
            return Ok(());
        }
        let (reason, doing) = match update.stage {
            Stage::Begun { .. } => ("AnotherBegun", "begun: commit or abort it first"),
            Stage::Committing { .. } => ("UpdateUnderWay", "being committed: wait for it"),
        };
        let message = format!("version {begun} is {doing}");
        Err(Fault::new(FaultKind::Stale, reason, message))
    }

    pub(super) fn commit(&mut self, version: Version, path: Option<Arc<str>>) -> Result<(), Fault> {
        let Some(update) = self.update.as_mut().filter(|update| update.version == version) else {
            return self.commit_again(version);
        };
        let Stage::Begun { ready } = update.stage else { return Ok(()) };
        let source = match (update.transfer, path) {
            (Transfer::Disk, Some(path)) => Source::Disk(path),
            (Transfer::Store, _) => Source::Store,
            (Transfer::External, _) if ready => Source::External,
            (Transfer::External, _) => {
                let message = "the workers are still being suspended: wait for the answer of begin";
                return Err(Fault::new(FaultKind::Stale, "NotSuspended", message));
            }
            (Transfer::Disk, None) => {
                let message =
                    "the commit names no path: say where the engines can read the weights";
                return Err(Fault::new(FaultKind::User, "MissingPath", message));
            }
        };
        let external = source == Source::External;
        let since = self.now;
        update.stage = Stage::Committing { source: source.clone(), since };
        update.failures.clear();
        let members = if external { self.ids() } else { self.pass_over() };
        for id in members {
            let Some(worker) = self.workers.get(&id) else { continue };
            let plan = if !external {
                Plan::Update(source.clone())
            } else if worker.suspended() {
                Plan::Adopt
            } else if self.pins.values().any(|pinned| worker.keeps(*pinned)) || worker.held() {
                // Kept for an evaluation; or out, and brought up when it is tried again.
                continue;
            } else {
                Plan::Check
            };
            self.enlist(&id, Job { target: version, plan });
        }
        Ok(())
    }

    /// A commit of what is not begun.
    fn commit_again(&mut self, version: Version) -> Result<(), Fault> {
        if version == self.current {
            let last = self.last.clone().filter(|last| last.version == version);
            let last = last.unwrap_or_else(|| self.committed(Vec::new()));
            self.out.push(Command::Committed(last));
            return Ok(());
        }
        Err(self.unknown(version))
    }

    pub(super) fn abort(&mut self, version: Version) -> Result<(), Fault> {
        let Some(update) = self.update.as_ref().filter(|update| update.version == version) else {
            let again = self.ended.as_ref().is_some_and(|ended| ended.version == version);
            return if again { Ok(()) } else { Err(self.unknown(version)) };
        };
        if update.commits() {
            let message = format!("version {version} is being committed, which cannot be undone");
            return Err(Fault::new(FaultKind::Stale, "UpdateUnderWay", message));
        }
        let message = format!("the trainer has aborted the update to version {version}");
        self.end(Fault::new(FaultKind::Cancelled, "UpdateAborted", message));
        Ok(())
    }

    fn unknown(&self, version: Version) -> Fault {
        if let Some(ended) = self.ended.as_ref().filter(|ended| ended.version == version) {
            let mut fault = ended.fault.clone();
            fault.kind = FaultKind::Stale;
            return fault;
        }
        let message = format!(
            "version {version} is not begun, and {} is current: begin it first",
            self.current
        );
        Fault::new(FaultKind::User, "UnknownVersion", message)
    }

    /// Gives a worker its part in the present stage, which waits for it.
    pub(super) fn enlist(&mut self, id: &WorkerId, job: Job) {
        if let Some(update) = &mut self.update {
            update.members.insert(id.clone());
        }
        self.assign(id, job);
    }

    pub(super) fn settle(&mut self, id: &WorkerId) {
        if let Some(update) = &mut self.update {
            update.members.remove(id);
        }
    }

    pub(super) fn succeeded(&mut self, id: &WorkerId, job: &Job) {
        if let Some(update) = self.update.as_mut().filter(|update| update.version == job.target) {
            update.succeeded += 1;
            update.members.remove(id);
        }
    }

    pub(super) fn failed(&mut self, id: &WorkerId, fault: Fault) {
        if let Some(update) = &mut self.update
            && update.members.remove(id)
        {
            update.failures.push((id.clone(), fault));
        }
    }

    pub(super) fn tick(&mut self) {
        let late =
            self.update.as_ref().filter(|update| update.due().is_some_and(|at| at <= self.now));
        if let Some(version) = late.map(|update| update.version) {
            let message =
                format!("version {version} was not committed before its deadline: begin it again");
            self.end(Fault::new(FaultKind::Timeout, "UpdateExpired", message));
        }
        for id in self.ids() {
            let Some(worker) = self.workers.get(&id) else { continue };
            match worker.due().filter(|at| *at <= self.now) {
                None => {}
                Some(_) if matches!(worker.phase, Phase::Out { .. }) => self.bring(&id),
                Some(_) => self.drain_is_late(&id),
            }
        }
    }

    /// Ends the stage, if it waits for nobody any more.
    pub(super) fn conclude(&mut self) -> bool {
        let Some(update) = self.update.as_mut().filter(|update| update.members.is_empty()) else {
            return false;
        };
        let version = update.version;
        let failed = update.failures.first().map(|(id, fault)| {
            let message = format!("no worker could take version {version}; `{id}`: {fault}");
            Fault::new(FaultKind::Infrastructure, "UpdateFailed", message)
        });
        let nobody = !self.workers.is_empty()
            && !self
                .workers
                .values()
                .any(|worker| worker.version == Some(version) || worker.reserved);
        match &mut update.stage {
            Stage::Begun { ready: true } => return false,
            Stage::Begun { ready } => {
                let external = update.transfer == Transfer::External;
                let takes_part =
                    |worker: &Worker| worker.suspended() || !external && !worker.reserved;
                let parts = self.workers.iter().filter(|(_, worker)| takes_part(worker));
                let workers: Vec<_> = parts.map(|(id, _)| id.clone()).collect();
                if let (true, true, Some(fault)) = (external, workers.is_empty(), failed) {
                    self.end(fault);
                } else {
                    *ready = true;
                    self.out.push(Command::Begun { version, workers });
                }
            }
            Stage::Committing { .. } => match failed {
                Some(fault) if update.succeeded == 0 => self.end(fault),
                None if update.succeeded == 0 && nobody => {
                    let message = format!(
                        "no worker took version {version}: they were started anew meanwhile"
                    );
                    self.end(Fault::new(FaultKind::Infrastructure, "UpdateFailed", message));
                }
                _ => self.complete(),
            },
        }
        true
    }

    /// The version is current.
    fn complete(&mut self) {
        let Some(update) = self.update.take() else { return };
        let Stage::Committing { source, since } = update.stage else { return };
        self.current = update.version;
        self.source = source;
        let mut committed = self.committed(update.failures);
        committed.pull = update.pulled.map_or(Duration::ZERO, |at| at.since(since));
        committed.exposed = update.exposed.get();
        self.last = Some(committed.clone());
        self.out.push(Command::Committed(committed));
    }

    fn committed(&self, failed: Vec<(WorkerId, Fault)>) -> Committed {
        let count = |test: &dyn Fn(&Worker) -> bool| {
            self.workers.values().filter(|worker| test(worker)).count() as u32
        };
        Committed {
            version: self.current,
            workers: count(&|worker| worker.serves(self.current) && !worker.reserved),
            passed_over: count(&|worker| worker.reserved),
            failed,
            pull: Duration::ZERO,
            exposed: Duration::ZERO,
        }
    }

    /// Ends the update without effect.
    fn end(&mut self, fault: Fault) {
        let Some(update) = self.update.take() else { return };
        let (version, target) = (update.version, self.current);
        self.out.push(Command::Aborted { version, fault: fault.clone() });
        self.ended = Some(Ended { version, fault });
        let told = !matches!(update.stage, Stage::Begun { ready: false });
        for id in self.ids() {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let stays = |next: &Job| next.target != version && next.plan != Plan::Suspend;
            worker.next = worker.next.take().filter(stays);
            match &worker.phase {
                Phase::Serving if worker.reserved && worker.version == Some(target) => {
                    self.unreserve(&id);
                }
                Phase::Serving => {}
                Phase::Out { .. } => self.bring(&id),
                Phase::Working(job, at) => match (&job.plan, at) {
                    // The trainer may have begun to write.
                    (Plan::Suspend, At::Suspended) if told => {
                        worker.trust = Trust::Tainted;
                        self.set_version(&id, None);
                        self.bring(&id);
                    }
                    (Plan::Suspend, At::Suspended | At::Calling { .. }) => self.bring(&id),
                    (Plan::Suspend, _) => self.release_or_bring(&id),
                    (Plan::Reserve, _) if worker.version == Some(target) => self.release(&id),
                    _ if job.target == version && !worker.busy() => self.release_or_bring(&id),
                    // What it does either stays right, or is put right at its end.
                    _ => {}
                },
            }
        }
    }

    /// Puts a worker back that was about to be updated.
    fn release_or_bring(&mut self, id: &WorkerId) {
        match self.workers.get(id) {
            Some(worker) if worker.version == Some(self.current) => self.release(id),
            _ => self.bring(id),
        }
    }
}
