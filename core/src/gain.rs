//! A step of a greedy that gives cores or units to whoever gains most.

use std::cmp::Ordering;

/// The next step up of one of several. The greatest of a heap is the one that gains most; among
/// equals the earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain {
    /// What the step is worth, in whatever the greedy counts.
    pub(crate) worth: f64,
    /// Whose step it is.
    pub(crate) index: usize,
    /// The choice that it leads to.
    pub(crate) to: usize,
}

impl Ord for Gain {
    fn cmp(&self, other: &Self) -> Ordering {
        self.worth.total_cmp(&other.worth).then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Gain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Gain {}
