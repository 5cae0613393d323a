//! Kinds of workers that are alike on the rest of the way.

use super::layers::{Node, Used};
use super::reach::Reach;

/// From where on a kind gets as far as the one before it: from there on it does not matter
/// which of them was used.
#[derive(Debug)]
pub(super) struct Alike(Vec<usize>);

impl Alike {
    pub(super) fn new(kinds: usize, reach: &Reach<'_>) -> Self {
        let from = |kind: usize| match kind.checked_sub(1) {
            None => usize::MAX,
            Some(before) => {
                let ends = reach.ends(before).iter().zip(reach.ends(kind));
                ends.rev().position(|(one, other)| one != other).map_or(0, |rest| {
                    // So many positions behind the last where they differ.
                    reach.goal() + 1 - rest
                })
            }
        };
        Self((0..kinds).map(from).collect())
    }

    /// How many are used of those that are alike from `position` on, with the first of each.
    /// Two combinations with the same sums differ in nothing but how far they got, also where
    /// more are alike for the one that got farther.
    pub(super) fn sums(&self, mut used: Used, position: usize) -> Used {
        let mut first = 0;
        for (kind, &from) in self.0.iter().enumerate() {
            if position < from {
                first = kind;
            } else {
                used[first] += std::mem::take(&mut used[kind]);
            }
        }
        used
    }

    /// Whether a worker of an earlier kind that is alike is left: it does as well.
    pub(super) fn has_earlier(&self, kind: usize, node: &Node, counts: &[usize]) -> bool {
        let alike = (1..=kind).rev().take_while(|&kind| node.position >= self.0[kind]);
        let mut earlier = alike.map(|kind| kind - 1);
        earlier.any(|kind| (node.used[kind] as usize) < counts[kind])
    }
}
