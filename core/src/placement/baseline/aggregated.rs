//! The presorted dynamic program over aggregated trajectories.

use std::num::NonZeroUsize;

use super::super::interference::Interference;

/// Which trajectories are aggregated. The paper leaves both numbers open.
#[derive(Debug, Clone, Copy)]
pub struct Aggregation {
    /// Shorter ones are aggregated.
    pub below: f64,
    /// How many make one block; the last block has what is left.
    pub block: NonZeroUsize,
}

/// [`presorted`](super::presorted) where the short trajectories, in descending order,
/// are blocks that stay together ("we aggregate short trajectories below a defined
/// threshold after sorting", Heddle, the end of section 5.2). O(k^2 m) for k blocks,
/// where a long trajectory is a block of its own.
///
/// A stretch is timed on its true size and longest length, so the result is the
/// makespan of a real plan. What is lost are the plans that divide a block: a worker
/// that could take a part of one takes all of it or nothing.
pub fn aggregated(
    lengths: &[f64],
    token_times: &[f64],
    interference: &Interference,
    aggregation: Aggregation,
) -> f64 {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let n = sorted.len();
    let long = sorted.partition_point(|&length| length >= aggregation.below);
    // Where a stretch may begin; the last is where all are placed.
    let mut cuts: Vec<usize> =
        (0..long).chain((long..n).step_by(aggregation.block.get())).collect();
    cuts.push(n);
    let mut best = vec![f64::INFINITY; cuts.len()];
    best[0] = 0.0;
    for token_time in token_times {
        let factors: Vec<f64> = (0..=n).map(|size| interference.at(size) * token_time).collect();
        let mut next = best.clone();
        for (from, (&start, before)) in cuts.iter().zip(&best).enumerate().take(cuts.len() - 1) {
            for (slot, end) in next[from + 1..].iter_mut().zip(&cuts[from + 1..]) {
                *slot = slot.min(before.max(factors[end - start] * sorted[start]));
            }
        }
        best = next;
    }
    best[cuts.len() - 1]
}
