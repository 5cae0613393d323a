//! How old a trajectory may be.

use crate::version::Version;

/// The asynchronous bound alpha of RollArt (6.2), checked at every version change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// Versions that a trajectory may lie behind the current one.
    pub bound: u32,
    /// Which of its versions counts.
    pub on_stale: OnStale,
}

/// What becomes of a trajectory beyond the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStale {
    /// It is aborted and replaced: its start version counts, which is the current
    /// version at its opening until it has generated a token, and that token's then.
    Abort,
    /// Its oldest token counts: a trajectory that has generated nothing never ages.
    Continue,
}

impl Staleness {
    /// Whether a trajectory is too old under the `current` version.
    pub const fn is_stale(
        &self,
        start: Version,
        oldest: Option<Version>,
        current: Version,
    ) -> bool {
        let counts = match (self.on_stale, oldest) {
            (OnStale::Abort, _) => start,
            (OnStale::Continue, Some(oldest)) => oldest,
            (OnStale::Continue, None) => return false,
        };
        self.is_older(counts, current)
    }

    /// Whether `version` lies beyond the bound.
    pub const fn is_older(&self, version: Version, current: Version) -> bool {
        version.0.saturating_add(self.bound as u64) < current.0
    }
}
