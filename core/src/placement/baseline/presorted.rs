//! The presorted dynamic program, O(n^2 m).

use super::super::interference::Interference;

/// The least makespan when the i-th stretch of the lengths in descending order goes
/// to the i-th of `token_times` (Heddle, section 5.2, Formula 3; with section 6.2's
/// mapping the token times ascend). It is the optimum where all are equal, and the
/// optimum of one order of the workers where they are not. Stretches may be empty.
pub fn presorted(lengths: &[f64], token_times: &[f64], interference: &Interference) -> f64 {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let n = sorted.len();
    let mut best = vec![f64::INFINITY; n + 1];
    best[0] = 0.0;
    for token_time in token_times {
        let factors: Vec<f64> = (1..=n).map(|size| interference.at(size) * token_time).collect();
        let mut next = best.clone();
        for (from, &longest) in sorted.iter().enumerate() {
            let before = best[from];
            for (slot, factor) in next[from + 1..].iter_mut().zip(&factors) {
                let slowest = before.max(factor * longest);
                *slot = slot.min(slowest);
            }
        }
        best = next;
    }
    best[n]
}
