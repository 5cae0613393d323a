//! What actions of one kind are like, learned from those that ended: how long they
//! last, how much more cores help them, how much of a core they use.
//!
//! Nothing here is ever needed for correctness: a profile that was forgotten, or is
//! wrong, costs time only.

mod kept;
mod scaling;
mod sketch;
mod sort;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod uncertain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use kept::{Kept, KeptLevel};
pub use sketch::Sketch;
pub use sort::{Prior, Sample};

use self::sort::Sort;
use crate::elastic::{InvalidWork, Work};
use crate::ids::JobId;
use crate::resources::{UnitChoice, Units};

/// Profiles that are kept; of more, those that were used longest ago are forgotten.
pub const CAPACITY: usize = 1024;

/// One that has outlasted what was expected of it lasts longer by at least this part.
const SOONEST: f64 = 0.05;

/// Whose actions are taken to be alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProfileKey {
    /// The job.
    pub job: JobId,
    /// The name of the action profile that its request names.
    pub profile: Arc<str>,
}

/// What was learned, of a bounded number of profiles.
#[derive(Debug)]
pub struct Profiles {
    capacity: usize,
    sorts: BTreeMap<ProfileKey, (u64, Sort)>,
    /// By when they were used last.
    used: BTreeMap<u64, ProfileKey>,
    uses: u64,
    /// Of which something was learned since they were taken last.
    changed: BTreeSet<ProfileKey>,
}

impl Default for Profiles {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Profiles {
    /// Keeps at most `capacity` of them, and at least one.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            sorts: BTreeMap::new(),
            used: BTreeMap::new(),
            uses: 0,
            changed: BTreeSet::new(),
        }
    }

    /// An action of this profile has ended by itself. True where so much was learned
    /// from it that what waits should be looked at anew.
    pub fn learn(&mut self, key: &ProfileKey, sample: Sample) -> bool {
        self.changed.insert(key.clone());
        self.sort(key).learn(sample)
    }

    /// True where something was learned since [`Self::take_changed`].
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// All of which something was learned since the last call.
    pub fn take_changed(&mut self) -> Vec<Kept> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let kept = changed.filter_map(|key| Some(self.sorts.get(&key)?.1.keep(key)));
        kept.collect()
    }

    /// Takes up what was kept, as if it had been used last. What no measurement could have
    /// left is passed over.
    pub fn restore(&mut self, kept: &Kept) {
        *self.sort(&kept.key) = Sort::restored(kept);
    }

    /// Whether this one is known.
    pub fn contains(&self, key: &ProfileKey) -> bool {
        self.sorts.contains_key(key)
    }

    /// How long an action will last with each of `units`: as `said` of this very action,
    /// else as learned, else as its profile's manifest has it (`prior`). What is given must
    /// be no less than 0, and a serial fraction no more than 1.
    pub fn work(
        &mut self,
        key: &ProfileKey,
        units: &UnitChoice,
        prior: Prior,
        said: Prior,
    ) -> Result<Work, InvalidWork> {
        self.sort(key).work(units, prior, said)
    }

    /// How long an action that runs on `units` and has outlasted its `work` may be
    /// expected to last in all, in seconds; more than `elapsed`.
    pub fn overdue(&self, key: &ProfileKey, work: &Work, units: Units, elapsed: f64) -> f64 {
        // One that is late will be as late again, unless more is known.
        let expected = work.choices().iter().rfind(|choice| choice.units <= units);
        let late = elapsed - expected.map_or(0.0, |choice| choice.seconds);
        let guess = elapsed + late.max(elapsed * SOONEST) + 1e-3;
        let Some((_, sort)) = self.sorts.get(key) else { return guess };
        let longer = sort.longer_than(work, units, elapsed);
        longer.map_or(guess, |total| total.max(elapsed * (1.0 + SOONEST)))
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.sorts.len()
    }

    /// True while nothing is known.
    pub fn is_empty(&self) -> bool {
        self.sorts.is_empty()
    }

    fn sort(&mut self, key: &ProfileKey) -> &mut Sort {
        self.uses += 1;
        let uses = self.uses;
        let known = self.sorts.get(key).map(|(before, _)| *before);
        if let Some(before) = known {
            self.used.remove(&before);
        } else if self.sorts.len() == self.capacity
            && let Some((_, oldest)) = self.used.pop_first()
        {
            self.sorts.remove(&oldest);
            self.changed.remove(&oldest);
        }
        self.used.insert(uses, key.clone());
        let (at, sort) = self.sorts.entry(key.clone()).or_insert((uses, Sort::default()));
        *at = uses;
        sort
    }
}
