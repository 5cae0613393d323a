//! The farthest position for every combination of used workers: exact, in one pass.

use super::fleet::{combinations, strides};
use super::prices::Prices;
use super::reach::Reach;

/// The steps that cover all lengths, if any order of the workers, `counts` of each kind, does. A combination
/// that the prices give up is not extended.
pub(super) fn cover(
    counts: &[usize],
    reach: &Reach<'_>,
    prices: &Prices,
) -> Option<Vec<(usize, usize)>> {
    let kinds = counts.len();
    let strides = strides(counts);
    let mut farthest = vec![0_u32; combinations(counts)?];
    let mut used = vec![0_usize; kinds];
    for index in 0..farthest.len() {
        let from = farthest[index] as usize;
        let spent = |used: &[usize]| -> f64 {
            used.iter().enumerate().map(|(kind, &used)| used as f64 * prices.of(kind)).sum()
        };
        if prices.may_cover(from, spent(&used)) {
            for kind in 0..kinds {
                if used[kind] == counts[kind] {
                    continue;
                }
                let end = reach.end(kind, from);
                let next = index + strides[kind];
                if end == reach.goal() {
                    let mut steps = back(&farthest, &strides, index, used, reach);
                    steps.push((kind, end));
                    return Some(steps);
                }
                farthest[next] = farthest[next].max(end as u32);
            }
        }
        // The next combination.
        for (digit, count) in used.iter_mut().zip(counts) {
            if *digit < *count {
                *digit += 1;
                break;
            }
            *digit = 0;
        }
    }
    None
}

/// How `index` was reached.
fn back(
    farthest: &[u32],
    strides: &[usize],
    mut index: usize,
    mut used: Vec<usize>,
    reach: &Reach<'_>,
) -> Vec<(usize, usize)> {
    let mut steps = Vec::new();
    while farthest[index] > 0 {
        let end = farthest[index] as usize;
        let last = (0..strides.len()).find(|&kind| {
            used[kind] > 0 && reach.end(kind, farthest[index - strides[kind]] as usize) == end
        });
        // Every position but 0 was written from such a combination.
        let Some(kind) = last else { break };
        steps.push((kind, end));
        used[kind] -= 1;
        index -= strides[kind];
    }
    steps.reverse();
    steps
}
