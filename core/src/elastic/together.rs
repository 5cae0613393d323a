//! All that wait, started at once.

use std::collections::BinaryHeap;

use super::line::Line;
use super::room::Room;
use crate::arrange::{self, CoreTable, Task};
use crate::gain::Gain;
use crate::resources::Units;

/// Free cores times actions, up to which the arrangement is exact.
const EXACT: usize = 16_384;

/// Units for every waiting action such that the durations sum to the least: exactly
/// where the instance is small and no shares are in it, else by the best gain for each
/// core. `None` where not all fit.
pub(super) fn together(line: &Line, room: Room) -> Option<Vec<Units>> {
    let free = room.free() as usize;
    if line.beyond > 0 {
        return None;
    }
    exactly(line, free).or_else(|| by_gain(line, room))
}

fn exactly(line: &Line, free: usize) -> Option<Vec<Units>> {
    if line.waiting.len() * free > EXACT {
        return None;
    }
    let tasks = line.waiting.iter().map(|waiting| {
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

fn by_gain(line: &Line, mut room: Room) -> Option<Vec<Units>> {
    for waiting in line.waiting {
        let least = waiting.work.least().units;
        if !room.fits(least) {
            return None;
        }
        room.take(least);
    }
    let mut chosen = vec![0; line.waiting.len()];
    let mut gains: BinaryHeap<Gain> =
        (0..chosen.len()).filter_map(|index| best_step(line, index, 0)).collect();
    while let Some(gain) = gains.pop() {
        let choices = line.waiting[gain.index].work.choices();
        room.give_back(choices[chosen[gain.index]].units);
        if room.fits(choices[gain.to].units) {
            chosen[gain.index] = gain.to;
            gains.extend(best_step(line, gain.index, gain.to));
        }
        room.take(choices[chosen[gain.index]].units);
    }
    Some(chosen.iter().zip(line.waiting).map(|(&at, w)| w.work.choices()[at].units).collect())
}

/// The best step up of one action: seconds gained for each core.
fn best_step(line: &Line, index: usize, at: usize) -> Option<Gain> {
    let choices = line.waiting[index].work.choices();
    let from = choices[at];
    let steps = (at + 1..choices.len()).map(|to| Gain {
        worth: (from.seconds - choices[to].seconds)
            / (choices[to].units.as_f64() - from.units.as_f64()),
        index,
        to,
    });
    steps.reduce(|best, step| if step.worth > best.worth { step } else { best })
}
