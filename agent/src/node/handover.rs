//! Cores on their way from one action to another.
//!
//! The queue orders that an action gives up cores before it orders that another takes them. In
//! one sandbox the runner keeps that order; runners of two sandboxes know nothing of each
//! other, so that the second waits here for the first.

use std::collections::BTreeSet;

use tokio_util::sync::{CancellationToken, DropGuard};

/// Orders to give up cores that no runner has carried out yet.
#[derive(Debug, Default)]
pub(super) struct Handover {
    leaving: Vec<(BTreeSet<u32>, CancellationToken)>,
}

impl Handover {
    /// An action is told to go from some cores to others. What it leaves is free when the
    /// guard is dropped: with the order that it travels in, however that ends.
    pub(super) fn leave(&mut self, before: &[u32], after: &[u32]) -> Option<DropGuard> {
        let left: BTreeSet<u32> =
            before.iter().filter(|core| !after.contains(core)).copied().collect();
        if left.is_empty() {
            return None;
        }
        let done = CancellationToken::new();
        self.leaving.retain(|(_, done)| !done.is_cancelled());
        self.leaving.push((left, done.clone()));
        Some(done.drop_guard())
    }

    /// What must be done before these cores can be taken.
    pub(super) fn before(&mut self, cores: &[u32]) -> Vec<CancellationToken> {
        self.leaving.retain(|(_, done)| !done.is_cancelled());
        let taken = |left: &BTreeSet<u32>| cores.iter().any(|core| left.contains(core));
        let needed = self.leaving.iter().filter(|(left, _)| taken(left));
        needed.map(|(_, done)| done.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_waited_for_until_they_are_left() {
        let mut handover = Handover::default();
        let order = handover.leave(&[0, 1, 2, 3], &[0, 1]);
        let first = handover.before(&[2]);
        let second = handover.before(&[3, 4]);
        assert_eq!((first.len(), second.len()), (1, 1), "both take some of what it leaves");
        assert!(handover.before(&[0, 5]).is_empty(), "these it keeps");
        assert!(!first[0].is_cancelled());
        drop(order);
        assert!(first[0].is_cancelled() && second[0].is_cancelled());
        assert!(handover.before(&[2, 3]).is_empty());
    }

    #[test]
    fn one_that_grows_leaves_nothing() {
        let mut handover = Handover::default();
        assert!(handover.leave(&[0], &[0, 1]).is_none());
        assert!(handover.before(&[0, 1]).is_empty());
    }

    #[test]
    fn nothing_piles_up() {
        let mut handover = Handover::default();
        for _ in 0..1000 {
            drop(handover.leave(&[0, 1], &[0]));
        }
        assert!(handover.leaving.len() <= 1);
    }
}
