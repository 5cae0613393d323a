//! What will be submitted next, as far as the past tells.

use std::collections::VecDeque;

use super::chunk_line::Demand;
use super::work::{Work, seconds};
use crate::time::Time;

/// Submissions that are remembered.
const REMEMBERED: usize = 64;
/// Submissions that are expected, at most.
const EXPECTED: usize = 96;
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
/// over again, for twice as long as there have been submissions at all: a load that has
/// lasted will last. The first instant is not counted, so that a batch which came at
/// once announces no second one.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    since: Option<Time>,
    latest: VecDeque<Arrival>,
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
    pub(super) fn submitted(&mut self, at: Time, opens: bool, work: Work, demand: Demand) {
        let first = self.newcomers.map_or(at, |newcomers| newcomers.first.min(at));
        self.since.get_or_insert(first);
        let began = self.newcomers.map_or(0.0, |newcomers| newcomers.began);
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(Arrival { at, opens, work, demand, began });
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
        let period: Vec<(f64, &Arrival)> = self
            .latest
            .iter()
            .filter(|arrival| arrival.at > from)
            .filter(|arrival| {
                returning += usize::from(!arrival.opens);
                arrival.opens || returning <= idle_trajectories
            })
            .map(|arrival| (arrival.at.since(from).as_secs_f64(), arrival))
            .collect();
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
