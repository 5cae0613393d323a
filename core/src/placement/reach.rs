//! How far a worker gets along the sorted lengths within a bound on its time.

use std::cell::Cell;

use super::interference::Interference;

/// Lengths in descending order, and where each came from.
#[derive(Debug)]
pub(super) struct Sorted {
    pub(super) lengths: Vec<f64>,
    order: Vec<u32>,
}

impl Sorted {
    /// Equal lengths keep their order.
    pub(super) fn new(lengths: &[f64]) -> Self {
        // A length is not negative, so its bits are ordered as it is. The index rides
        // in the low bits: one comparison decides, and ties keep their order.
        let mut keys: Vec<u128> = lengths
            .iter()
            .enumerate()
            .map(|(i, length)| u128::from(!(length + 0.0).to_bits()) << 32 | i as u128)
            .collect();
        keys.sort_unstable();
        let order: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
        Self { lengths: order.iter().map(|&i| lengths[i as usize]).collect(), order }
    }

    pub(super) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Which of the given lengths lie at `from..to`.
    pub(super) fn group(&self, from: usize, to: usize) -> Vec<usize> {
        self.order[from..to].iter().map(|&i| i as usize).collect()
    }
}

/// Workers of one token time.
#[derive(Debug)]
pub(super) struct Kind {
    /// `factors[s - 1]`: time of a group of `s` for each token of its longest.
    factors: Vec<f64>,
}

impl Kind {
    pub(super) fn new(token_time: f64, interference: &Interference) -> Self {
        Self { factors: interference.as_slice().iter().map(|f| f * token_time).collect() }
    }

    fn factor(&self, size: usize) -> f64 {
        self.factors[size.min(self.factors.len()) - 1]
    }

    /// Seconds that a group of `size` takes; 0 for none.
    pub(super) fn cost(&self, size: usize, longest: f64) -> f64 {
        if size == 0 { 0.0 } else { self.factor(size) * longest }
    }

    /// Where the largest group ends that begins at `from` and takes at most `bound`.
    fn end(&self, lengths: &[f64], from: usize, bound: f64) -> usize {
        let room = lengths.len() - from;
        if room == 0 {
            return from;
        }
        let longest = lengths[from];
        if self.factor(room) * longest <= bound {
            return lengths.len();
        }
        let known = room.min(self.factors.len());
        from + self.factors[..known].partition_point(|factor| factor * longest <= bound)
    }

    /// [`Self::end`] from every position, in one pass: ends never move back.
    /// Also returns the least cost above the bound.
    fn ends(&self, lengths: &[f64], bound: f64) -> (Vec<u32>, f64) {
        let n = lengths.len();
        let mut ends = Vec::with_capacity(n + 1);
        let (mut end, mut next) = (0, f64::INFINITY);
        for (from, &longest) in lengths.iter().enumerate() {
            end = end.max(from);
            while end < n && self.factor(end - from + 1) * longest <= bound {
                end += 1;
            }
            if end < n {
                next = next.min(self.factor(end - from + 1) * longest);
            }
            ends.push(end as u32);
        }
        ends.push(n as u32);
        (ends, next)
    }
}

/// What every kind reaches within one bound on the makespan.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    lengths: &'a [f64],
    kinds: &'a [Kind],
    bound: f64,
    ends: Vec<Vec<u32>>,
    next: Cell<f64>,
}

impl<'a> Reach<'a> {
    /// Computes each answer when it is asked for: best for few questions.
    pub(super) fn on_demand(sorted: &'a Sorted, kinds: &'a [Kind], bound: f64) -> Self {
        let next = Cell::new(f64::INFINITY);
        Self { lengths: &sorted.lengths, kinds, bound, ends: Vec::new(), next }
    }

    /// Computes all answers before: best for more questions than positions.
    pub(super) fn tabulated(sorted: &'a Sorted, kinds: &'a [Kind], bound: f64) -> Self {
        let mut reach = Self::on_demand(sorted, kinds, bound);
        for kind in kinds {
            let (ends, next) = kind.ends(reach.lengths, bound);
            reach.ends.push(ends);
            reach.next.set(reach.next.get().min(next));
        }
        reach
    }

    /// The cheaper of both for about `questions` for each kind.
    pub(super) fn for_questions(
        questions: usize,
        sorted: &'a Sorted,
        kinds: &'a [Kind],
        bound: f64,
    ) -> Self {
        if questions > sorted.len() / 8 {
            Self::tabulated(sorted, kinds, bound)
        } else {
            Self::on_demand(sorted, kinds, bound)
        }
    }

    /// Forgets all tabulated kinds but these, which are numbered anew.
    pub(super) fn keep(&mut self, kinds: &[usize]) {
        self.ends = kinds.iter().map(|&kind| std::mem::take(&mut self.ends[kind])).collect();
    }

    /// [`Self::end`] from every position; none where they are computed on demand.
    pub(super) fn ends(&self, kind: usize) -> &[u32] {
        self.ends.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Number of lengths.
    pub(super) fn goal(&self) -> usize {
        self.lengths.len()
    }

    /// Where the largest group ends that `kind` can take from `from` on.
    pub(super) fn end(&self, kind: usize, from: usize) -> usize {
        if let Some(ends) = self.ends.get(kind) {
            return ends[from] as usize;
        }
        let end = self.kinds[kind].end(self.lengths, from, self.bound);
        if end < self.lengths.len() {
            let cost = self.kinds[kind].cost(end - from + 1, self.lengths[from]);
            self.next.set(self.next.get().min(cost));
        }
        end
    }

    /// A larger bound below this one leads to the same answers as this bound did.
    pub(super) fn next(&self) -> f64 {
        self.next.get()
    }
}
