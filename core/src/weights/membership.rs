//! Workers come, go, and start anew.

use super::Weights;
use super::command::Command;
use super::config::Strategy;
use super::event::Source;
use super::update::Update;
use super::worker::{Job, Phase, Plan, Trust, Worker};
use crate::fault::{Fault, FaultKind};
use crate::ids::WorkerId;
use crate::version::Version;

impl Weights {
    pub(super) fn joined(&mut self, id: &WorkerId, version: Option<Version>) {
        self.left(id);
        let message = format!("worker `{id}` has just joined");
        let fault = Fault::new(FaultKind::Infrastructure, "Joining", message);
        self.workers.insert(id.clone(), Worker::new(version, fault));
        self.bring(id);
    }

    pub(super) fn left(&mut self, id: &WorkerId) {
        self.workers.remove(id);
        if let Some(update) = &mut self.update {
            update.members.remove(id);
        }
    }

    pub(super) fn restarted(&mut self, id: &WorkerId, version: Option<Version>) {
        self.hold(id, true);
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.reserved {
            self.out.push(Command::Reserve { worker: id.clone(), reserved: false });
        }
        let message = format!("worker `{id}` was started anew");
        let fault = Fault::new(FaultKind::Infrastructure, "Restarted", message);
        *worker = Worker {
            gate: worker.gate,
            held_since: worker.held_since,
            ..Worker::new(version, fault)
        };
        self.out.push(Command::SetVersion { worker: id.clone(), version });
        if let Some(update) = &mut self.update {
            update.members.remove(id);
        }
        self.bring(id);
    }

    /// Whether a commit that takes all workers at once has not stopped the others yet:
    /// what is at its version already must not serve beside them.
    fn others_are_older(&self, target: Version) -> bool {
        let serves_older =
            |worker: &Worker| !worker.held() && !worker.reserved && worker.version != Some(target);
        self.config.strategy == Strategy::Pause
            && self.update.as_ref().is_some_and(Update::commits)
            && self.workers.values().any(serves_older)
    }

    /// Sets out to bring a worker to the version that is to be served, and into service.
    pub(super) fn bring(&mut self, id: &WorkerId) {
        let (target, source) = self.goal();
        let barrier = self.others_are_older(target);
        let Some(worker) = self.workers.get_mut(id) else { return };
        let known = worker.version == Some(target);
        if known && !worker.held() {
            self.unreserve(id);
            return self.release(id);
        }
        let as_launched = worker.version.is_none() && source == Source::Launch;
        let plan = if worker.trust == Trust::Fresh && (known || as_launched) && !barrier {
            Plan::Admit
        } else if known && !barrier {
            Plan::Undo
        } else {
            match source {
                Source::Disk(_) | Source::Store => {
                    if let Some(update) = self.update.as_mut().filter(|update| update.commits()) {
                        update.members.insert(id.clone());
                    }
                    Plan::Update(source)
                }
                Source::Launch | Source::External if worker.trust == Trust::Tainted => {
                    let message = format!(
                        "an update that was not finished has left worker `{id}` with unknown \
                         weights, and version {target} cannot be had from anywhere: restart it, \
                         or commit another version"
                    );
                    let fault = Fault::new(FaultKind::Infrastructure, "Tainted", message);
                    worker.phase = Phase::Out { fault, retry: None };
                    return;
                }
                Source::Launch | Source::External => Plan::Check,
            }
        };
        self.assign(id, Job { target, plan });
    }
}
