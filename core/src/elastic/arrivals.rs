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

/// The latest submissions to one line. What comes next is taken to be what came last,
/// over again, for twice as long as there have been submissions at all: a load that has
/// lasted will last. The first instant is not counted, so that a batch which came at
/// once announces no second one.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    since: Option<Time>,
    latest: VecDeque<Arrival>,
}

#[derive(Debug, Clone)]
struct Arrival {
    at: Time,
    opens: bool,
    work: Work,
    demand: Demand,
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
    /// An action was submitted; `opens` where it is the first of its trajectory here.
    pub(super) fn submitted(&mut self, at: Time, opens: bool, work: Work, demand: Demand) {
        self.since.get_or_insert(at);
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(Arrival { at, opens, work, demand });
    }

    /// What is expected after `now`, in order of time. Actions of trajectories that are
    /// there already are at most `idle_trajectories` at once.
    pub(super) fn expected(&self, now: Time, idle_trajectories: usize) -> Vec<Expected<'_>> {
        let (Some(since), Some(oldest)) = (self.since, self.latest.front()) else {
            return Vec::new();
        };
        let span = now.since(oldest.at).as_secs_f64();
        if span <= 0.0 {
            return Vec::new();
        }
        let mut returning = 0;
        let period: Vec<(f64, &Arrival)> = self
            .latest
            .iter()
            .filter(|arrival| arrival.at > oldest.at)
            .filter(|arrival| {
                returning += usize::from(!arrival.opens);
                arrival.opens || returning <= idle_trajectories
            })
            .map(|arrival| (arrival.at.since(oldest.at).as_secs_f64(), arrival))
            .collect();
        if period.is_empty() {
            return Vec::new();
        }
        let horizon = (HORIZON * now.since(since).as_secs_f64()).max(span);
        (0..EXPECTED)
            .map(|i| {
                let (after, arrival) = period[i % period.len()];
                (after + (i / period.len()) as f64 * span, arrival)
            })
            .take_while(|(after, _)| *after <= horizon)
            .map(|(after, &Arrival { ref work, demand, .. })| {
                let at = now + seconds(after);
                Expected { after, rank: work.rank(at), work, demand }
            })
            .collect()
    }
}
