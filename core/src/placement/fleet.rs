//! Workers by kind.

use super::interference::Interference;
use super::reach::Kind;

/// How many workers there are of each token time, fastest first.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) token_times: Vec<f64>,
    pub(super) counts: Vec<usize>,
    pub(super) kinds: Vec<Kind>,
}

impl Fleet {
    /// Of `groups` trajectories no more than `groups` workers have one, and the
    /// fastest can take the place of any other: the rest is left out.
    pub(super) fn new(token_times: &[f64], groups: usize, interference: &Interference) -> Self {
        let mut sorted = token_times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.truncate(groups);
        let mut fleet = Self { token_times: Vec::new(), counts: Vec::new(), kinds: Vec::new() };
        for token_time in sorted {
            if fleet.token_times.last() == Some(&token_time) {
                if let Some(count) = fleet.counts.last_mut() {
                    *count += 1;
                }
            } else {
                fleet.token_times.push(token_time);
                fleet.counts.push(1);
                fleet.kinds.push(Kind::new(token_time, interference));
            }
        }
        fleet
    }

    /// Number of ways to have used some of each kind; `None` beyond the largest integer.
    pub(super) fn combinations(&self) -> Option<usize> {
        combinations(&self.counts)
    }
}

/// The product of every count plus one.
pub(super) fn combinations(counts: &[usize]) -> Option<usize> {
    counts.iter().try_fold(1_usize, |product, count| product.checked_mul(count + 1))
}

/// Mixed-radix place values of counts, the first kind least.
pub(super) fn strides(counts: &[usize]) -> Vec<usize> {
    counts
        .iter()
        .scan(1, |stride, count| {
            let this = *stride;
            *stride *= count + 1;
            Some(this)
        })
        .collect()
}
