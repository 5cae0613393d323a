//! Which trajectories came to a node, and which of them have not acted yet.

use crate::elastic::Newcomers;
use crate::time::Time;

/// The trajectories of one node, as its line expects them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Crowd {
    /// When the first came.
    first: Option<Time>,
    /// Those that came after that instant.
    began: usize,
    /// Those that are here and of which no action has come yet.
    silent: usize,
}

impl Crowd {
    pub(super) fn came(&mut self, now: Time) {
        self.began += usize::from(*self.first.get_or_insert(now) < now);
        self.silent += 1;
    }

    /// The first action of one has come, or it went without any.
    pub(super) fn is_known(&mut self) {
        self.silent = self.silent.saturating_sub(1);
    }

    pub(super) fn newcomers(self) -> Option<Newcomers> {
        let (first, began) = (self.first?, self.began as f64);
        Some(Newcomers { first, began, to_come: self.silent as f64 })
    }
}
