//! ARL-Tangram's Algorithms 1 and 2, as the text means them.
//!
//! Of the pseudo-code are mended: Algorithm 2 pops the heap that it copied from, reads
//! `C[0]` when nothing remains, gives the first of the rest `d` as units although units
//! may be {2, 4, 8}, and lets each completion admit one action however many cores it
//! frees. Here the copy is popped, an empty rest costs nothing, `d` counts entries of the
//! units, and an action starts as soon as its units are free.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};

use super::chunk_line::{ChunkLine, ChunkPool};
use super::line::{Given, Line};
use super::room::Room;
use super::work::{Choice, Work};
use crate::arrange::{self, ChunkTable, CoreTable, Task};
use crate::resources::Units;
use crate::time::Time;

#[cfg(test)]
mod tests;

/// Cells of a table, at most: beyond, fewer candidates are looked at.
const CELLS: usize = 1 << 22;

/// What starts now: the longest prefix of the line that fits with least units, less its
/// last ones while that lowers the approximated sum of completion times. The line is
/// first come first served here: `waiting` in order of submission, all of it. `depth`
/// entries of the units of the first that is left are tried; `None`: all.
pub fn tangram(line: &Line, depth: Option<usize>) -> Vec<Given> {
    let mut rooms = rooms(line);
    let choices: Vec<&[Choice]> =
        line.waiting.iter().map(|waiting| waiting.work.choices()).collect();
    // More units than all of them can use are of no use.
    let most = choices[..rooms.len() - 1].iter().map(|c| 1 + whole(c[c.len() - 1].units));
    let free = u64::from(rooms[0].free()).min(most.sum()) as usize;
    while rooms.len() > 2 && rooms.len() * (free + rooms.len()) > CELLS {
        rooms.truncate(rooms.len() / 2 + 1);
    }
    let candidates = rooms.len() - 1;
    // Neither elastic nor known: with least units, at once.
    if choices[..candidates].iter().all(|choices| choices.len() == 1) {
        return given(choices[..candidates].iter().map(|choices| choices[0]));
    }
    let tasks = line.waiting[..candidates].iter().map(|waiting| core_task(waiting.work));
    let Some(tasks) = tasks.collect::<Option<Vec<Task>>>() else { return Vec::new() };
    let table = CoreTable::new(&tasks, free + candidates);
    let running = line.running.iter().map(|running| (running.ends, running.units));
    let plan = Plan {
        room: rooms[0],
        ends: ends(line.now, running),
        waiting: &choices,
        least: least(&choices),
        depth: depth.unwrap_or(usize::MAX).max(1),
    };
    plan.evict(candidates, |prefix| {
        let arrangement = table.arrangement(prefix, rooms[prefix].free() as usize + prefix)?;
        let chosen = choices.iter().zip(arrangement.units).map(|(choices, units)| {
            choices.iter().find(|choice| 1 + whole(choice.units) == units).copied()
        });
        chosen.collect()
    })
}

/// The same on chunks of GPUs. A restore is part of a duration where more actions of a
/// service precede than chunks hold it idle; the rest are expected on a resident chunk where
/// there is one at all, and GPUs that end are expected to be aligned.
pub fn tangram_on_chunks<P: ChunkPool>(line: &ChunkLine<P>, depth: Option<usize>) -> Vec<Given> {
    let idle = line.pool.idle();
    let mut left = Some(idle);
    let fitting = line.waiting.iter().take_while(|waiting| {
        left = left.and_then(|left| left.take(u64::from(waiting.work.least().units.ceil())));
        left.is_some()
    });
    let candidates = fitting.count();
    let choices = with_restores(line, candidates);
    let choices: Vec<&[Choice]> = choices.iter().map(Vec::as_slice).collect();
    let tasks = choices[..candidates].iter().map(|choices| {
        let choices = choices.iter().map(|choice| arrange::Choice {
            units: u64::from(choice.units.ceil()),
            duration: choice.seconds,
        });
        Task::new(choices).ok()
    });
    let Some(tasks) = tasks.collect::<Option<Vec<Task>>>() else { return Vec::new() };
    let table = ChunkTable::new(&tasks, idle);
    let chunk = |&(ends, chunk): &(Time, P::Chunk)| (ends, gpus(P::size(chunk)));
    let ends = ends(line.now, line.running.iter().map(chunk));
    let mut room = Room::empty(line.pool.gpus());
    for Reverse((_, units)) in &ends {
        room.take(*units);
    }
    let depth = depth.unwrap_or(usize::MAX).max(1);
    let plan = Plan { room, ends, waiting: &choices, least: least(&choices), depth };
    plan.evict(candidates, |prefix| {
        let arrangement = table.arrangement(prefix)?;
        let chosen = choices.iter().zip(arrangement.units).map(|(choices, units)| {
            choices.iter().find(|choice| u64::from(choice.units.ceil()) == units).copied()
        });
        chosen.collect()
    })
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
fn core_task(work: &Work) -> Option<Task> {
    let choices = work
        .choices()
        .iter()
        .map(|choice| arrange::Choice { units: 1 + whole(choice.units), duration: choice.seconds });
    Task::new(choices).ok()
}

fn whole(units: Units) -> u64 {
    if units.is_share() { 0 } else { u64::from(units.ceil()) }
}

fn gpus(count: u64) -> Units {
    Units::cores(u16::try_from(count).unwrap_or(u16::MAX))
}

fn with_restores<P: ChunkPool>(line: &ChunkLine<P>, candidates: usize) -> Vec<Vec<Choice>> {
    // Of each service and degree: how many idle residents are left, and how many there are.
    let mut residents: HashMap<(usize, Units), (usize, usize)> = HashMap::new();
    let mut choices = Vec::with_capacity(line.waiting.len());
    for (place, waiting) in line.waiting.iter().enumerate() {
        let restored = waiting.work.choices().iter().map(|choice| {
            let gpus = u64::from(choice.units.ceil());
            let (idle, all) = residents
                .entry((waiting.demand.service, choice.units))
                .or_insert_with(|| line.pool.residents(waiting.demand.service, gpus));
            // The rest find one that is busy now.
            let resident = *idle > 0 || (*all > 0 && place >= candidates);
            *idle = idle.saturating_sub(1);
            let restore = if resident { 0.0 } else { waiting.demand.restore };
            Choice { seconds: choice.seconds + restore, ..*choice }
        });
        choices.push(restored.collect());
    }
    choices
}

fn given(choices: impl Iterator<Item = Choice>) -> Vec<Given> {
    choices.enumerate().map(|(index, choice)| Given { index, units: choice.units }).collect()
}

/// Seconds from now, and what becomes free. Seconds are never negative, so that their
/// bits are in their order.
type Ends = BinaryHeap<Reverse<(u64, Units)>>;

fn ends(now: Time, running: impl Iterator<Item = (Time, Units)>) -> Ends {
    running.map(|(end, units)| Reverse((end.since(now).as_secs_f64().to_bits(), units))).collect()
}

struct Plan<'a> {
    room: Room,
    ends: Ends,
    /// The choices of all that wait.
    waiting: &'a [&'a [Choice]],
    /// The first of each, side by side: an estimate goes over all of them.
    least: Vec<Choice>,
    depth: usize,
}

fn least(waiting: &[&[Choice]]) -> Vec<Choice> {
    waiting.iter().map(|choices| choices[0]).collect()
}

impl Plan<'_> {
    /// Algorithm 1's loop: the candidates, less the last ones while that is better.
    /// `arrange` gives each of a prefix its units for the least sum of durations.
    fn evict(
        &self,
        candidates: usize,
        arrange: impl Fn(usize) -> Option<Vec<Choice>>,
    ) -> Vec<Given> {
        // Where nothing runs, something must start: nothing else would ever change.
        let fewest = usize::from(self.ends.is_empty()).min(candidates);
        let mut best: Option<(f64, Vec<Choice>)> = None;
        for prefix in (fewest..=candidates).rev() {
            let Some(chosen) = arrange(prefix) else { continue };
            let limit = best.as_ref().map_or(f64::INFINITY, |(least, _)| *least);
            let Some(cost) = self.objective(&chosen, limit) else { break };
            best = Some((cost, chosen));
        }
        given(best.map_or_else(Vec::new, |(_, chosen)| chosen).into_iter())
    }

    /// Algorithm 2's `getApproximatedObjective`: the exact durations of a prefix that
    /// starts now and the approximated completion times of the rest. `None` from `limit` on.
    fn objective(&self, chosen: &[Choice], limit: f64) -> Option<f64> {
        let (mut room, mut ends) = (self.room, self.ends.clone());
        for choice in chosen {
            room.take(choice.units);
            ends.push(Reverse((choice.seconds.to_bits(), choice.units)));
        }
        let total = chosen.iter().map(|choice| choice.seconds).sum::<f64>();
        let rest = self.estimate(chosen.len(), room, &ends, limit - total)?;
        (total + rest < limit).then_some(total + rest)
    }

    /// Algorithm 2's `estimate`: the rest one after the other, each as soon as its least
    /// units are free; the first of them with each of its first units.
    fn estimate(&self, begun: usize, room: Room, ends: &Ends, limit: f64) -> Option<f64> {
        let Some(first) = self.waiting.get(begun) else { return Some(0.0) };
        let others = &self.least[begun + 1..];
        let mut least: Option<f64> = None;
        for choice in first.iter().take(self.depth) {
            let rest = std::iter::once(choice).chain(others);
            least = completions(rest, room, ends.clone(), least.unwrap_or(limit)).or(least);
        }
        least
    }
}

/// The sum of the completion times of actions that start one after the other, each as soon
/// as its units are free. `None` from `limit` on.
fn completions<'a>(
    actions: impl Iterator<Item = &'a Choice>,
    mut room: Room,
    mut ends: Ends,
    limit: f64,
) -> Option<f64> {
    let (mut now, mut sum) = (0.0_f64, 0.0);
    for &Choice { units, seconds } in actions {
        let end = loop {
            if room.fits(units) {
                let end = now + seconds;
                ends.push(Reverse((end.to_bits(), units)));
                break end;
            }
            let mut next = ends.peek_mut()?;
            let Reverse((freed_at, freed)) = *next;
            now = now.max(f64::from_bits(freed_at));
            room.give_back(freed);
            if room.fits(units) {
                // In the place of what ended: the heap is put in order once, not twice.
                let end = now + seconds;
                *next = Reverse((end.to_bits(), units));
                break end;
            }
            PeekMut::pop(next);
        };
        room.take(units);
        sum += end;
        if sum >= limit {
            return None;
        }
    }
    Some(sum)
}
