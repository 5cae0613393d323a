//! `/rollout/v1/status`.

use serde::Serialize;
use utoipa::ToSchema;

/// How a job is.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StatusReport {
    /// Its name.
    pub job: String,
    /// The current version of the weights.
    pub version: u64,
    /// Its workers.
    pub workers: Vec<WorkerReport>,
    /// Where prefill and decode are separate: the part that no healthy worker does, `prefill`
    /// or `decode`; null otherwise.
    pub lacks: Option<String>,
    /// Generation requests that wait for a worker.
    pub pending: u64,
    /// Its trajectories that have not ended.
    pub trajectories: TrajectoryCounts,
    /// Groups that have not settled.
    pub groups_open: u64,
    /// Settled groups that wait for the trainer.
    pub buffer: BufferReport,
    /// What the trainer took.
    pub batches: BatchCounts,
    /// Part of the generated tokens that ended in a batch or may still; 1 where nothing was lost.
    pub kept_fraction: Option<f64>,
    /// Time of a training step over the time to generate a batch; null until both are known.
    pub train_to_generation_ratio: Option<f64>,
    /// What would make the two meet, as a sentence; may be empty.
    pub suggestion: String,
}

/// A worker, as the router sees it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct WorkerReport {
    /// Its name.
    pub id: String,
    /// Its base URL.
    pub url: String,
    /// Its class of hardware.
    pub class: String,
    /// Its part in a generation: `mixed`, `prefill` or `decode`.
    pub role: String,
    /// Whether it serves, updates, or is out of service.
    pub state: String,
    /// The version that it holds; null where it is not known.
    pub version: Option<u64>,
    /// Requests that it may have in flight.
    pub slots: u32,
    /// Requests that it has in flight.
    pub running: u32,
    /// Requests that wait for it.
    pub pending: u32,
}

/// Trajectories by what they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct TrajectoryCounts {
    /// Their agents are at work.
    pub running: u64,
    /// Their rewards are being found.
    pub scoring: u64,
}

/// The buffer of settled groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct BufferReport {
    /// Groups in it.
    pub groups: u64,
    /// Their trajectories.
    pub trajectories: u64,
    /// Trajectories that it may hold, open groups included.
    pub bound: u64,
}

/// Batches since the job began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct BatchCounts {
    /// Given out.
    pub taken: u64,
    /// Acknowledged.
    pub acknowledged: u64,
    /// Time that the trainer has waited for batches.
    pub trainer_wait_seconds: f64,
}
