//! Free aligned chunks of GPUs.

use std::fmt;

/// Sizes of a chunk.
pub(super) const SIZES: [u64; 4] = [1, 2, 4, 8];

/// How many aligned chunks of 1, 2, 4 and 8 GPUs are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Chunks([u32; 4]);

impl Chunks {
    /// `counts[a]` chunks of `2^a` GPUs.
    pub const fn new(counts: [u32; 4]) -> Self {
        Self(counts)
    }

    /// Chunks of `2^a` GPUs at `[a]`.
    pub const fn counts(&self) -> [u32; 4] {
        self.0
    }

    /// GPUs in all of them.
    pub fn gpus(&self) -> u64 {
        self.0.iter().zip(SIZES).map(|(count, size)| u64::from(*count) * size).sum()
    }

    /// What remains after one chunk of `gpus` was taken; `None` where none is left, or
    /// no chunk has that size. The smallest chunk that holds it is split into aligned
    /// halves. That is never worse than another: of any larger chunk it leaves, at
    /// every size, at least as many GPUs in chunks of that size or above, and those
    /// sums are all that decides what fits later.
    pub fn take(&self, gpus: u64) -> Option<Self> {
        let level = SIZES.iter().position(|&size| size == gpus)?;
        let from = (level..4).find(|&level| self.0[level] > 0)?;
        let mut rest = self.0;
        rest[from] -= 1;
        for half in &mut rest[level..from] {
            *half += 1;
        }
        Some(Self(rest))
    }

    /// Every count cut to `limit`.
    pub(super) fn at_most(self, limit: u64) -> Self {
        Self(self.0.map(|count| u64::from(count).min(limit) as u32))
    }

    /// The largest count of each size that taking chunks one by one can lead to.
    pub(super) fn limits(self) -> [u32; 4] {
        let mut limits = self.0;
        for (level, limit) in limits.iter_mut().enumerate() {
            let splits = self.0[level + 1..].iter().any(|&count| count > 0);
            // A chunk is split only where none of the size is left.
            *limit = (*limit).max(u32::from(splits));
        }
        limits
    }

    /// Number of counts within the limits.
    pub(super) fn states(self) -> u64 {
        self.limits().iter().map(|&limit| u64::from(limit) + 1).fold(1, u64::saturating_mul)
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, four, eight] = self.0;
        write!(f, "the free chunks ({one} of 1 GPU, {two} of 2, {four} of 4, {eight} of 8)")
    }
}
