//! The least bound that can be met, among all floating-point numbers.

use super::reach::{Kind, Sorted};

/// The groups of a plan, in descending order of length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chain {
    /// Kind of worker, and where its group ends in the sorted lengths.
    pub(super) steps: Vec<(usize, usize)>,
    /// Seconds of the slowest group.
    pub(super) makespan: f64,
}

impl Chain {
    /// Times the groups that these steps end.
    pub(super) fn new(steps: Vec<(usize, usize)>, sorted: &Sorted, kinds: &[Kind]) -> Self {
        let (mut from, mut makespan) = (0, 0.0_f64);
        for &(kind, end) in &steps {
            if end > from {
                makespan = makespan.max(kinds[kind].cost(end - from, sorted.lengths[from]));
                from = end;
            }
        }
        Self { steps, makespan }
    }
}

/// What a bound on the makespan turned out to be.
#[derive(Debug)]
pub(super) enum Probe {
    /// It can be met, by these groups.
    Met(Chain),
    /// It cannot be met, nor can any bound below this one.
    Missed(f64),
    /// Not decided within the memory that is allowed: the next other bound is this one.
    Undecided(f64),
}

/// Where to look first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// The lower bound is often the optimum.
    Low,
    /// The known plan is often the optimum: prove it, or give up.
    High,
}

/// What a search came to.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The best that is known.
    pub(super) best: Chain,
    /// No plan is below.
    pub(super) low: f64,
}

impl Found {
    /// Whether nothing better exists.
    pub(super) fn is_proven(&self) -> bool {
        self.low >= self.best.makespan
    }

    /// Looks for the best chain, until every bound below it has been decided or was not.
    pub(super) fn search(self, first: First, mut probe: impl FnMut(f64) -> Probe) -> Self {
        let Self { mut best, mut low } = self;
        // Where to look next: above what was missed, or not decided.
        let mut from = low;
        let mut at = match first {
            First::Low => low.to_bits(),
            First::High => best.makespan.to_bits().saturating_sub(1),
        };
        while from < best.makespan {
            let bound = f64::from_bits(at);
            match probe(bound) {
                Probe::Met(chain) => best = chain,
                Probe::Missed(next) => {
                    low = next.min(best.makespan);
                    from = next;
                }
                Probe::Undecided(next) => from = next.min(best.makespan),
            }
            // Bits of positive numbers are ordered as the numbers are.
            at = u64::midpoint(from.to_bits(), best.makespan.to_bits());
        }
        Self { best, low }
    }
}

/// The best chain, given that none is below `low`, that `best` is known, and that every
/// bound can be decided.
pub(super) fn least(low: f64, best: Chain, probe: impl FnMut(f64) -> Probe) -> Chain {
    Found { best, low }.search(First::Low, probe).best
}
