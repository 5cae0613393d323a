//! ARL-Tangram's Algorithms 1 and 2, as the text means them.
//!
//! Of the pseudo-code are mended: Algorithm 2 pops the heap that it copied from, reads
//! `C[0]` when nothing remains, gives the first of the rest `d` as units although units
//! may be {2, 4, 8}, and lets each completion admit one action however many cores it
//! frees. Here the copy is popped, an empty rest costs nothing, `d` counts entries of the
//! units, and an action starts as soon as its units are free.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::line::{Given, Line, Waiting};
use super::room::Room;
use super::work::{Choice, Work};
use crate::arrange::{self, CoreTable, Task};
use crate::resources::Units;
use crate::time::Time;

/// What starts now: the longest prefix of the line that fits with least units, less its
/// last ones while that lowers the approximated sum of completion times. The line is
/// first come first served here: `waiting` in order of submission, all of it. `depth`
/// entries of the units of the first that is left are tried; `None`: all.
pub fn tangram(line: &Line, depth: Option<usize>) -> Vec<Given> {
    let rooms = rooms(line);
    let candidates = rooms.len() - 1;
    let least = |index: usize| Given { index, units: line.waiting[index].work.least().units };
    // Neither elastic nor known: with least units, at once.
    if line.waiting[..candidates].iter().all(|waiting| waiting.work.choices().len() == 1) {
        return (0..candidates).map(least).collect();
    }
    let tasks = line.waiting[..candidates].iter().map(|waiting| task(waiting.work));
    let Some(tasks) = tasks.collect::<Option<Vec<Task>>>() else { return Vec::new() };
    let table = CoreTable::new(&tasks, rooms[0].free() as usize + candidates);
    let plan = Plan { line, depth: depth.unwrap_or(usize::MAX).max(1), rooms, table };
    // Where nothing runs, something must start: nothing else would ever change.
    let fewest = usize::from(line.running.is_empty()).min(candidates);
    let mut best: Option<(f64, Vec<Choice>)> = None;
    for prefix in (fewest..=candidates).rev() {
        let Some((cost, chosen)) = plan.objective(prefix) else { continue };
        if best.as_ref().is_some_and(|(least, _)| cost >= *least) {
            break;
        }
        best = Some((cost, chosen));
    }
    let chosen = best.map_or_else(Vec::new, |(_, chosen)| chosen);
    let given = |(index, choice): (usize, Choice)| Given { index, units: choice.units };
    chosen.into_iter().enumerate().map(given).collect()
}

/// What is left for each prefix of the line once its shares are taken, as far as the
/// prefix fits with its least units.
fn rooms(line: &Line) -> Vec<Room> {
    let mut full = Room::of(line);
    let mut rooms = vec![full];
    for waiting in line.waiting {
        let least = waiting.work.least().units;
        if !full.fits(least) {
            break;
        }
        full.take(least);
        let mut room = rooms[rooms.len() - 1];
        if least.is_share() {
            room.take(least);
        }
        rooms.push(room);
    }
    rooms
}

/// A share takes no core of its own, and a task at least one: every task counts one unit
/// more than it takes, and a prefix has one more for each of its tasks.
fn task(work: &Work) -> Option<Task> {
    let choices = work
        .choices()
        .iter()
        .map(|choice| arrange::Choice { units: 1 + whole(choice.units), duration: choice.seconds });
    Task::new(choices).ok()
}

fn whole(units: Units) -> u64 {
    if units.is_share() { 0 } else { u64::from(units.ceil()) }
}

struct Plan<'a> {
    line: &'a Line<'a>,
    depth: usize,
    /// For each prefix.
    rooms: Vec<Room>,
    /// Answers every prefix.
    table: CoreTable<'a>,
}

impl Plan<'_> {
    /// Algorithm 2's `getApproximatedObjective`: the exact durations of a prefix that
    /// starts now and the approximated completion times of the rest.
    fn objective(&self, prefix: usize) -> Option<(f64, Vec<Choice>)> {
        let free = self.rooms[prefix].free() as usize;
        let arrangement = self.table.arrangement(prefix, free + prefix)?;
        let chosen = self.line.waiting.iter().zip(arrangement.units).map(|(waiting, units)| {
            waiting.work.choices().iter().find(|c| 1 + whole(c.units) == units).copied()
        });
        let chosen: Vec<Choice> = chosen.collect::<Option<_>>()?;
        let mut room = Room::of(self.line);
        let seconds = |at: Time| at.since(self.line.now).as_secs_f64().to_bits();
        let mut ends: BinaryHeap<Reverse<(u64, Units)>> =
            self.line.running.iter().map(|r| Reverse((seconds(r.ends), r.units))).collect();
        for choice in &chosen {
            room.take(choice.units);
            ends.push(Reverse((choice.seconds.to_bits(), choice.units)));
        }
        let rest = self.estimate(&self.line.waiting[prefix..], room, &ends)?;
        Some((arrangement.total + rest, chosen))
    }

    /// Algorithm 2's `estimate`: the rest one after the other, each as soon as its least
    /// units are free; the first of them with each of its first units.
    fn estimate(
        &self,
        rest: &[Waiting],
        room: Room,
        ends: &BinaryHeap<Reverse<(u64, Units)>>,
    ) -> Option<f64> {
        let Some((first, others)) = rest.split_first() else { return Some(0.0) };
        let tried = first.work.choices().iter().take(self.depth);
        let sums = tried.filter_map(|choice| {
            let (mut room, mut ends, mut now) = (room, ends.clone(), 0.0_f64);
            let choices = others.iter().map(|waiting| waiting.work.least());
            std::iter::once(*choice).chain(choices).try_fold(0.0, |sum, choice| {
                while !room.fits(choice.units) {
                    let Reverse((end, units)) = ends.pop()?;
                    now = now.max(f64::from_bits(end));
                    room.give_back(units);
                }
                room.take(choice.units);
                let end = now + choice.seconds;
                ends.push(Reverse((end.to_bits(), choice.units)));
                Some(sum + end)
            })
        });
        sums.reduce(f64::min)
    }
}
