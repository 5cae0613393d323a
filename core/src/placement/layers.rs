//! Combinations of used workers, one worker more in each layer, the most promising
//! kept: a plan when it finds one, a proof when it never had to drop any.

use std::collections::HashMap;

use super::MAX_KINDS;
use super::prices::Prices;
use super::reach::Reach;

/// Most steps that are remembered (96 MiB).
const STEPS: usize = 1 << 23;

/// What the layers found.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Steps that cover all lengths.
    Covered(Vec<(usize, usize)>),
    /// Nothing was dropped that might have covered them.
    Impossible,
    /// More combinations than the width.
    Undecided,
}

type Used = [u32; MAX_KINDS];

/// A combination of used workers, and the farthest that it gets.
#[derive(Debug, Clone, Copy)]
struct Node {
    used: Used,
    /// Prices of the used.
    spent: f64,
    position: usize,
    /// Place of the step before in the list of all steps.
    before: u32,
    /// Kind of the last worker.
    kind: u8,
}

/// One step, and the one before it.
#[derive(Debug, Clone, Copy)]
struct Step {
    end: u32,
    before: u32,
    kind: u8,
}

/// Searches among `counts` workers of each kind with at most `width` combinations in a
/// layer, and adds how many groups it
/// tried to `work`.
pub(super) fn cover(
    counts: &[usize],
    reach: &Reach<'_>,
    prices: &Prices,
    width: usize,
    work: &mut u64,
) -> Outcome {
    let root = Node { used: [0; MAX_KINDS], spent: 0.0, position: 0, before: 0, kind: 0 };
    if !prices.may_cover(0, 0.0) {
        return Outcome::Impossible;
    }
    // The first is where all begin.
    let mut steps = vec![Step { end: 0, before: 0, kind: 0 }];
    // Places in `steps` of the nodes of a layer, one after another, begin here.
    let mut layer = vec![root];
    let mut first = 0;
    let mut dropped = false;
    while !layer.is_empty() {
        // Combination -> its place in `next`.
        let mut known: HashMap<Used, usize> = HashMap::new();
        let mut next: Vec<Node> = Vec::new();
        for (before, node) in (first..).zip(&layer) {
            for (kind, &count) in counts.iter().enumerate() {
                if node.used[kind] as usize == count {
                    continue;
                }
                *work += 1;
                let position = reach.end(kind, node.position);
                if position == reach.goal() {
                    return Outcome::Covered(trace(&steps, before, kind, position));
                }
                let spent = node.spent + prices.of(kind);
                if position == node.position || !prices.may_cover(position, spent) {
                    continue;
                }
                let mut used = node.used;
                used[kind] += 1;
                let reached = Node { used, spent, position, before, kind: kind as u8 };
                let place = *known.entry(used).or_insert(next.len());
                match next.get_mut(place) {
                    None => next.push(reached),
                    Some(other) if other.position < position => *other = reached,
                    Some(_) => {}
                }
            }
        }
        let kept = width.min(STEPS.saturating_sub(steps.len()));
        if next.len() > kept {
            dropped = true;
            // The most to spare first; the combination itself breaks ties.
            next.sort_unstable_by(|a, b| {
                let spare = |node: &Node| prices.spare(node.position, node.spent);
                spare(b).total_cmp(&spare(a)).then(a.used.cmp(&b.used))
            });
            next.truncate(kept);
        }
        first = steps.len() as u32;
        steps.extend(next.iter().map(|node| Step {
            end: node.position as u32,
            before: node.before,
            kind: node.kind,
        }));
        layer = next;
    }
    if dropped { Outcome::Undecided } else { Outcome::Impossible }
}

fn trace(steps: &[Step], mut at: u32, kind: usize, end: usize) -> Vec<(usize, usize)> {
    let mut path = vec![(kind, end)];
    while at > 0 {
        let step = steps[at as usize];
        path.push((usize::from(step.kind), step.end as usize));
        at = step.before;
    }
    path.reverse();
    path
}
