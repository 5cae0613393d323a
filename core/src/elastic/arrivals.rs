//! What will be submitted next, as far as the past tells.

use std::collections::VecDeque;
use std::time::Duration;

use super::chunk_line::Demand;
use super::work::{Work, seconds};
use crate::resources::Units;
use crate::time::Time;

/// Submissions that are remembered.
const REMEMBERED: usize = 64;
/// Submissions that are expected, at most.
const EXPECTED: usize = 96;
/// Submissions so near to each other are one batch: who sends many sends one by one.
const MOMENT: Duration = Duration::from_millis(50);
/// The future is looked into this many times as far as the line has a past.
const HORIZON: f64 = 2.0;

/// Trajectories that may come to a line and have not been there yet, as far as somebody
/// knows; where a pool has several lines, the part of one line.
#[derive(Debug, Clone, Copy)]
pub struct Newcomers {
    /// When the first trajectory began, here or not.
    pub first: Time,
    /// Trajectories that began since then, not counting those of that instant.
    pub began: f64,
    /// Trajectories that have begun and not come.
    pub to_come: f64,
}

/// The latest submissions to one line. What comes next is taken to be what came last,
/// mirrored in time: what came a second ago comes in a second, and so on, over again, for
/// twice as long as there have been submissions at all. A load that has lasted will last,
/// what has long ceased is far, and no place of the past is taken for the present one.
/// The first instant is not counted, and what came in this moment comes again only after all
/// that, so that a batch which came at once announces no second one.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    since: Option<Time>,
    latest: VecDeque<Arrival>,
    /// Submissions before those.
    forgotten: u64,
    load: Load,
    newcomers: Option<Newcomers>,
}

#[derive(Debug, Clone)]
struct Arrival {
    at: Time,
    opens: bool,
    work: Work,
    demand: Demand,
    /// Trajectories that had begun by then.
    began: f64,
}

/// How busy the line is in the long run; each mean fades.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Submissions that count.
    count: f64,
    last: Time,
    /// Seconds between two.
    gap: f64,
    /// Core-seconds of one, on its fewest units.
    work: f64,
    /// Waiting actions that one finds.
    found: f64,
}

/// What one more submission counts in the long run, at least.
const FADE: f64 = 1.0 / 512.0;
/// Submissions without which there is no long run.
const ENOUGH: f64 = 64.0;
/// A line is taken to be no busier than this: its load is only estimated.
const BUSIEST: f64 = 0.95;

impl Load {
    fn submitted(&mut self, at: Time, work: &Work, found: usize) {
        self.count += 1.0;
        let weight = (1.0 / self.count).max(FADE);
        if self.count > 1.0 {
            self.gap += (at.since(self.last).as_secs_f64() - self.gap)
                * (1.0 / (self.count - 1.0)).max(FADE);
        }
        self.last = at;
        self.work += (work.least().cost() - self.work) * weight;
        self.found += (found as f64 - self.found) * weight;
    }

    /// What a core-second that is taken from those to come costs: each of the W that wait at a
    /// time waits longer by 1/C seconds, and so does everybody who comes until the line is
    /// next empty, which is 1/(1 - load) times as many.
    fn price(&self, cores: u32) -> f64 {
        if self.count < ENOUGH || self.gap <= 0.0 {
            return 0.0;
        }
        let cores = f64::from(cores);
        let load = (self.work / (self.gap * cores)).min(BUSIEST);
        self.found / cores / (1.0 - load)
    }
}

/// A submission that is expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    /// Seconds from now.
    pub(super) after: f64,
    pub(super) rank: Time,
    pub(super) work: &'a Work,
    pub(super) demand: Demand,
}

impl Arrivals {
    /// How many may come for the first time: before the next decision or submission.
    pub(super) fn newcomers(&mut self, newcomers: Newcomers) {
        self.newcomers = Some(newcomers);
    }

    /// An action was submitted; `opens` where it is the first of its trajectory here.
    /// `found` others waiting. Its number among all.
    pub(super) fn submitted(
        &mut self,
        at: Time,
        opens: bool,
        work: Work,
        demand: Demand,
        found: usize,
    ) -> u64 {
        self.load.submitted(at, &work, found);
        let first = self.newcomers.map_or(at, |newcomers| newcomers.first.min(at));
        self.since.get_or_insert(first);
        let began = self.newcomers.map_or(0.0, |newcomers| newcomers.began);
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
            self.forgotten += 1;
        }
        self.latest.push_back(Arrival { at, opens, work, demand, began });
        self.forgotten + self.latest.len() as u64 - 1
    }

    /// The submission of this number has lasted so many seconds on these units.
    pub(super) fn lasted(&mut self, number: u64, units: Units, seconds: f64) {
        let place = number.checked_sub(self.forgotten).and_then(|place| place.try_into().ok());
        if let Some(arrival) = place.and_then(|place: usize| self.latest.get_mut(place)) {
            arrival.work = arrival.work.lasting(units, seconds);
        }
    }

    /// What a core-second that is taken from those who come after all that are `expected`
    /// costs; nothing where nobody comes then.
    pub(super) fn price_beyond(&self, expected: &[Expected<'_>], cores: u32) -> f64 {
        if expected.len() < EXPECTED { 0.0 } else { self.load.price(cores) }
    }

    /// What is expected after `now`, in order of time. Actions of trajectories that are
    /// there already are at most `idle_trajectories` at once.
    pub(super) fn expected(&self, now: Time, idle_trajectories: usize) -> Vec<Expected<'_>> {
        let (Some(since), Some(oldest)) = (self.since, self.latest.front()) else {
            return Vec::new();
        };
        // All that there ever was, or the window that is remembered.
        let all = self.latest.len() < REMEMBERED;
        let (from, began) = if all { (since, 0.0) } else { (oldest.at, oldest.began) };
        let span = now.since(from).as_secs_f64();
        if span <= 0.0 {
            return Vec::new();
        }
        let mut returning = 0;
        let mirrored = self.latest.iter().rev().filter(|arrival| arrival.at > from);
        let mut period: Vec<(f64, &Arrival)> = mirrored
            .filter(|arrival| {
                returning += usize::from(!arrival.opens);
                arrival.opens || returning <= idle_trajectories
            })
            .map(|arrival| {
                let ago = now.since(arrival.at);
                let after = ago.as_secs_f64();
                (if ago < MOMENT { after + span } else { after }, arrival)
            })
            .collect();
        period.sort_by(|a, b| a.0.total_cmp(&b.0));
        if period.is_empty() {
            return Vec::new();
        }
        let horizon = (HORIZON * now.since(since).as_secs_f64()).max(span);
        let mut opened = 0.0;
        (0..EXPECTED)
            .filter_map(|i| {
                let (after, arrival) = period[i % period.len()];
                let past = (i / period.len()) as f64;
                // Nobody comes for the first time who neither has begun nor will begin.
                let bound = self.newcomers.map_or(f64::INFINITY, |newcomers| {
                    newcomers.to_come + (newcomers.began - began) * (past + 1.0)
                });
                opened += f64::from(u8::from(arrival.opens));
                (!arrival.opens || opened <= bound).then_some((after + past * span, arrival))
            })
            .take_while(|(after, _)| *after <= horizon)
            .map(|(after, &Arrival { ref work, demand, .. })| {
                let at = now + seconds(after);
                Expected { after, rank: work.rank(at), work, demand }
            })
            .collect()
    }
}
