//! Placement on given workers.

use super::coarse::{Coarse, Needs};
use super::fleet::Fleet;
use super::interference::Interference;
use super::reach::{Reach, Sorted};
use super::search::{Chain, First, Probe, least};
use super::{MAX_KINDS, PlanError, combinations, layers};

/// Up to here every combination is looked at for every bound.
const FEW: usize = 1 << 18;
/// Up to here every combination is looked at where nothing else decides (256 MiB).
const MANY: usize = 1 << 26;
/// Combinations of the relaxation, for every bound.
const COARSE: usize = 1 << 12;
/// Combinations of the relaxation where it has to save looking at many more.
const FINE: usize = 1 << 18;
/// Combinations in a layer while a good plan is sought.
const NARROW: usize = 128;
/// Combinations in a layer before every combination is looked at.
const MEDIUM: usize = 1 << 10;
/// Combinations in a layer where nothing else decides.
const WIDE: usize = 1 << 15;

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
        return Ok(least(low, all, First::Low, |bound| exact(fleet, sorted, size, bound)).0);
    }
    let coarse = Coarse::new(fleet, COARSE);
    let (relaxed, _) = least(low, all.clone(), First::Low, |bound| {
        let reach = Reach::tabulated(sorted, &fleet.kinds, bound);
        let needs = coarse.needs(&reach);
        if needs.from(needs.full()) == 0 {
            Probe::Met(Chain { steps: Vec::new(), makespan: bound })
        } else {
            Probe::Missed(reach.next())
        }
    });
    let low = relaxed.makespan;
    let wide = |relaxation: &Coarse, width: usize, bound: f64| {
        let reach = Reach::tabulated(sorted, &fleet.kinds, bound);
        match layers::cover(fleet, &reach, &relaxation.needs(&reach), width) {
            layers::Outcome::Covered(steps) => Probe::Met(Chain::new(steps, sorted, &fleet.kinds)),
            layers::Outcome::Impossible => Probe::Missed(reach.next()),
            layers::Outcome::Undecided => Probe::Undecided,
        }
    };
    let (good, _) = least(low, all, First::Low, |bound| wide(&coarse, NARROW, bound));
    let fine = Coarse::new(fleet, FINE);
    let (best, proven) = least(low, good, First::High, |bound| {
        let width = if size > MANY { WIDE } else { MEDIUM };
        match wide(&fine, width, bound) {
            Probe::Undecided if size <= MANY => {
                let reach = Reach::tabulated(sorted, &fleet.kinds, bound);
                decide(fleet, sorted, &reach, &fine.needs(&reach))
            }
            decided => decided,
        }
    });
    if proven { Ok(best) } else { Err(PlanError::TooLarge) }
}

/// Looks at every combination, of which there are `size`.
fn exact(fleet: &Fleet, sorted: &Sorted, size: usize, bound: f64) -> Probe {
    let reach = Reach::for_questions(size, sorted, &fleet.kinds, bound);
    decide(fleet, sorted, &reach, &Needs::nothing(fleet.kinds.len()))
}

fn decide(fleet: &Fleet, sorted: &Sorted, reach: &Reach<'_>, needs: &Needs) -> Probe {
    match combinations::cover(fleet, reach, needs) {
        Some(steps) => Probe::Met(Chain::new(steps, sorted, &fleet.kinds)),
        None => Probe::Missed(reach.next()),
    }
}
