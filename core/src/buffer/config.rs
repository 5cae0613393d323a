//! What the buffer is made of.

use super::Staleness;

/// Settings of one [`super::Buffer`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Groups of a batch, unless its taker wants another number; at least 1.
    pub batch_groups: usize,
    /// Most groups that a taker may want.
    pub max_batch_groups: usize,
    /// Trajectories that a group needs, as a rule.
    pub group_size: usize,
    /// Environments that run at once.
    pub environments: usize,
    /// How old a group may be.
    pub staleness: Staleness,
    /// Most takers that may wait.
    pub max_takers: usize,
}

impl Config {
    /// Trajectories, running and buffered, at which no further group is opened:
    /// `max(1, alpha) * environments` and one batch (RollArt 6.2: a buffer of
    /// O(alpha * E)).
    pub fn bound(&self) -> usize {
        let window = (self.staleness.bound.max(1) as usize).saturating_mul(self.environments);
        window.saturating_add(self.batch_groups.saturating_mul(self.group_size))
    }
}
