//! What the rollout of a job is made of.

use crate::tokens::LengthCap;
use crate::{buffer, reward, router, trajectory, weights};

/// Settings of one [`super::Rollout`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Which worker generates.
    pub router: router::Config,
    /// The life of trajectories.
    pub trajectory: trajectory::Config,
    /// Which service scores.
    pub reward: reward::Config,
    /// What waits for the trainer.
    pub buffer: buffer::Config,
    /// How new versions reach the workers.
    pub weights: weights::Config,
    /// Longest trajectory.
    pub cap: LengthCap,
}
