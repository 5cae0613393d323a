//! What the core knows, in the words of `/rollout/v1`.

use std::collections::HashMap;

use rollwright_core::fault::Fault;
use rollwright_core::rollout::Rollout;
use rollwright_core::time::Time;
use rollwright_core::trajectory::{self, GroupState as CoreGroupState, State as CoreState};

use super::Driver;
use crate::api::types::{
    BatchCounts, BufferReport, FaultBody, Group, GroupState, GroupTrajectory, State, StatusReport,
    Trajectory, TrajectoryCounts, WeightsReport, WeightsWorker, WorkerReport, WorkerUrl,
};
use crate::fault::user;

pub(super) const fn state(state: CoreState) -> State {
    match state {
        CoreState::Running => State::Running,
        CoreState::Scoring => State::Scoring,
        CoreState::Scored => State::Scored,
        CoreState::Settled => State::Settled,
        CoreState::Aborted => State::Aborted,
    }
}

pub(super) fn group(group: &trajectory::Group) -> Group {
    let trajectories = group.trajectories().map(|member| GroupTrajectory {
        id: member.id().to_string(),
        state: state(member.state()),
        reward: member.reward(),
        fault: member.fault().map(FaultBody::from),
    });
    Group {
        id: group.id().to_string(),
        task: group.task().to_string(),
        state: match group.state() {
            CoreGroupState::Open => GroupState::Open,
            CoreGroupState::Settled => GroupState::Settled,
            CoreGroupState::Aborted => GroupState::Aborted,
        },
        needed: group.needed(),
        start: group.start(),
        trajectories: trajectories.collect(),
        version: group.version().0,
        evaluation: group.is_evaluation(),
    }
}

pub(super) fn trajectory(core: &Rollout, id: &str) -> Result<Trajectory, Fault> {
    let known = core.trajectories().trajectory(id).ok_or_else(|| unknown_trajectory(id))?;
    let group = core.trajectories().group(known.group().as_str());
    let log = known.log();
    Ok(Trajectory {
        id: id.to_owned(),
        group: known.group().to_string(),
        task: group.map(|group| group.task().to_string()).unwrap_or_default(),
        state: state(known.state()),
        turns: log.turns,
        prompt_tokens: log.prompt_tokens,
        generated_tokens: log.generated_tokens,
        start_version: known.start_version().0,
        oldest_version: known.oldest_version().0,
        reward: known.reward(),
        fault: known.fault().map(FaultBody::from),
    })
}

pub(super) fn unknown_trajectory(id: &str) -> Fault {
    let message = format!(
        "trajectory `{id}` is not known: it was never opened, or ended more than an hour ago"
    );
    user("UnknownTrajectory", message)
}

pub(super) fn unknown_group(id: &str) -> Fault {
    let message =
        format!("group `{id}` is not known: it was never opened, or ended more than an hour ago");
    user("UnknownGroup", message)
}

pub(super) fn weights(core: &Rollout) -> WeightsReport {
    let workers = core.weights().workers().map(|worker| WeightsWorker {
        id: worker.id.to_string(),
        version: worker.version.map(|version| version.0),
        state: worker.state.as_str().to_owned(),
    });
    WeightsReport {
        version: core.weights().current().0,
        begun: core.weights().begun().map(|(version, _)| version.0),
        workers: workers.collect(),
    }
}

impl Driver {
    pub(super) fn report(&self, core: &Rollout, urls: &[WorkerUrl], now: Time) -> StatusReport {
        let urls: HashMap<&str, &str> =
            urls.iter().map(|worker| (worker.id.as_str(), worker.url.as_str())).collect();
        let counts = core.trajectories().counts();
        let buffer = core.buffer();
        let stats = buffer.stats(now);
        let workers = core.router().workers().map(|worker| WorkerReport {
            id: worker.id.to_string(),
            url: urls.get(worker.id.as_str()).copied().unwrap_or_default().to_owned(),
            class: worker.class.to_string(),
            role: worker.role.as_str().to_owned(),
            state: worker.state.as_str().to_owned(),
            version: worker.version.map(|version| version.0),
            slots: worker.slots,
            running: worker.running as u32,
            pending: worker.pending as u32,
        });
        let (ratio, suggestion) = suggest(&stats);
        StatusReport {
            job: self.config.job.to_string(),
            version: core.weights().current().0,
            workers: workers.collect(),
            lacks: core.router().lacks().map(|role| role.as_str().to_owned()),
            pending: core.router().pending() as u64,
            trajectories: TrajectoryCounts {
                running: counts.running as u64,
                scoring: counts.scoring as u64,
            },
            groups_open: counts.groups as u64,
            buffer: BufferReport {
                groups: buffer.groups() as u64,
                trajectories: buffer.trajectories() as u64,
                bound: buffer.bound() as u64,
            },
            batches: BatchCounts {
                taken: stats.batches,
                acknowledged: stats.acknowledged,
                trainer_wait_seconds: stats.trainer_waited.as_secs_f64(),
            },
            kept_fraction: core.trajectories().stats().kept_fraction(),
            train_to_generation_ratio: ratio,
            suggestion,
        }
    }
}

/// The ratio of the trainer's work to the time that a batch takes to generate, and what it
/// suggests for the split of GPUs between the two. When the trainer never waits, generation
/// takes at most as long as training, and the ratio is a lower bound.
fn suggest(stats: &rollwright_core::buffer::Stats) -> (Option<f64>, String) {
    let (held, waited) = (stats.trainer_held.as_secs_f64(), stats.trainer_waited.as_secs_f64());
    if stats.acknowledged < 2 || held + waited <= 0.0 {
        return (None, "too early to say: two batches must have been acknowledged".to_owned());
    }
    let ratio = held / (held + waited);
    let wait = 100.0 * (1.0 - ratio);
    let suggestion = if ratio < 0.9 {
        format!(
            "the trainer waits for {wait:.0}% of its time: give generation about {:.2} times the capacity",
            1.0 / ratio
        )
    } else {
        format!(
            "the trainer waits for {wait:.0}% of its time: generation keeps up; it may have more capacity than it needs"
        )
    };
    (Some(ratio), suggestion)
}
