//! Cores that the first of a line cannot use yet.

use super::line::{Given, Line};
use super::room::Room;
use super::work::seconds;
use crate::resources::Units;
use crate::time::Time;

/// How far behind the first is looked.
const REACH: usize = 32;

/// Where even the least units of the first that waits do not fit, starts from behind it
/// what ends before they will (EASY backfilling with one reservation). With durations
/// that hold, the first does not start later for it.
pub(super) fn backfill(line: &Line, starts: &mut Vec<Given>) {
    let mut room = Room::of(line);
    let mut ends: Vec<(Time, Units)> = line.running.iter().map(|r| (r.ends, r.units)).collect();
    let mut started = vec![false; line.waiting.len()];
    for given in starts.iter() {
        room.take(given.units);
        started[given.index] = true;
        let choices = line.waiting[given.index].work.choices();
        if let Some(choice) = choices.iter().find(|choice| choice.units == given.units) {
            ends.push((line.now + seconds(choice.seconds), given.units));
        }
    }
    let Some(first) = started.iter().position(|started| !started) else { return };
    let needed = line.waiting[first].work.least().units;
    if room.fits(needed) || room.free() == 0 {
        return;
    }
    let Some(reserved) = fits_at(room, ends, needed) else { return };
    let behind = (first + 1..line.waiting.len()).filter(|index| !started[*index]).take(REACH);
    for index in behind {
        let in_time = line.waiting[index].work.choices().iter().find(|choice| {
            room.fits(choice.units) && line.now + seconds(choice.seconds) <= reserved
        });
        if let Some(choice) = in_time {
            room.take(choice.units);
            starts.push(Given { index, units: choice.units });
        }
    }
}

fn fits_at(mut room: Room, mut ends: Vec<(Time, Units)>, units: Units) -> Option<Time> {
    ends.sort_unstable();
    ends.into_iter().find_map(|(at, freed)| {
        room.give_back(freed);
        room.fits(units).then_some(at)
    })
}
