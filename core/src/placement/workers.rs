//! Placement on given workers.

use super::classes::Classes;
use super::fleet::Fleet;
use super::interference::Interference;
use super::prices::{Market, Prices, Verdict};
use super::reach::{Reach, Sorted};
use super::search::{Chain, First, Found, Probe, least};
use super::{MAX_KINDS, PlanError, combinations, fleet, layers};

/// Up to here every combination is looked at for every bound.
const FEW: usize = 1 << 18;
/// Up to here every combination is looked at where nothing else decides (256 MiB).
const MANY: usize = 1 << 26;
/// Combinations in a layer, from a plan that is good to one that is proven.
const WIDTHS: [usize; 4] = [1 << 7, 1 << 11, 1 << 14, 1 << 17];
/// Groups that are tried before no more is undertaken: tens of seconds.
const MOST_WORK: u64 = 1 << 28;

/// Which worker takes which trajectories.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Seconds until the slowest group ends: exactly one product of the inputs.
    pub makespan: f64,
    /// For each worker, indices into the lengths; may be empty.
    pub groups: Vec<Vec<usize>>,
}

/// The exact minimum of the makespan over every assignment of trajectories to
/// workers. `lengths` are tokens (not negative, finite), `token_times` the seconds
/// for a token of each worker (above 0, finite).
///
/// Time: O(n log n) for the sorting, then about 30 probes of O(m log n) for equal
/// workers, else of one step for each combination of used workers.
pub fn place(
    lengths: &[f64],
    token_times: &[f64],
    interference: &Interference,
) -> Result<Placement, PlanError> {
    if token_times.is_empty() {
        return Err(PlanError::NoWorker);
    }
    let sorted = Sorted::new(lengths);
    let fleet = Fleet::new(token_times, lengths.len(), interference);
    if fleet.kinds.len() > MAX_KINDS {
        return Err(PlanError::TooManyKinds { got: fleet.kinds.len() });
    }
    let mut groups = vec![Vec::new(); token_times.len()];
    if lengths.is_empty() {
        return Ok(Placement { makespan: 0.0, groups });
    }
    let chain = best(&fleet, &sorted)?;
    let mut free = vec![true; token_times.len()];
    let mut from = 0;
    for &(kind, end) in &chain.steps {
        let worker = (0..free.len())
            .find(|&i| free[i] && token_times[i].total_cmp(&fleet.token_times[kind]).is_eq());
        if let Some(worker) = worker {
            free[worker] = false;
            groups[worker] = sorted.group(from, end);
        }
        from = end;
    }
    Ok(Placement { makespan: chain.makespan, groups })
}

fn best(fleet: &Fleet, sorted: &Sorted) -> Result<Chain, PlanError> {
    // The longest trajectory has to run somewhere; one worker could run them all.
    let low = fleet.kinds[0].cost(1, sorted.lengths[0]);
    let all = Chain::new(vec![(0, sorted.len())], sorted, &fleet.kinds);
    if all.makespan.is_infinite() {
        return Err(PlanError::Overflow);
    }
    let size = fleet.combinations().unwrap_or(usize::MAX);
    if size <= FEW {
        return Ok(least(low, all, |bound| {
            let reach = Reach::for_questions(size, sorted, &fleet.kinds, bound);
            match combinations::cover(&fleet.counts, &reach, &Prices::none()) {
                Some(steps) => met(steps, fleet, sorted),
                None => Probe::Missed(reach.next()),
            }
        }));
    }
    by_prices(fleet, sorted, Found { best: all, low })
}

/// A good plan first, then wider layers until nothing better can exist.
pub(super) fn by_prices(
    fleet: &Fleet,
    sorted: &Sorted,
    mut found: Found,
) -> Result<Chain, PlanError> {
    let mut market = Market::new(fleet.counts.len());
    let mut work = 0;
    for (i, width) in WIDTHS.into_iter().enumerate() {
        let first = if i == 0 { First::Low } else { First::High };
        found = found.search(first, |bound| {
            let mut reach = Reach::tabulated(sorted, &fleet.kinds, bound);
            let classes = Classes::merge(&fleet.counts, &mut reach);
            let counts = classes.counts();
            let steps = match market.judge(&reach, &classes) {
                Verdict::Impossible(_) => None,
                Verdict::Covered(steps) => Some(steps),
                Verdict::Open(_) if work > MOST_WORK => return Probe::Undecided(reach.next()),
                Verdict::Open(prices) => {
                    match layers::cover(counts, &reach, &prices, width, &mut work) {
                        layers::Outcome::Covered(steps) => Some(steps),
                        layers::Outcome::Impossible => None,
                        layers::Outcome::Undecided if i + 1 < WIDTHS.len() || many(counts) => {
                            return Probe::Undecided(reach.next());
                        }
                        layers::Outcome::Undecided => combinations::cover(counts, &reach, &prices),
                    }
                }
            };
            match steps {
                Some(steps) => met(classes.steps(steps), fleet, sorted),
                None => Probe::Missed(reach.next()),
            }
        });
        if found.is_proven() {
            return Ok(found.best);
        }
    }
    Err(PlanError::TooLarge)
}

/// Too many combinations to look at each.
fn many(counts: &[usize]) -> bool {
    fleet::combinations(counts).is_none_or(|size| size > MANY)
}

fn met(steps: Vec<(usize, usize)>, fleet: &Fleet, sorted: &Sorted) -> Probe {
    Probe::Met(Chain::new(steps, sorted, &fleet.kinds))
}
