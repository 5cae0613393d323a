//! Exact arrangement where a table would be too large: states that a Lagrangian
//! relaxation proves useless are dropped.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::room::Room;
use super::task::Task;
use super::{ArrangeError, Arrangement};

/// States that are kept at most, all tasks together (256 MiB).
const STATES: usize = 1 << 24;

/// How one state was reached.
#[derive(Clone, Copy)]
struct Origin {
    before: u32,
    choice: u32,
}

/// The least sum of durations on `room`.
pub(super) fn arrange<R: Room>(
    tasks: &[Task],
    room: &R,
    infeasible: impl Fn() -> ArrangeError,
) -> Result<Arrangement, ArrangeError> {
    let upgrades = upgrades(tasks);
    let (good, price) = greedy(tasks, room, &upgrades).ok_or_else(infeasible)?;
    let bound = Bound::new(tasks, price, total(tasks, &good));
    // What the relaxation leaves to gain is rounding.
    if !bound.may_improve(0, 0.0, R::units(room.full())) {
        return Ok(arrangement(tasks, &good));
    }
    let mut origins: Vec<Origin> = vec![Origin { before: 0, choice: 0 }];
    let mut layer = vec![(room.full(), 0.0, 0_u32)];
    for (i, task) in tasks.iter().enumerate() {
        // What is left -> least total, state before, choice.
        let mut next: HashMap<R::Left, (f64, u32, u32)> = HashMap::new();
        for &(left, sum, state) in &layer {
            for (choice, option) in task.choices().iter().enumerate() {
                let Some(rest) = R::take(left, option.units) else { continue };
                let sum = sum + option.duration;
                if !bound.may_improve(i + 1, sum, R::units(rest)) {
                    continue;
                }
                if origins.len() + next.len() > STATES {
                    return Err(ArrangeError::TooLarge);
                }
                let best = next.entry(rest).or_insert((f64::INFINITY, 0, 0));
                if sum < best.0 {
                    *best = (sum, state, choice as u32);
                }
            }
        }
        layer.clear();
        let mut reached: Vec<_> = next.into_iter().collect();
        reached.sort_unstable_by_key(|&(left, _)| Reverse(left));
        let mut least = f64::INFINITY;
        for (left, (sum, before, choice)) in reached {
            // More units left for less time: this one is of no use.
            if R::TOTAL_ORDER && sum >= least {
                continue;
            }
            least = least.min(sum);
            layer.push((left, sum, origins.len() as u32));
            origins.push(Origin { before, choice });
        }
    }
    let best = layer.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((_, sum, mut state)) = best.filter(|best| best.1 < total(tasks, &good)) else {
        return Ok(arrangement(tasks, &good));
    };
    let mut units = vec![0; tasks.len()];
    for (task, units) in tasks.iter().zip(&mut units).rev() {
        let origin = origins[state as usize];
        *units = task.choices()[origin.choice as usize].units;
        state = origin.before;
    }
    Ok(Arrangement { total: sum, units })
}

/// A step on the lower convex hull of a task's choices.
struct Upgrade {
    task: usize,
    from: usize,
    to: usize,
    /// Seconds gained by each unit.
    rate: f64,
}

/// All of them, the best rate first.
fn upgrades(tasks: &[Task]) -> Vec<Upgrade> {
    let mut all = Vec::new();
    for (task, choices) in tasks.iter().map(Task::choices).enumerate() {
        let rate = |from: usize, to: usize| {
            (choices[from].duration - choices[to].duration)
                / (choices[to].units - choices[from].units) as f64
        };
        let mut hull = vec![0];
        for to in 1..choices.len() {
            while hull.len() > 1 {
                let (a, b) = (hull[hull.len() - 2], hull[hull.len() - 1]);
                if rate(b, to) < rate(a, b) {
                    break;
                }
                hull.pop();
            }
            hull.push(to);
        }
        all.extend(hull.windows(2).map(|pair| Upgrade {
            task,
            from: pair[0],
            to: pair[1],
            rate: rate(pair[0], pair[1]),
        }));
    }
    all.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    all
}

/// A feasible choice for each task, and the rate at which units ran out (0 when
/// they did not). `None` where the least units do not fit.
fn greedy<R: Room>(tasks: &[Task], room: &R, upgrades: &[Upgrade]) -> Option<(Vec<usize>, f64)> {
    let mut chosen = vec![0; tasks.len()];
    if !fits(tasks, room, &chosen) {
        return None;
    }
    let spare = |chosen: &[usize]| {
        let used = tasks.iter().zip(chosen).map(|(task, &at)| task.choices()[at].units);
        R::units(room.full()).saturating_sub(used.fold(0, u64::saturating_add))
    };
    let mut left = spare(&chosen);
    let mut price = 0.0;
    for upgrade in upgrades {
        let choices = tasks[upgrade.task].choices();
        let more = choices[upgrade.to].units - choices[upgrade.from].units;
        if chosen[upgrade.task] == upgrade.from && more <= left {
            chosen[upgrade.task] = upgrade.to;
            // Where units are interchangeable their sum is all that counts.
            if R::TOTAL_ORDER || fits(tasks, room, &chosen) {
                left -= more;
                continue;
            }
            chosen[upgrade.task] = upgrade.from;
        }
        if price == 0.0 {
            price = upgrade.rate;
        }
    }
    Some((chosen, price))
}

fn fits<R: Room>(tasks: &[Task], room: &R, chosen: &[usize]) -> bool {
    let mut left = Some(room.full());
    for (task, &at) in tasks.iter().zip(chosen) {
        left = left.and_then(|left| R::take(left, task.choices()[at].units));
    }
    left.is_some()
}

fn total(tasks: &[Task], chosen: &[usize]) -> f64 {
    tasks.iter().zip(chosen).fold(0.0, |sum, (task, &at)| sum + task.choices()[at].duration)
}

fn arrangement(tasks: &[Task], chosen: &[usize]) -> Arrangement {
    let units = tasks.iter().zip(chosen).map(|(task, &at)| task.choices()[at].units).collect();
    Arrangement { total: total(tasks, chosen), units }
}

/// What the tasks that are still to come cost at least, when units have a price.
struct Bound {
    price: f64,
    /// For the tasks from i on: least duration plus price of the units.
    rest: Vec<f64>,
    /// For the tasks from i on: least units.
    units: Vec<u64>,
    /// What is to be beaten, and rounding.
    limit: f64,
}

impl Bound {
    fn new(tasks: &[Task], price: f64, known: f64) -> Self {
        let mut rest = vec![0.0; tasks.len() + 1];
        let mut units = vec![0_u64; tasks.len() + 1];
        for (i, task) in tasks.iter().enumerate().rev() {
            let costs = task.choices().iter().map(|c| c.duration + price * c.units as f64);
            rest[i] = rest[i + 1] + costs.fold(f64::INFINITY, f64::min);
            units[i] = units[i + 1].saturating_add(task.smallest().units);
        }
        let rounding = 1e-12 * (known.abs() + rest[0].abs());
        Self { price, rest, units, limit: known - rounding }
    }

    fn may_improve(&self, from: usize, sum: f64, left: u64) -> bool {
        self.units[from] <= left && sum + self.rest[from] - self.price * left as f64 <= self.limit
    }
}
