//! What was learned, as plain data that outlives a process.

use super::ProfileKey;
use crate::resources::Units;

/// Everything that was learned of one profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Whose it is.
    pub key: ProfileKey,
    /// Durations at different units, at most 32.
    pub levels: Vec<KeptLevel>,
    /// Durations on one core, as buckets of a [`Sketch`](super::Sketch) and their counts; at
    /// most 520.
    pub buckets: Vec<(i32, f64)>,
    /// Mean part of a core that it uses when it has it, and of how many actions.
    pub cores_used: Option<(f64, f64)>,
}

/// Durations of actions that ran on the same units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptLevel {
    /// What they ran on.
    pub units: Units,
    /// How many count, those of long ago less.
    pub weight: f64,
    /// Mean seconds.
    pub mean: f64,
}

impl KeptLevel {
    /// True where it can come from durations that were measured.
    pub(super) fn is_sane(&self) -> bool {
        self.weight.is_finite() && self.weight >= 0.0 && self.mean.is_finite() && self.mean > 0.0
    }
}
