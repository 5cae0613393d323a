//! What a run leaves behind: times in seconds since the run's start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One run of the workload under one policy.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    /// Name of the policy: its directory of manifests.
    pub(crate) policy: String,
    /// Cores that actions may have on this machine.
    pub(crate) cores: u32,
    /// Units that an action may be given, by profile.
    pub(crate) units: BTreeMap<String, Vec<f64>>,
    /// Cores that nobody else could have, on average: sampled, reward services included.
    pub(crate) granted_cores: f64,
    /// In the order of their ids; those that were replaced are there too.
    pub(crate) trajectories: Vec<TrajectoryRecord>,
    /// As the trainer took them.
    pub(crate) batches: Vec<BatchRecord>,
}

/// One trajectory and its score.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrajectoryRecord {
    pub(crate) id: String,
    /// Its package.
    pub(crate) group: String,
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
    /// Turns of generation, as the agent saw them.
    pub(crate) thinks: Vec<Span>,
    /// `None` when it got none.
    pub(crate) sandbox: Option<SandboxRecord>,
    /// Its own, and at last the one that scored it.
    pub(crate) actions: Vec<ActionRecord>,
    /// From its completion to its score.
    pub(crate) scoring: Option<Span>,
    /// Turns and tokens that the gateway counted.
    pub(crate) turns: u32,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) reward: Option<f64>,
    /// Why it has no reward.
    pub(crate) fault: Option<String>,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Span {
    pub(crate) begin_s: f64,
    pub(crate) end_s: f64,
}

impl Span {
    pub(crate) fn seconds(self) -> f64 {
        self.end_s - self.begin_s
    }
}

/// A sandbox from the request to its closing.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the unit is in the name")]
pub(crate) struct SandboxRecord {
    pub(crate) requested_s: f64,
    pub(crate) ready_s: f64,
    pub(crate) closed_s: f64,
    /// Of the time to ready: waiting for memory, and under `static` for a core.
    pub(crate) queue_s: f64,
}

/// An action that ran to its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionRecord {
    pub(crate) name: String,
    /// Name of its action profile.
    pub(crate) profile: String,
    /// What ran.
    pub(crate) command: String,
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

/// A batch as the trainer took it; its token ids, log-probs and loss masks fit together.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchRecord {
    pub(crate) id: u64,
    pub(crate) groups: u32,
    pub(crate) trajectories: u32,
    pub(crate) tokens: u64,
    /// Tokens that the loss mask counts: the generated ones.
    pub(crate) trained_tokens: u64,
    /// Versions of the weights that generated them.
    pub(crate) versions: Vec<u64>,
    pub(crate) mean_reward: f64,
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
    /// First beginning to last end.
    pub(crate) fn makespan_s(&self) -> f64 {
        let begin = self.trajectories.iter().map(|t| t.begin_s).reduce(f64::min);
        let end = self.trajectories.iter().map(|t| t.end_s).reduce(f64::max);
        end.unwrap_or(0.0) - begin.unwrap_or(0.0)
    }

    /// All actions of all trajectories.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &ActionRecord> {
        self.trajectories.iter().flat_map(|trajectory| &trajectory.actions)
    }

    /// Cores that did work, on average.
    pub(crate) fn cores_used(&self) -> f64 {
        self.actions().map(|action| action.cpu_s).sum::<f64>() / self.makespan_s()
    }

    /// All sandboxes of the trajectories; those of the reward services are the gateway's.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = &SandboxRecord> {
        self.trajectories.iter().filter_map(|trajectory| trajectory.sandbox.as_ref())
    }

    /// Trajectories with a reward.
    pub(crate) fn scored(&self) -> usize {
        self.trajectories.iter().filter(|trajectory| trajectory.reward.is_some()).count()
    }
}
