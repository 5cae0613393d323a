//! What a run leaves behind: times in seconds since the run's start.

use serde::Serialize;

use crate::reward::Verdict;

/// One run of the workload under one policy.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    /// Name of the policy: its directory of manifests.
    pub(crate) policy: String,
    /// Cores are held by a trajectory from its opening to its closing.
    pub(crate) held_for_life: bool,
    /// Cores that actions may have on this machine.
    pub(crate) cores: u32,
    /// First opening to last closing.
    pub(crate) makespan_s: f64,
    /// In the order of the workload.
    pub(crate) trajectories: Vec<TrajectoryRecord>,
}

/// One trajectory and its grading.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TrajectoryRecord {
    pub(crate) id: String,
    pub(crate) group: String,
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
    pub(crate) thinks: Vec<Span>,
    pub(crate) sandboxes: Vec<SandboxRecord>,
    pub(crate) actions: Vec<ActionRecord>,
    pub(crate) verdict: Verdict,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
}

/// A sandbox from the request to its closing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SandboxRecord {
    pub(crate) template: String,
    pub(crate) requested_s: f64,
    pub(crate) ready_s: f64,
    pub(crate) closed_s: f64,
    /// Of the time to ready: waiting for memory, and under `static` for a core.
    pub(crate) queue_s: f64,
}

/// An action that ran to its end.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionRecord {
    pub(crate) name: String,
    pub(crate) profile: String,
    /// As the caller saw it: submission to the last event.
    pub(crate) submitted_s: f64,
    pub(crate) ended_s: f64,
    /// Waiting for cores.
    pub(crate) queue_s: f64,
    /// The first action of a sandbox: what the sandbox waited for its place before. Cores
    /// that are held for life are waited for there.
    pub(crate) sandbox_queue_s: f64,
    /// The program itself.
    pub(crate) exec_s: f64,
    /// CPU seconds of its whole process tree.
    pub(crate) cpu_s: f64,
    pub(crate) units: f64,
    pub(crate) cores: Vec<u32>,
    /// `None` when a signal ended it.
    pub(crate) exit_code: Option<i32>,
}

impl ActionRecord {
    /// Action completion time, the wait for the sandbox's place included.
    pub(crate) fn act_s(&self) -> f64 {
        self.sandbox_queue_s + self.ended_s - self.submitted_s
    }

    /// All waiting in the completion time.
    pub(crate) fn queueing_s(&self) -> f64 {
        self.sandbox_queue_s + self.queue_s
    }

    /// Everything in the completion time that is neither waiting nor the program.
    pub(crate) fn overhead_s(&self) -> f64 {
        (self.act_s() - self.queueing_s() - self.exec_s).max(0.0)
    }
}

impl Run {
    /// All actions of all trajectories.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &ActionRecord> {
        self.trajectories.iter().flat_map(|trajectory| &trajectory.actions)
    }

    /// All sandboxes of all trajectories.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &SandboxRecord> {
        self.trajectories.iter().flat_map(|trajectory| &trajectory.sandboxes)
    }

    /// Cores that did work, on average.
    pub(crate) fn cores_used(&self) -> f64 {
        self.actions().map(|action| action.cpu_s).sum::<f64>() / self.makespan_s
    }

    /// Cores that nobody else could have, on average.
    pub(crate) fn cores_held(&self) -> f64 {
        let held: f64 = if self.held_for_life {
            self.sandboxes().map(|sandbox| sandbox.closed_s - sandbox.ready_s).sum()
        } else {
            self.actions().map(|action| action.units * action.exec_s).sum()
        };
        held / self.makespan_s
    }
}
