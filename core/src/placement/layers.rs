//! Combinations of used workers, one worker more in each layer, the most promising
//! kept: a plan when it finds one, a proof when it never had to drop any.

use std::collections::HashMap;

use super::MAX_KINDS;
use super::coarse::Needs;
use super::fleet::Fleet;
use super::reach::Reach;

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

#[derive(Debug, Clone, Copy)]
struct Node {
    used: Used,
    /// Place of the unused workers in the table of needs.
    rest: usize,
    position: usize,
    /// Its step in the list of all steps, 0 for none.
    step: usize,
}

/// One step, and the one before it.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: usize,
    end: usize,
    before: usize,
}

/// Searches with at most `width` combinations in a layer.
pub(super) fn cover(fleet: &Fleet, reach: &Reach<'_>, needs: &Needs, width: usize) -> Outcome {
    let root = Node { used: [0; MAX_KINDS], rest: needs.full(), position: 0, step: 0 };
    if needs.from(root.rest) > 0 {
        return Outcome::Impossible;
    }
    let mut steps = vec![Step { kind: 0, end: 0, before: 0 }];
    let mut layer = vec![root];
    let mut dropped = false;
    while !layer.is_empty() {
        // Combination -> its place in `next`.
        let mut known: HashMap<Used, usize> = HashMap::new();
        let mut next: Vec<Node> = Vec::new();
        for node in &layer {
            for kind in 0..fleet.counts.len() {
                if node.used[kind] as usize == fleet.counts[kind] {
                    continue;
                }
                let position = reach.end(kind, node.position);
                let rest = node.rest - needs.stride(kind);
                if position == reach.goal() {
                    return Outcome::Covered(trace(&steps, node.step, kind, position));
                }
                if position == node.position || position < needs.from(rest) {
                    continue;
                }
                let mut used = node.used;
                used[kind] += 1;
                let place = *known.entry(used).or_insert_with(|| {
                    next.push(Node { used, rest, position: 0, step: 0 });
                    next.len() - 1
                });
                if position > next[place].position {
                    // The step is written once the layer is chosen.
                    next[place] = Node { used, rest, position, step: node.step * MAX_KINDS + kind };
                }
            }
        }
        if next.len() > width {
            dropped = true;
            // The most to spare first; the combination itself breaks ties.
            next.sort_unstable_by_key(|node| {
                (needs.from(node.rest) + reach.goal() - node.position, node.used)
            });
            next.truncate(width);
        }
        for node in &mut next {
            let (before, kind) = (node.step / MAX_KINDS, node.step % MAX_KINDS);
            steps.push(Step { kind, end: node.position, before });
            node.step = steps.len() - 1;
        }
        layer = next;
    }
    if dropped { Outcome::Undecided } else { Outcome::Impossible }
}

fn trace(steps: &[Step], mut at: usize, kind: usize, end: usize) -> Vec<(usize, usize)> {
    let mut path = vec![(kind, end)];
    while at > 0 {
        path.push((steps[at].kind, steps[at].end));
        at = steps[at].before;
    }
    path.reverse();
    path
}
