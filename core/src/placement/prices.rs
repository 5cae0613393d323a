//! A Lagrangian relaxation: workers have prices instead of being counted.
//!
//! Whatever the prices, those who cover the lengths pay at least for the cheapest
//! path from the first position to the end. Where that costs more than all workers
//! together, nobody covers them. Prices are sought that prove as much as they can, by
//! subgradients: workers of which the cheapest path takes too many become dearer.

use super::classes::Classes;
use super::reach::Reach;

/// What rounding may add to a price, where all workers together cost 1.
const ROUNDING: f64 = 1e-9;
/// Most changes of the prices for one bound.
const MOST_ROUNDS: usize = 150;
/// Steps of all changes for one bound, beyond the least rounds.
const STEPS: usize = 1 << 25;
/// Changes for one bound, however many lengths there are.
const LEAST_ROUNDS: usize = 20;
/// Rounds without gain before smaller changes are tried.
const PATIENCE: usize = 8;
/// Below this part of a full change nothing is gained.
const LEAST_CHANGE: f64 = 1e-3;

/// A price for a worker of each kind, and what the rest of the way costs at least.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices {
    of: Vec<f64>,
    to_go: Vec<f64>,
}

impl Prices {
    /// No relaxation: nothing is given up.
    pub(super) fn none() -> Self {
        Self::default()
    }

    /// The price of a worker of `kind`.
    pub(super) fn of(&self, kind: usize) -> f64 {
        self.of.get(kind).copied().unwrap_or(0.0)
    }

    /// What would be left at the end of the cheapest path from `position`, after `spent`.
    pub(super) fn spare(&self, position: usize, spent: f64) -> f64 {
        1.0 - spent - self.to_go.get(position).copied().unwrap_or(0.0)
    }

    /// Whether the others might cover the rest.
    pub(super) fn may_cover(&self, position: usize, spent: f64) -> bool {
        self.spare(position, spent) >= -ROUNDING
    }
}

/// What prices tell about a bound.
#[derive(Debug)]
pub(super) enum Verdict {
    /// No order of the workers covers the lengths.
    Impossible,
    /// The cheapest path takes no more workers than there are: it covers them.
    Covered(Vec<(usize, usize)>),
    /// These prices prove the most.
    Open(Prices),
}

/// Prices for one bound after another.
#[derive(Debug)]
pub(super) struct Market {
    /// By kind, the best of the bound before.
    last: Vec<f64>,
}

impl Market {
    pub(super) fn new(kinds: usize) -> Self {
        Self { last: vec![1.0; kinds] }
    }

    /// What prices tell about the bound of `reach`, of which `classes` are the rows.
    pub(super) fn judge(&mut self, reach: &Reach<'_>, classes: &Classes) -> Verdict {
        let mut path = Path::new(reach, classes.counts().len());
        let counts: Vec<f64> = classes.counts().iter().map(|&count| count as f64).collect();
        let mut prices = normal(advances(reach, counts.len()), &counts);
        let last = normal(classes.means(&self.last), &counts);
        if path.cost(&last) > path.cost(&prices) {
            prices = last;
        }
        let (mut best, mut best_prices) = (f64::NEG_INFINITY, prices.clone());
        let (mut change, mut patience) = (1.0, PATIENCE);
        let rounds = (STEPS / ((reach.goal() + 1) * counts.len())).clamp(LEAST_ROUNDS, MOST_ROUNDS);
        for _ in 0..rounds {
            let cost = path.cost(&prices);
            if cost > 1.0 + ROUNDING {
                classes.spread(&prices, &mut self.last);
                return Verdict::Impossible;
            }
            let taken = path.taken();
            if taken.iter().zip(classes.counts()).all(|(taken, count)| taken <= count) {
                return Verdict::Covered(path.steps().collect());
            }
            if cost > best + ROUNDING {
                (best, patience) = (cost, PATIENCE);
                best_prices.clone_from(&prices);
            } else {
                patience -= 1;
                if patience == 0 {
                    (change, patience) = (change / 2.0, PATIENCE);
                    prices.clone_from(&best_prices);
                    if change < LEAST_CHANGE {
                        break;
                    }
                }
            }
            // Polyak's step towards a little more than 1, in the geometry of a simplex.
            let excess: Vec<f64> = taken
                .iter()
                .zip(&counts)
                .map(|(&taken, count)| taken as f64 / count - cost)
                .collect();
            let parts = prices.iter().zip(&counts).map(|(price, count)| price * count);
            let variance: f64 = parts.zip(&excess).map(|(part, e)| part * e * e).sum();
            let step = (change * (1.002 - cost).max(0.002) / variance.max(1e-12)).min(0.5);
            for (price, excess) in prices.iter_mut().zip(&excess) {
                *price *= (step * excess).clamp(-1.0, 1.0).exp();
            }
            prices = normal(prices, &counts);
        }
        path.cost(&best_prices);
        classes.spread(&best_prices, &mut self.last);
        Verdict::Open(Prices { of: best_prices, to_go: path.to_go })
    }
}

/// All workers together cost 1.
fn normal(mut prices: Vec<f64>, counts: &[f64]) -> Vec<f64> {
    let all: f64 = prices.iter().zip(counts).map(|(price, count)| price * count).sum();
    for price in &mut prices {
        *price /= all;
    }
    prices
}

/// How far a worker of each kind gets, on average: the right prices for equal lengths.
fn advances(reach: &Reach<'_>, kinds: usize) -> Vec<f64> {
    let mean = |kind: usize| {
        let ends = (0..reach.goal()).map(|from| (from, reach.end(kind, from)));
        let inside = ends.take_while(|&(_, end)| end < reach.goal());
        let (sum, count) =
            inside.fold((0, 0_usize), |(sum, count), (from, end)| (sum + end - from, count + 1));
        // Some price, where a worker gets nowhere, or to the end from anywhere.
        if count == 0 { reach.goal() as f64 } else { sum.max(1) as f64 / count as f64 }
    };
    (0..kinds).map(mean).collect()
}

/// The cheapest path from every position to the end.
struct Path<'a> {
    /// By kind, where its group ends that begins at each position.
    ends: Vec<&'a [u32]>,
    to_go: Vec<f64>,
    /// The kind of the next worker.
    next: Vec<u8>,
}

impl<'a> Path<'a> {
    fn new(reach: &'a Reach<'_>, kinds: usize) -> Self {
        let goal = reach.goal();
        let ends = (0..kinds).map(|kind| reach.ends(kind)).collect();
        Self { ends, to_go: vec![0.0; goal + 1], next: vec![0; goal] }
    }

    /// What the whole way costs.
    fn cost(&mut self, prices: &[f64]) -> f64 {
        for from in (0..self.next.len()).rev() {
            let (mut least, mut next) = (f64::INFINITY, 0);
            for (kind, (ends, price)) in self.ends.iter().zip(prices).enumerate() {
                let end = ends[from] as usize;
                let cost = price + self.to_go[end];
                if end > from && cost < least {
                    (least, next) = (cost, kind as u8);
                }
            }
            self.to_go[from] = least;
            self.next[from] = next;
        }
        self.to_go[0]
    }

    /// The workers along the way, by kind, and where their groups end.
    fn steps(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let kind = usize::from(*self.next.get(from)?);
            from = self.ends[kind][from] as usize;
            Some((kind, from))
        })
    }

    /// How many workers of each kind the way takes.
    fn taken(&self) -> Vec<usize> {
        let mut taken = vec![0; self.ends.len()];
        for (kind, _) in self.steps() {
            taken[kind] += 1;
        }
        taken
    }
}
