//! Which workers to buy with a budget of GPUs.

use super::PlanError;
use super::interference::Interference;
use super::reach::{Kind, Reach, Sorted};
use super::search::{Chain, Probe, least};

/// Most cells of a table by GPUs, and by workers and GPUs (256 MiB).
const CELLS: usize = 1 << 26;

/// One model-parallel degree that a worker may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Degree {
    /// GPUs of a worker, at least 1.
    pub gpus: u64,
    /// Seconds for a token at this degree, above 0.
    pub token_time: f64,
}

/// Workers to run, and which trajectories each takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// Seconds until the slowest group ends: exactly one product of the inputs.
    pub makespan: f64,
    /// GPUs of each worker.
    pub degrees: Vec<u64>,
    /// For each worker, indices into the lengths; never empty.
    pub groups: Vec<Vec<usize>>,
}

/// The exact minimum of the makespan over every choice of at most `max_workers`
/// workers whose degrees sum to at most `gpus`, and over every assignment of the
/// trajectories to them.
///
/// Heddle's section 6 anneals over allocations and runs its placement for each. Here
/// one search covers both: for a bound on the makespan, the farthest position that g
/// GPUs and w workers can reach is a small table, since farther is always better.
pub fn allocate(
    lengths: &[f64],
    gpus: u64,
    max_workers: u64,
    degrees: &[Degree],
    interference: &Interference,
) -> Result<Allocation, PlanError> {
    let degrees = useful(degrees);
    let smallest = degrees.iter().map(|degree| degree.gpus).min().unwrap_or(u64::MAX);
    if degrees.is_empty() || max_workers == 0 {
        return Err(PlanError::NoWorker);
    }
    if gpus < smallest {
        return Err(PlanError::BudgetTooSmall { gpus, smallest });
    }
    if lengths.is_empty() {
        return Ok(Allocation { makespan: 0.0, degrees: Vec::new(), groups: Vec::new() });
    }
    let sorted = Sorted::new(lengths);
    let budget = Budget::new(gpus, max_workers, &degrees, lengths.len(), interference)?;
    let chain = budget.best(&sorted)?;
    let mut from = 0;
    let mut allocation = Allocation { makespan: chain.makespan, degrees: vec![], groups: vec![] };
    for (kind, end) in chain.steps {
        if end > from {
            allocation.degrees.push(budget.degrees[kind].gpus);
            allocation.groups.push(sorted.group(from, end));
            from = end;
        }
    }
    Ok(allocation)
}

/// Without those that are not faster than a smaller one.
fn useful(degrees: &[Degree]) -> Vec<Degree> {
    let mut sorted = degrees.to_vec();
    sorted.sort_unstable_by(|a, b| a.gpus.cmp(&b.gpus).then(a.token_time.total_cmp(&b.token_time)));
    let mut kept: Vec<Degree> = Vec::new();
    for degree in sorted {
        if kept.last().is_none_or(|last| degree.token_time < last.token_time) {
            kept.push(degree);
        }
    }
    kept
}

/// What may be bought.
struct Budget {
    /// Ascending; a larger one is faster. Those that the budget cannot hold are left out.
    degrees: Vec<Degree>,
    kinds: Vec<Kind>,
    /// GPUs of each degree, in multiples of their common divisor.
    prices: Vec<usize>,
    /// The budget, in the same.
    money: usize,
    workers: usize,
}

impl Budget {
    fn new(
        gpus: u64,
        max_workers: u64,
        degrees: &[Degree],
        groups: usize,
        interference: &Interference,
    ) -> Result<Self, PlanError> {
        let degrees: Vec<_> = degrees.iter().copied().filter(|d| d.gpus <= gpus).collect();
        let divisor = degrees.iter().map(|degree| degree.gpus).fold(0, gcd);
        let workers = usize::try_from(max_workers).unwrap_or(usize::MAX).min(groups);
        let largest = degrees.iter().map(|degree| degree.gpus).max().unwrap_or(0);
        // More than the largest degree for every worker is of no use.
        let gpus = gpus.min(largest.saturating_mul(workers as u64));
        let money = usize::try_from(gpus / divisor).map_err(|_| PlanError::TooLarge)?;
        if money >= CELLS {
            return Err(PlanError::TooLarge);
        }
        let kinds = degrees.iter().map(|d| Kind::new(d.token_time, interference)).collect();
        let prices = degrees.iter().map(|d| (d.gpus / divisor) as usize).collect();
        Ok(Self { degrees, kinds, prices, money, workers })
    }

    fn best(&self, sorted: &Sorted) -> Result<Chain, PlanError> {
        let fastest = self.kinds.len() - 1;
        let low = self.kinds[fastest].cost(1, sorted.lengths[0]);
        let all = Chain::new(vec![(fastest, sorted.len())], sorted, &self.kinds);
        if all.makespan.is_infinite() {
            return Err(PlanError::Overflow);
        }
        // Without the bound of workers one row does; what it finds bounds the rest.
        let free = least(low, all.clone(), |bound| {
            let reach = Reach::for_questions(self.money, sorted, &self.kinds, bound);
            self.probe(&reach, sorted, Self::by_gpus)
        });
        if free.steps.len() <= self.workers {
            return Ok(free);
        }
        if self.money.saturating_add(1).saturating_mul(self.workers) > CELLS {
            return Err(PlanError::TooLarge);
        }
        let bounded = least(free.makespan, all, |bound| {
            let questions = self.money.saturating_mul(self.workers);
            let reach = Reach::for_questions(questions, sorted, &self.kinds, bound);
            self.probe(&reach, sorted, Self::by_workers)
        });
        Ok(bounded)
    }

    fn probe(
        &self,
        reach: &Reach<'_>,
        sorted: &Sorted,
        cover: impl Fn(&Self, &Reach<'_>) -> Option<Vec<(usize, usize)>>,
    ) -> Probe {
        match cover(self, reach) {
            Some(steps) => Probe::Met(Chain::new(steps, sorted, &self.kinds)),
            None => Probe::Missed(reach.next()),
        }
    }

    /// The farthest position for each number of GPUs.
    fn by_gpus(&self, reach: &Reach<'_>) -> Option<Vec<(usize, usize)>> {
        let mut farthest: Vec<(u32, u32)> = vec![(0, 0); self.money + 1];
        for money in 1..=self.money {
            let best = self.extend(money, reach, |rest| farthest[rest].0 as usize);
            let Some((kind, end)) = best else { continue };
            farthest[money] = (end as u32, kind as u32);
            if end == reach.goal() {
                let mut steps = Vec::new();
                let mut left = money;
                while farthest[left].0 > 0 {
                    let (end, kind) = farthest[left];
                    steps.push((kind as usize, end as usize));
                    left -= self.prices[kind as usize];
                }
                steps.reverse();
                return Some(steps);
            }
        }
        None
    }

    /// The same for each number of workers, one row after the other.
    fn by_workers(&self, reach: &Reach<'_>) -> Option<Vec<(usize, usize)>> {
        let mut rows: Vec<Vec<u32>> = vec![vec![0; self.money + 1]];
        for worker in 0..self.workers {
            let last = &rows[worker];
            let mut row = last.clone();
            for (money, farthest) in row.iter_mut().enumerate() {
                let best = self.extend(money, reach, |rest| last[rest] as usize);
                let Some((kind, end)) = best else { continue };
                if end == reach.goal() {
                    let mut steps = vec![(kind, end)];
                    self.trace(&rows, money - self.prices[kind], reach, &mut steps);
                    return Some(steps);
                }
                *farthest = (*farthest).max(end as u32);
            }
            if row == *last {
                return None;
            }
            rows.push(row);
        }
        None
    }

    fn trace(
        &self,
        rows: &[Vec<u32>],
        mut left: usize,
        reach: &Reach<'_>,
        steps: &mut Vec<(usize, usize)>,
    ) {
        for pair in rows.windows(2).rev() {
            let end = pair[1][left];
            if end == pair[0][left] {
                continue;
            }
            let before = |rest: usize| pair[0][rest] as usize;
            if let Some((kind, end)) = self.extend(left, reach, before) {
                steps.push((kind, end));
                left -= self.prices[kind];
            }
        }
        steps.reverse();
    }

    /// The farthest that one more worker gets, bought with the last of `money`.
    fn extend(
        &self,
        money: usize,
        reach: &Reach<'_>,
        position: impl Fn(usize) -> usize,
    ) -> Option<(usize, usize)> {
        let affordable = self.prices.partition_point(|&price| price <= money);
        let ends = (0..affordable)
            .map(|kind| (kind, reach.end(kind, position(money - self.prices[kind]))));
        // The cheapest of the best.
        ends.rev().max_by_key(|&(_, end)| end)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
