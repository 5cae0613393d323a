//! All that fit, started at once.

use std::collections::BinaryHeap;

use super::line::{Line, Waiting};
use super::room::Room;
use crate::arrange::{self, CoreTable, Task};
use crate::gain::Gain;
use crate::resources::Units;

/// Free cores times actions, up to which the arrangement is exact.
const EXACT: usize = 16_384;

/// Units for the first of those that wait, as many as fit with their least units, such that
/// the durations sum to the least: exactly where the instance is small and no shares are in
/// it, else by the best gain for each core.
pub(super) fn together(line: &Line, room: Room) -> Vec<Units> {
    let mut full = room;
    let fitting = line.waiting.iter().take_while(|waiting| {
        let least = waiting.work.least().units;
        let fits = full.fits(least);
        if fits {
            full.take(least);
        }
        fits
    });
    let first = &line.waiting[..fitting.count()];
    exactly(first, room.free() as usize).unwrap_or_else(|| by_gain(first, room))
}

fn exactly(waiting: &[Waiting], free: usize) -> Option<Vec<Units>> {
    if waiting.len() * free > EXACT {
        return None;
    }
    let tasks = waiting.iter().map(|waiting| {
        let choices = waiting.work.choices();
        if choices[0].units.is_share() {
            return None;
        }
        Task::new(choices.iter().map(|choice| arrange::Choice {
            units: u64::from(choice.units.ceil()),
            duration: choice.seconds,
        }))
        .ok()
    });
    let tasks: Vec<Task> = tasks.collect::<Option<_>>()?;
    let arrangement = CoreTable::new(&tasks, free).arrangement(tasks.len(), free)?;
    Some(arrangement.units.into_iter().map(|units| Units::cores(units as u16)).collect())
}

/// All of them fit with their least units.
fn by_gain(waiting: &[Waiting], mut room: Room) -> Vec<Units> {
    for waiting in waiting {
        room.take(waiting.work.least().units);
    }
    let mut chosen = vec![0; waiting.len()];
    let mut gains: BinaryHeap<Gain> =
        (0..chosen.len()).filter_map(|index| best_step(waiting, index, 0)).collect();
    while let Some(gain) = gains.pop() {
        let choices = waiting[gain.index].work.choices();
        room.give_back(choices[chosen[gain.index]].units);
        if room.fits(choices[gain.to].units) {
            chosen[gain.index] = gain.to;
            gains.extend(best_step(waiting, gain.index, gain.to));
        }
        room.take(choices[chosen[gain.index]].units);
    }
    chosen.iter().zip(waiting).map(|(&at, waiting)| waiting.work.choices()[at].units).collect()
}

/// The best step up of one action: seconds gained for each core.
fn best_step(waiting: &[Waiting], index: usize, at: usize) -> Option<Gain> {
    let choices = waiting[index].work.choices();
    let from = choices[at];
    let steps = (at + 1..choices.len()).map(|to| Gain {
        worth: (from.seconds - choices[to].seconds)
            / (choices[to].units.as_f64() - from.units.as_f64()),
        index,
        to,
    });
    steps.reduce(|best, step| if step.worth > best.worth { step } else { best })
}
