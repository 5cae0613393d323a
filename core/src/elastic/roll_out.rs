//! What a rule leads to: a line played forward under it.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::arrivals::Expected;
use super::chunk_line::Demand;
use super::line::{Given, Line};
use super::room::Space;
use super::rule::Rule;
use super::together::together;
use super::work::{Choice, Work, seconds};
use crate::time::Time;

/// A state of a line from which rules are played forward.
pub(super) struct Scene<'a, S: Space> {
    pub(super) line: &'a Line<'a>,
    /// Of those that wait; none on cores.
    demands: &'a [Demand],
    expected: &'a [Expected<'a>],
    room: S,
    /// Ends of what runs.
    ends: BinaryHeap<End<S::Held>>,
    ranks: Vec<Time>,
    /// Seconds that all that waits has waited, and all, those expected included, will run at the
    /// fastest: whatever is played, they cost no less.
    floor: f64,
    /// What the end of the last trajectory weighs against the mean completion time.
    last_end: f64,
    /// Actions that roll-outs have started so far.
    played: Cell<usize>,
    /// What a core-second costs that is taken from those who come after all that is expected.
    price_beyond: f64,
}

/// What becomes free after so many seconds. The greatest of a heap is the first; of equals
/// the one that was put in first.
#[derive(Debug, Clone, Copy)]
struct End<H> {
    seconds: f64,
    order: usize,
    held: H,
}

impl<H> Ord for End<H> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.seconds.total_cmp(&self.seconds).then(other.order.cmp(&self.order))
    }
}

impl<H> PartialOrd for End<H> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> PartialEq for End<H> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<H> Eq for End<H> {}

/// What a rule promises.
#[derive(Debug)]
pub(super) struct Promise {
    /// The sum of completion times, and more; the less the better.
    pub(super) cost: f64,
    /// What it starts now.
    pub(super) starts: Vec<Given>,
}

impl<'a, S: Space> Scene<'a, S> {
    /// `held` is what each of `line.running` holds of `room`.
    pub(super) fn new(
        line: &'a Line<'a>,
        demands: &'a [Demand],
        expected: &'a [Expected<'a>],
        room: S,
        held: impl Iterator<Item = S::Held>,
        last_end: f64,
        price_beyond: f64,
    ) -> Self {
        let running = line.running.iter().map(|r| r.ends.since(line.now).as_secs_f64());
        let ends = running.zip(held).enumerate();
        let fastest = |work: &Work| work.at_most(line.cores).seconds;
        let waiting = line.waiting.iter();
        let waiting = waiting.map(|w| fastest(w.work) + line.now.since(w.submitted).as_secs_f64());
        let floor = waiting.chain(expected.iter().map(|e| fastest(e.work))).sum();
        Self {
            line,
            demands,
            expected,
            room,
            ends: ends.map(|(order, (seconds, held))| End { seconds, order, held }).collect(),
            ranks: line.waiting.iter().map(|w| w.work.rank(w.submitted)).collect(),
            floor,
            last_end,
            played: Cell::new(0),
            price_beyond,
        }
    }

    fn demand(&self, index: usize) -> Demand {
        self.demands.get(index).copied().unwrap_or_default()
    }

    /// Actions that roll-outs have started so far, together.
    pub(super) fn played(&self) -> usize {
        self.played.get()
    }

    /// Actions that one roll-out plays, at most.
    pub(super) fn size(&self) -> usize {
        self.line.waiting.len() + self.expected.len() + self.line.running.len()
    }

    /// Plays the line forward until all that waits, and all that is expected, is started.
    /// `None` where the rule cannot be followed, or costs too much.
    pub(super) fn roll_out(&self, rule: Rule, until: Until) -> Option<Promise> {
        let order = self.order(rule)?;
        let mut play = Play {
            scene: self,
            limit: if let Until::Costs(limit) = until { limit } else { f64::INFINITY },
            now_only: until == Until::Now,
            room: self.room.clone(),
            ends: self.ends.clone(),
            order: self.ends.len(),
            now: 0.0,
            horizon: self.expected.last().map_or(0.0, |last| last.after),
            at_once: true,
            last_end: 0.0,
            cost: 0.0,
            floor: self.floor,
            waiting: self.line.waiting.len(),
            starts: Vec::new(),
        };
        let mut order = order.as_slice();
        if rule == Rule::Together {
            let arranged = together(self.line, self.room.cores()?);
            order = &order[arranged.len()..];
            for (index, units) in arranged.into_iter().enumerate() {
                let work = self.line.waiting[index].work;
                let chosen = work.choices().iter().find(|choice| choice.units == units)?;
                play.start(self.waited(index), *chosen, Demand::default(), work)?;
                play.starts.push(Given { index, units });
            }
        }
        play.until_all_started(rule, order)
    }

    /// The places in the line in the order of the rule; `None` where that order is the
    /// usual one and the rule thus nothing new.
    fn order(&self, rule: Rule) -> Option<Vec<usize>> {
        let waiting = self.line.waiting;
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        if rule.keeps_order() {
            return Some(order);
        }
        let running = self.line.running.iter();
        let left = running.map(|r| r.ends.since(self.line.now).as_secs_f64() * r.units.as_f64());
        let backlog: f64 = waiting.iter().map(|w| w.work.least().cost()).chain(left).sum::<f64>();
        let long = backlog / f64::from(self.line.cores) / 2.0;
        let fastest = |index: usize| waiting[index].work.at_most(self.line.cores).seconds;
        let length = |index: &usize| {
            let seconds = fastest(*index);
            if seconds >= long { Reverse(seconds.to_bits()) } else { Reverse(0) }
        };
        order.sort_by_key(length);
        (!order.is_sorted()).then_some(order)
    }

    /// Seconds that one has waited.
    fn waited(&self, index: usize) -> f64 {
        self.line.now.since(self.line.waiting[index].submitted).as_secs_f64()
    }
}

/// How far a rule is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Until {
    /// Only what starts now.
    Now,
    /// To the end, unless it costs that much.
    Costs(f64),
}

struct Play<'a, S: Space> {
    scene: &'a Scene<'a, S>,
    limit: f64,
    /// What follows does not count.
    now_only: bool,
    room: S,
    ends: BinaryHeap<End<S::Held>>,
    /// Actions played.
    order: usize,
    now: f64,
    /// When the last comes that is expected.
    horizon: f64,
    /// Nothing has happened yet: what starts, starts in this round. What ends at this
    /// very instant, or should have ended, still holds its cores.
    at_once: bool,
    last_end: f64,
    cost: f64,
    /// What those that are not started will cost at least, besides waiting from the instant on from
    /// which the rest is played: what [`Scene::floor`] says, less the instants at which they came.
    floor: f64,
    /// Those that have come and are not started.
    waiting: usize,
    starts: Vec<Given>,
}

impl<S: Space> Play<'_, S> {
    /// Starts one that has waited for so many seconds, now; `None` where that, with the least
    /// that the others will cost, is too much.
    fn start(&mut self, waited: f64, choice: Choice, demand: Demand, work: &Work) -> Option<()> {
        let (held, lost) = self.room.take(demand, choice.units)?;
        let seconds = self.now + choice.seconds + lost;
        self.ends.push(End { seconds, order: self.order, held });
        self.order += 1;
        self.scene.played.set(self.scene.played.get() + 1);
        self.last_end = self.last_end.max(seconds + work.tail());
        self.cost += waited + choice.seconds + lost;
        self.floor -= work.at_most(self.scene.line.cores).seconds + waited - self.now;
        self.waiting -= 1;
        let beyond = seconds - self.horizon.max(self.now);
        if beyond > 0.0 {
            self.cost += self.scene.price_beyond * choice.units.as_f64() * beyond;
        }
        let others = self.floor + (self.waiting + self.scene.line.beyond) as f64 * self.now;
        (self.cost + others + self.end_costs() < self.limit).then_some(())
    }

    /// What the last end so far weighs.
    fn end_costs(&self) -> f64 {
        let members = self.scene.line.waiting.len() + self.scene.expected.len();
        self.scene.last_end * members as f64 * self.last_end
    }

    fn until_all_started(mut self, rule: Rule, order: &[usize]) -> Option<Promise> {
        let &Scene { line, expected, .. } = self.scene;
        // Those that were expected and have come, by rank.
        let mut come: BinaryHeap<Reverse<(Time, usize)>> = BinaryHeap::new();
        let (mut next, mut started) = (0, 0);
        loop {
            // Who is first?
            let here = order.get(started).copied();
            let late = come.peek().map(|Reverse(late)| *late);
            let overtaken = |index: usize| {
                rule.keeps_order() && late.is_some_and(|(rank, _)| rank < self.scene.ranks[index])
            };
            let first: Option<(&Work, Demand, f64)> = match (here, late) {
                (Some(index), _) if !overtaken(index) => {
                    let waited = self.scene.waited(index) + self.now;
                    Some((line.waiting[index].work, self.scene.demand(index), waited))
                }
                (_, Some((_, index))) => {
                    let Expected { after, work, demand, .. } = expected[index];
                    Some((work, demand, self.now - after))
                }
                _ => None,
            };
            let next_end = self.ends.peek().map(|end| end.seconds);
            if let Some((work, demand, waited)) = first {
                let behind = order.len() - started + come.len() - 1 + line.beyond;
                let soonest = next_end.unwrap_or(self.now) - self.now;
                if let Some(choice) =
                    rule.choose(work, demand, &self.room, line.cores, behind, soonest.max(0.0))
                {
                    self.start(waited, choice, demand, work)?;
                    if let Some(index) = here.filter(|index| !overtaken(*index)) {
                        if self.at_once {
                            self.starts.push(Given { index, units: choice.units });
                        }
                        started += 1;
                    } else {
                        come.pop();
                    }
                    continue;
                }
            }
            // Nothing more can start: what happens next?
            if self.now_only {
                return Some(Promise { cost: 0.0, starts: self.starts });
            }
            self.at_once = false;
            let arrival = expected.get(next).map(|e| e.after);
            if first.is_none() && arrival.is_none() {
                break;
            }
            if next_end.is_some_and(|end| arrival.is_none_or(|arrival| end <= arrival)) {
                let end = self.ends.pop()?;
                self.now = self.now.max(end.seconds);
                let now = self.now;
                self.room.give_back(end.held, || line.now + seconds(now));
            } else {
                // Neither an end nor an arrival: the first never fits.
                self.now = self.now.max(arrival?);
                come.push(Reverse((expected[next].rank, next)));
                self.floor -= expected[next].after;
                self.waiting += 1;
                next += 1;
            }
        }
        // Those beyond the window wait until it is empty.
        let beyond = line.beyond as f64 * self.now;
        let cost = self.cost + beyond + self.end_costs();
        (cost < self.limit).then_some(Promise { cost, starts: self.starts })
    }
}
