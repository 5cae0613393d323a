//! What carries out a score that `rollwright_core::reward` decided on. A scorer answers
//! with a finite number, or a teacher's log-probabilities, or with a typed fault, and a fault
//! never becomes a number.
//!
//! Dropping [`Scorer::score`] cancels it: the action is cancelled and its sandbox closed,
//! or the connection to the service ends. How many run at once, how often one is tried and
//! when it is given up, are the core's decisions.

mod artefacts;
mod dialect;
mod gpu;
mod judge;
mod name;
mod sandbox;
mod serverless;
mod subject;

use rollwright_core::fault::Fault;

pub use gpu::GpuScorer;
pub use sandbox::SandboxScorer;
pub use serverless::ServerlessScorer;
pub use subject::{Subject, Tokens};

/// What a service says of a trajectory.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// Its reward, a finite number.
    Reward(f64),
    /// The log-probability of each of its tokens; `None` where it was not generated.
    LogProbs(Vec<Option<f32>>),
}

/// One reward service of the job. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Scorer {
    /// A command in a sandbox.
    Sandbox(SandboxScorer),
    /// An endpoint that somebody else runs.
    Serverless(ServerlessScorer),
    /// A model on GPUs.
    Gpu(GpuScorer),
}

impl Scorer {
    /// What the service says of a trajectory. `attempt` counts the calls for this
    /// trajectory from 1: the same attempt, made again, never runs a command twice.
    pub async fn score(&self, subject: &Subject, attempt: u32) -> Result<Said, Fault> {
        match self {
            Self::Sandbox(scorer) => scorer.score(subject, attempt).await.map(Said::Reward),
            Self::Serverless(scorer) => scorer.score(subject).await.map(Said::Reward),
            Self::Gpu(scorer) => scorer.score(subject, attempt).await,
        }
    }
}
