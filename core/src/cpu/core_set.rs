//! A set of logical CPUs of one node, by the kernel's numbers.

use std::fmt;

/// A set of CPU numbers below 4096, as a bit set.
#[derive(Clone, Default)]
pub struct CoreSet(Vec<u64>);

impl CoreSet {
    /// Largest CPU number that a set can hold.
    pub const MAX: u32 = 4095;

    /// The empty set.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a core; numbers above [`Self::MAX`] do not exist and are left out.
    pub fn insert(&mut self, core: u32) {
        if core > Self::MAX {
            return;
        }
        let block = core as usize / 64;
        if self.0.len() <= block {
            self.0.resize(block + 1, 0);
        }
        self.0[block] |= 1 << (core % 64);
    }

    /// Takes a core out.
    pub fn remove(&mut self, core: u32) {
        if let Some(block) = self.0.get_mut(core as usize / 64) {
            *block &= !(1 << (core % 64));
        }
    }

    /// True when `core` is in the set.
    pub fn contains(&self, core: u32) -> bool {
        self.0.get(core as usize / 64).is_some_and(|block| block & (1 << (core % 64)) != 0)
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.0.iter().map(|block| block.count_ones() as usize).sum()
    }

    /// True without cores.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|block| *block == 0)
    }

    /// The cores in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, block)| {
            let mut rest = *block;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.checked_sub(1)?;
                Some(index as u32 * 64 + bit)
            })
        })
    }

    /// Takes out up to `count` of the lowest cores and returns them.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Self {
        let taken: Self = self.iter().take(count).collect();
        self.subtract(&taken);
        taken
    }

    /// Adds all cores of `other`.
    pub fn extend(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    /// Takes out all cores of `other`.
    pub fn subtract(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= !theirs;
        }
    }

    /// True when both have a core in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(mine, theirs)| mine & theirs != 0)
    }
}

impl PartialEq for CoreSet {
    fn eq(&self, other: &Self) -> bool {
        let blocks = self.0.len().max(other.0.len());
        let block = |set: &Self, index: usize| set.0.get(index).copied().unwrap_or(0);
        (0..blocks).all(|index| block(self, index) == block(other, index))
    }
}

impl Eq for CoreSet {}

impl FromIterator<u32> for CoreSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cores: I) -> Self {
        let mut set = Self::new();
        cores.into_iter().for_each(|core| set.insert(core));
        set
    }
}

impl fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(a in prop::collection::btree_set(0u32..300, 0..40),
                              b in prop::collection::btree_set(0u32..300, 0..40),
                              count in 0usize..50) {
            let (x, y): (CoreSet, CoreSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.iter().collect::<BTreeSet<_>>(), a.clone());
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.overlaps(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x == y, a == b);
            let mut union = x.clone();
            union.extend(&y);
            prop_assert_eq!(union.iter().collect::<BTreeSet<_>>(), &a | &b);
            let mut rest = x.clone();
            rest.subtract(&y);
            prop_assert_eq!(rest.iter().collect::<BTreeSet<_>>(), &a - &b);
            let mut left = x.clone();
            let taken = left.take(count);
            prop_assert_eq!(taken.iter().collect::<Vec<_>>(), a.iter().copied().take(count).collect::<Vec<_>>());
            prop_assert!(!left.overlaps(&taken));
        }
    }
}
