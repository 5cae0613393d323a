//! The greedy by marginal gain, where it is exact.

use std::collections::BinaryHeap;

use super::Arrangement;
use super::task::{Choice, Task};
use crate::gain::Gain;

/// The least sum of durations within `units`, by giving one unit after the other to
/// the task that gains most from it. `None` unless that is exact: every task has
/// contiguous units and convex durations (units {1, 2, 4} break it), and the least
/// units of all fit. Ties go to the earlier task.
pub fn marginal_gains(tasks: &[Task], units: u64) -> Option<Arrangement> {
    if !tasks.iter().all(|task| is_convex(task.choices())) {
        return None;
    }
    let needed = tasks.iter().map(|task| task.smallest().units).fold(0, u64::saturating_add);
    let mut left = units.checked_sub(needed)?;
    let mut chosen = vec![0; tasks.len()];
    let mut gains: BinaryHeap<Gain> =
        (0..tasks.len()).filter_map(|task| next_unit(tasks, task, 0)).collect();
    while left > 0 {
        let Some(gain) = gains.pop() else { break };
        left -= 1;
        chosen[gain.index] = gain.to;
        gains.extend(next_unit(tasks, gain.index, gain.to));
    }
    let picked = || tasks.iter().zip(&chosen).map(|(task, &at)| task.choices()[at]);
    Some(Arrangement {
        total: picked().fold(0.0, |sum, choice| sum + choice.duration),
        units: picked().map(|choice| choice.units).collect(),
    })
}

fn is_convex(choices: &[Choice]) -> bool {
    choices.windows(2).all(|pair| pair[1].units == pair[0].units + 1)
        && choices.windows(3).all(|three| {
            three[0].duration - three[1].duration >= three[1].duration - three[2].duration
        })
}

/// Seconds that a task gains from its next unit.
fn next_unit(tasks: &[Task], index: usize, at: usize) -> Option<Gain> {
    let pair = tasks[index].choices().get(at..at + 2)?;
    Some(Gain { worth: pair[0].duration - pair[1].duration, index, to: at + 1 })
}
