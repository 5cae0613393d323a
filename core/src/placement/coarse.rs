//! A relaxation: neighbouring speeds count as the faster of them. Few combinations
//! remain, and what they cannot do, the real workers cannot do either.

use super::fleet::{Fleet, combinations, strides};
use super::reach::Reach;

/// Kinds of similar speed as one class.
#[derive(Debug)]
pub(super) struct Coarse {
    /// Class of each kind.
    class: Vec<usize>,
    /// The fastest kind of each class.
    fastest: Vec<usize>,
    /// Workers of each class.
    counts: Vec<usize>,
}

impl Coarse {
    /// Joins the closest speeds until at most `limit` combinations remain.
    pub(super) fn new(fleet: &Fleet, limit: usize) -> Self {
        // First kind of each class.
        let mut fastest: Vec<usize> = (0..fleet.counts.len()).collect();
        loop {
            let counts = Self::sums(&fastest, &fleet.counts);
            if fastest.len() <= 1 || combinations(&counts).is_some_and(|all| all <= limit) {
                let class = (0..fleet.counts.len())
                    .map(|kind| fastest.partition_point(|&first| first <= kind) - 1)
                    .collect();
                return Self { class, fastest, counts };
            }
            // Joining class c with c + 1 makes all of c + 1 as fast as c's first.
            let loss = |c: usize| {
                let last = fastest.get(c + 2).copied().unwrap_or(fleet.counts.len()) - 1;
                fleet.token_times[last] / fleet.token_times[fastest[c]]
            };
            let closest = (0..fastest.len() - 1).min_by(|&a, &b| loss(a).total_cmp(&loss(b)));
            fastest.remove(closest.unwrap_or(0) + 1);
        }
    }

    fn sums(fastest: &[usize], counts: &[usize]) -> Vec<usize> {
        let ends = fastest.iter().skip(1).copied().chain([counts.len()]);
        fastest.iter().zip(ends).map(|(&from, to)| counts[from..to].iter().sum()).collect()
    }

    /// For every combination of unused workers, the first position from which they
    /// might get to the end.
    pub(super) fn needs(&self, reach: &Reach<'_>) -> Needs {
        let strides = strides(&self.counts);
        let size = combinations(&self.counts).unwrap_or(1);
        let mut from = vec![reach.goal() as u32; size];
        let mut left = vec![0; self.counts.len()];
        for index in 1..size {
            // The odometer of `left` runs with the index.
            for (digit, count) in left.iter_mut().zip(&self.counts) {
                if *digit < *count {
                    *digit += 1;
                    break;
                }
                *digit = 0;
            }
            let starts = (0..left.len()).filter(|&class| left[class] > 0).map(|class| {
                reach.start(self.fastest[class], from[index - strides[class]] as usize) as u32
            });
            from[index] = starts.min().unwrap_or(from[index]);
        }
        let stride = self.class.iter().map(|&class| strides[class]).collect();
        Needs { from, stride }
    }
}

/// What the unused workers need: a position to begin at.
#[derive(Debug)]
pub(super) struct Needs {
    from: Vec<u32>,
    stride: Vec<usize>,
}

impl Needs {
    /// No relaxation: nothing is given up.
    pub(super) fn nothing(kinds: usize) -> Self {
        Self { from: vec![0], stride: vec![0; kinds] }
    }

    /// Place of the combination with all workers unused.
    pub(super) fn full(&self) -> usize {
        self.from.len() - 1
    }

    /// How far the place moves with one worker of `kind`.
    pub(super) fn stride(&self, kind: usize) -> usize {
        self.stride[kind]
    }

    /// The first position from which the workers at this place might get to the end.
    pub(super) fn from(&self, place: usize) -> usize {
        self.from[place] as usize
    }
}
