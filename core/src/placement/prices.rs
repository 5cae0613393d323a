//! A Lagrangian relaxation: workers have prices instead of being counted.
//!
//! Whatever the prices, those who cover the lengths pay at least for the cheapest
//! path from the first position to the end. Where that costs more than all workers
//! together, nobody covers them. Prices are sought that prove as much as they can, by
//! subgradients: workers of which the cheapest path takes too many become dearer. The same
//! holds on the rest of the way for the workers that are left there.

use super::classes::Classes;
use super::reach::Reach;

/// What rounding may add to a price, where all workers together cost 1.
const ROUNDING: f64 = 1e-9;
/// Most changes of the prices for one bound.
const MOST_ROUNDS: usize = 150;
/// Steps of all changes for one bound, beyond the least rounds.
const STEPS: usize = 1 << 25;
/// Most changes of the prices for the rest of a way.
const MOST_ROUNDS_ANEW: usize = 60;
/// Steps of all changes for the rest of a way, beyond the least rounds.
const STEPS_ANEW: usize = 1 << 21;
/// Changes for one bound, however many lengths there are.
const LEAST_ROUNDS: usize = 20;
/// As how many times too many counts a worker that is taken of a kind of which none is left.
const TAKEN_OF_NONE: f64 = 10.0;
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

    /// Whether workers that are left, so many of each kind, might cover the rest.
    pub(super) fn may_be_covered(&self, position: usize, left: &[usize]) -> bool {
        let have: f64 = left.iter().zip(&self.of).map(|(&left, price)| left as f64 * price).sum();
        have - self.to_go[position] >= -ROUNDING * have.max(1.0)
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
    /// No order of the workers covers the lengths, which these prices prove.
    Impossible(Prices),
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
        let counts = classes.counts();
        let mut path = Path::new(reach, counts.len());
        let mut prices = normal(advances(reach, counts.len()), counts);
        let last = normal(classes.means(&self.last), counts);
        if path.cost(0, &last) > path.cost(0, &prices) {
            prices = last;
        }
        let rounds = rounds(STEPS, reach.goal(), counts.len(), MOST_ROUNDS);
        let verdict = path.improve(0, counts, &mut prices, rounds);
        classes.spread(&prices, &mut self.last);
        verdict
    }
}

/// What prices tell about the rest from a position on, where `left` workers of each kind
/// are left: those of `before`, made better for them.
pub(super) fn anew(
    reach: &Reach<'_>,
    position: usize,
    left: &[usize],
    before: &Prices,
    work: &mut u64,
) -> Verdict {
    let positions = reach.goal() - position;
    let rounds = rounds(STEPS_ANEW, positions, left.len(), MOST_ROUNDS_ANEW);
    // A group that is tried costs as much as some sixty of these.
    *work += (positions * left.len()) as u64;
    let path = Path::new(reach, left.len());
    path.improve(position, left, &mut normal(before.of.clone(), left), rounds)
}

fn rounds(steps: usize, positions: usize, kinds: usize, most: usize) -> usize {
    (steps / ((positions + 1) * kinds)).clamp(LEAST_ROUNDS, most)
}

/// All workers together cost 1.
fn normal(mut prices: Vec<f64>, counts: &[usize]) -> Vec<f64> {
    let all: f64 = prices.iter().zip(counts).map(|(price, &count)| price * count as f64).sum();
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

    /// What the way from a position to the end costs.
    fn cost(&mut self, position: usize, prices: &[f64]) -> f64 {
        for from in (position..self.next.len()).rev() {
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
        self.to_go[position]
    }

    /// Makes `prices`, in which all `counts` workers together cost 1, prove as much as they
    /// can of the way from a position on.
    fn improve(
        mut self,
        position: usize,
        counts: &[usize],
        prices: &mut Vec<f64>,
        rounds: usize,
    ) -> Verdict {
        let (mut best, mut best_prices) = (f64::NEG_INFINITY, prices.clone());
        let (mut change, mut patience) = (1.0, PATIENCE);
        for _ in 0..rounds {
            let cost = self.cost(position, prices);
            if cost > 1.0 + ROUNDING {
                return Verdict::Impossible(Prices { of: prices.clone(), to_go: self.to_go });
            }
            let taken = self.taken(position);
            if taken.iter().zip(counts).all(|(taken, count)| taken <= count) {
                return Verdict::Covered(self.steps(position).collect());
            }
            if cost > best + ROUNDING {
                (best, patience) = (cost, PATIENCE);
                best_prices.clone_from(prices);
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
            raise(prices, &taken, counts, cost, change);
        }
        *prices = best_prices;
        self.cost(position, prices);
        Verdict::Open(Prices { of: prices.clone(), to_go: self.to_go })
    }

    /// The workers along the way from a position, by kind, and where their groups end.
    fn steps(&self, mut from: usize) -> impl Iterator<Item = (usize, usize)> {
        std::iter::from_fn(move || {
            let kind = usize::from(*self.next.get(from)?);
            from = self.ends[kind][from] as usize;
            Some((kind, from))
        })
    }

    /// How many workers of each kind the way from a position takes.
    fn taken(&self, position: usize) -> Vec<usize> {
        let mut taken = vec![0; self.ends.len()];
        for (kind, _) in self.steps(position) {
            taken[kind] += 1;
        }
        taken
    }
}

/// Polyak's step towards a little more than 1, in the geometry of a simplex.
fn raise(prices: &mut Vec<f64>, taken: &[usize], counts: &[usize], cost: f64, change: f64) {
    let excess = |(&taken, &count): (&usize, &usize)| match (taken, count) {
        (0, 0) => 0.0,
        (_, 0) => TAKEN_OF_NONE,
        (taken, count) => taken as f64 / count as f64 - cost,
    };
    let excess: Vec<f64> = taken.iter().zip(counts).map(excess).collect();
    let parts = prices.iter().zip(counts).map(|(price, &count)| price * count as f64);
    let variance: f64 = parts.zip(&excess).map(|(part, e)| part * e * e).sum();
    let step = (change * (1.002 - cost).max(0.002) / variance.max(1e-12)).min(0.5);
    for (price, excess) in prices.iter_mut().zip(&excess) {
        *price *= (step * excess).clamp(-1.0, 1.0).exp();
    }
    *prices = normal(std::mem::take(prices), counts);
}
