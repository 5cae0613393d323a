//! Simple rules, of which each round follows the one that promises most.

use super::chunk_line::Demand;
use super::line::Line;
use super::room::Space;
use super::work::{Choice, Work};

/// Actions whose units are asked for limits.
const FIRST: usize = 16;
/// Limits that are tried, at most.
const LIMITS: usize = 24;

/// How the first of a line gets its units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// The units that cost least where a core-second is priced by the delay that it
    /// causes: one core held for dt delays each of W waiting by dt / cores, so the cost
    /// is `D(m) * (1 + factor * W / cores * m)`.
    Priced(f64, f64),
    /// The largest units up to so many cores, waiting for them.
    AtMost(u32),
    /// The same price, but whoever fits with some of its units never waits for more.
    Eager(f64),
    /// As many as fit at once, the cores arranged for the least sum of durations; then
    /// `Priced(1)`.
    Together,
    /// As `Priced`, but those that alone last half as long as the whole backlog go first:
    /// left to the end, they would be all that the end waits for.
    LongFirst(f64),
}

impl Rule {
    /// Those that every line tries, the likeliest first.
    const ALWAYS: [Self; 12] = [
        Self::Priced(1.0, 0.0),
        Self::Priced(2.0, 0.0),
        Self::Priced(0.5, 0.0),
        Self::Priced(1.0, 0.25),
        Self::Priced(1.0, 0.5),
        Self::Priced(1.0, 1.0),
        Self::Priced(1.0, 2.0),
        Self::Together,
        Self::Eager(0.0),
        Self::Eager(1.0),
        Self::LongFirst(1.0),
        Self::LongFirst(2.0),
    ];

    /// Those for a line: with every limit on units that makes a difference to the first.
    pub(super) fn for_line(line: &Line) -> Vec<Self> {
        let mut limits = vec![0];
        for choice in line.waiting.iter().take(FIRST).flat_map(|one| one.work.choices()) {
            let limit = choice.units.ceil();
            if limit <= line.cores
                && let Err(place) = limits.binary_search(&limit)
            {
                limits.insert(place, limit);
            }
        }
        limits.truncate(LIMITS);
        Self::ALWAYS.into_iter().chain(limits.into_iter().map(Self::AtMost)).collect()
    }

    /// True where it serves a line in the order of ranks.
    pub(super) fn keeps_order(self) -> bool {
        !matches!(self, Self::LongFirst(_))
    }

    /// What the first of a line gets now, with `behind` more waiting and the next running
    /// action ending after `next_end` seconds; `None` where it had better wait.
    pub(super) fn choose(
        self,
        work: &Work,
        demand: Demand,
        room: &impl Space,
        cores: u32,
        behind: usize,
        next_end: f64,
    ) -> Option<Choice> {
        if let [only] = work.choices() {
            return room.holds(demand, only.units).then_some(*only);
        }
        let (factor, base) = match self {
            Self::AtMost(limit) => {
                let choice = work.at_most(limit.min(cores));
                return room.holds(demand, choice.units).then_some(choice);
            }
            Self::Priced(factor, base) => (factor, base),
            Self::LongFirst(factor) | Self::Eager(factor) => (factor, 0.0),
            Self::Together => (1.0, 0.0),
        };
        let price = base + factor * behind as f64 / f64::from(cores);
        let cost = |choice: &Choice| {
            (choice.seconds + room.loses(demand, choice.units))
                * (1.0 + price * choice.units.as_f64())
        };
        let fits = |choice: &Choice| room.holds(demand, choice.units);
        let choices = work.choices();
        let eager = matches!(self, Self::Eager(_));
        let (mut best, mut least) = (0, f64::INFINITY);
        for (at, choice) in choices.iter().enumerate() {
            let cost = cost(choice);
            let possible = !eager || fits(choice);
            if cost < least && choice.units.ceil() <= cores && possible {
                (best, least) = (at, cost);
            }
        }
        if fits(&choices[best]) {
            return Some(choices[best]);
        }
        // Fewer now, or as many as is best after the next end?
        let now = choices[..best].iter().rev().find(|choice| fits(choice))?;
        let idle = next_end * (1.0 + price * f64::from(room.free()));
        (cost(now) <= least + idle).then_some(*now)
    }
}
