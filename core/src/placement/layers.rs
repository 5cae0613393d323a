//! Combinations of used workers, one worker more in each layer, the most promising
//! kept: a plan when it finds one, a proof when it never had to drop any.

use std::collections::HashMap;

use super::MAX_KINDS;
use super::alike::Alike;
use super::prices::{self, Prices, Verdict};
use super::reach::Reach;

/// Where fewer are kept, a plan is sought and no proof: prices anew would not pay.
const NARROW: usize = 1 << 10;
/// Combinations of a layer that prices are made for anew in vain, before some are dropped.
const TRIES: usize = 6;
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

/// Workers of each kind that are used.
pub(super) type Used = [u32; MAX_KINDS];

/// A combination of used workers, and the farthest that it gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) used: Used,
    /// Prices of the used.
    spent: f64,
    pub(super) position: usize,
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
    let alike = Alike::new(counts.len(), reach);
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
                if node.used[kind] as usize == count || alike.has_earlier(kind, node, counts) {
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
                let place = *known.entry(alike.sums(used, position)).or_insert(next.len());
                match next.get_mut(place) {
                    None => next.push(reached),
                    Some(other) if other.position < position => *other = reached,
                    Some(_) => {}
                }
            }
        }
        let kept = width.min(STEPS.saturating_sub(steps.len()));
        if next.len() > kept && width > NARROW {
            let rest = Rest { counts, reach, prices };
            if let Some((node, ways)) = rest.prune(&mut next, kept, work) {
                let mut path = trace(&steps, node.before, usize::from(node.kind), node.position);
                path.extend(ways);
                return Outcome::Covered(path);
            }
        }
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

/// What is still to be covered.
struct Rest<'a> {
    counts: &'a [usize],
    reach: &'a Reach<'a>,
    prices: &'a Prices,
}

impl Rest<'_> {
    /// Gives up what prices that are made anew for one of the layer, and then another, prove
    /// to be impossible, until at most `kept` are left or that helps no more. Returns one
    /// that they found to be possible, and its remaining steps.
    fn prune(
        &self,
        layer: &mut Vec<Node>,
        kept: usize,
        work: &mut u64,
    ) -> Option<(Node, Vec<(usize, usize)>)> {
        let mut tries = 0;
        for draw in 1.. {
            if layer.len() <= kept || tries == TRIES {
                break;
            }
            tries += 1;
            // Spread over the layer by the golden ratio.
            let spread = draw * 0x9e37_79b9_u64 % (1 << 32);
            let place = (spread * layer.len() as u64) >> 32;
            let node = layer[place as usize];
            match prices::anew(self.reach, node.position, &self.left(&node), self.prices, work) {
                Verdict::Covered(steps) => return Some((node, steps)),
                Verdict::Impossible(prices) => {
                    let before = layer.len();
                    layer.retain(|other| {
                        // Before that position they say nothing.
                        other.position < node.position
                            || prices.may_be_covered(other.position, &self.left(other))
                    });
                    if layer.len() * 10 < before * 9 {
                        tries = 0;
                    }
                }
                Verdict::Open(_) => {}
            }
        }
        None
    }

    fn left(&self, node: &Node) -> Vec<usize> {
        self.counts.iter().zip(&node.used).map(|(count, &used)| count - used as usize).collect()
    }
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
