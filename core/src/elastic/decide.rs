//! The default policy's decision.

use super::arrivals::{Arrivals, Newcomers};
use super::backfill::backfill;
use super::chunk_line::Demand;
use super::line::{Decision, Given, Line, Running};
use super::malleable::resize;
use super::roll_out::{Promise, Scene, Until};
use super::room::{Room, Space};
use super::rule::Rule;
use super::work::Work;
use crate::resources::Units;
use crate::time::Time;

/// Waiting actions of a line that a decision looks at; the rest only counts. Where all of
/// them start, the next decision is due at once.
pub const WINDOW: usize = 192;
/// What the end of the last action weighs against the mean completion time: of two plans
/// that are nearly as good the one that ends sooner is better.
pub(super) const LAST_END: f64 = 0.05;
/// The same where nothing but the end counts, among plans that end alike.
pub(super) const LAST_END_ALONE: f64 = 100.0;
/// Once the roll-outs of one decision have started so many actions, no further rule is tried.
const BUDGET: usize = 400;

/// Rules are compared at each decision where a roll-out plays up to so many actions; for each
/// [`AGED`] more, the best is followed for one more decision.
const SHORT: usize = 192;
const AGED: usize = 64;

/// The default policy for one line: each round plays the line forward under a few simple
/// rules and does what the best of them does now (a parallel roll-out). While nothing
/// unforeseen comes, the promise only gets better from round to round, so that the
/// line ends no later than under any one of the rules.
///
/// A long line bounds the rules that a round can try: then the one that was best is tried
/// against the others in turn.
#[derive(Debug, Clone)]
pub struct Elastic {
    arrivals: Arrivals,
    outlook: Outlook,
    last_end: f64,
    /// Waiting actions that a decision looks at.
    window: usize,
    /// Actions that the last decision let wait.
    left_waiting: usize,
}

impl Default for Elastic {
    fn default() -> Self {
        Self::new(LAST_END)
    }
}

impl Elastic {
    /// With what the end of the last trajectory weighs against the mean completion time.
    fn new(last_end: f64) -> Self {
        let (arrivals, outlook) = (Arrivals::default(), Outlook::default());
        Self { arrivals, outlook, last_end, window: WINDOW, left_waiting: 0 }
    }

    /// Every decision compares all rules over the whole line, whatever that takes: what the
    /// bounds lose is measured against it.
    pub fn unbounded() -> Self {
        let outlook = Outlook { unbounded: true, ..Outlook::default() };
        Self { outlook, window: usize::MAX, ..Self::default() }
    }

    /// Waiting actions that a decision looks at; the rest only counts.
    pub fn window(&self) -> usize {
        self.window
    }

    /// For an end of all trajectories as early as possible. The line is to be in the order
    /// of [`Work::followed_by`].
    pub fn for_makespan() -> Self {
        Self::new(LAST_END_ALONE)
    }

    /// An action was submitted to the line; `opens` where it is the first of its
    /// trajectory here. Its number, for [`Self::lasted`].
    pub fn submitted(&mut self, at: Time, opens: bool, work: Work) -> u64 {
        self.arrivals.submitted(at, opens, work, Demand::default(), self.left_waiting)
    }

    /// How long the submission of this number has really lasted: when it is expected again,
    /// so much is expected of it, and not what was believed before it ran.
    pub fn lasted(&mut self, number: u64, units: Units, seconds: f64) {
        self.arrivals.lasted(number, units, seconds);
    }

    /// How many trajectories may come to the line for the first time, where that is known:
    /// to be told before a submission or a decision.
    pub fn newcomers(&mut self, newcomers: Newcomers) {
        self.arrivals.newcomers(newcomers);
    }

    /// What starts now, and with what; and what is resized.
    pub fn decide(&mut self, line: &Line) -> Decision {
        let resizable = line.running.iter().any(|running| running.resizable.is_some());
        if resizable || line.waiting.iter().any(|waiting| waiting.resizable) {
            return resize(line);
        }
        let starts = self.decide_window(line);
        self.left_waiting = line.waiting.len() + line.beyond - starts.len();
        Decision { resizes: Vec::new(), starts }
    }

    fn decide_window(&mut self, line: &Line) -> Vec<Given> {
        let seen = line.waiting.len().min(self.window);
        let beyond = line.beyond + line.waiting.len() - seen;
        let line = &Line { waiting: &line.waiting[..seen], beyond, ..*line };
        let mut starts = self.starts(line);
        backfill(line, &mut starts);
        starts
    }

    fn starts(&mut self, line: &Line) -> Vec<Given> {
        // Of these there is nothing to weigh: any rule that keeps the order starts them.
        let plain = without_choice(line);
        if plain.is_empty() {
            return self.weigh(line);
        }
        let rest = &line.waiting[plain.len()..];
        let started = plain.iter().map(|given| {
            let seconds = line.waiting[given.index].work.least().seconds;
            let ends = line.now + super::work::seconds(seconds);
            Running { ends, units: given.units, resizable: None }
        });
        let running: Vec<Running> = line.running.iter().copied().chain(started).collect();
        let weighed = self.weigh(&Line { running: &running, waiting: rest, ..*line });
        let behind = weighed.into_iter();
        let behind = behind.map(|given| Given { index: given.index + plain.len(), ..given });
        plain.iter().copied().chain(behind).collect()
    }

    fn weigh(&mut self, line: &Line) -> Vec<Given> {
        let Some(first) = line.waiting.first() else { return Vec::new() };
        let room = Room::of(line);
        if !room.fits(first.work.least().units) {
            return Vec::new();
        }
        let held = line.running.iter().map(|running| running.units);
        let expected = self.arrivals.expected(line.now, line.idle_trajectories);
        let price = self.arrivals.price_beyond(&expected, line.cores);
        let scene = Scene::new(line, &[], &expected, room, held, self.last_end, price);
        self.outlook.best(&scene).unwrap_or_default()
    }
}

/// Which rules were best lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Outlook {
    best: Option<Rule>,
    /// The next to be tried against it.
    turn: usize,
    /// Decisions since rules were compared.
    age: usize,
    /// All rules are compared at every decision.
    unbounded: bool,
}

impl Outlook {
    /// What starts now under the rule that promises most. Something does where nothing
    /// runs: nothing else would ever change.
    pub(super) fn best<S: Space>(&mut self, scene: &Scene<S>) -> Option<Vec<Given>> {
        let line = scene.line;
        let first = line.waiting.first()?;
        let promise = self.promise(scene, line.now <= first.work.rank(first.submitted));
        let starts = promise.map_or_else(Vec::new, |promise| promise.starts);
        if starts.is_empty() && line.running.is_empty() {
            return Some(vec![Given { index: 0, units: first.work.least().units }]);
        }
        Some(starts)
    }

    /// Ageing: past its rank nobody overtakes the first; until then it is `in_time`.
    fn promise<S: Space>(&mut self, scene: &Scene<S>, in_time: bool) -> Option<Promise> {
        // A long line changes little from one decision to the next.
        self.age += 1;
        if !self.unbounded
            && let Some(incumbent) = self.best.filter(|rule| in_time || rule.keeps_order())
            && self.age * AGED < scene.size().saturating_sub(SHORT)
        {
            return scene.roll_out(incumbent, Until::Now);
        }
        self.age = 0;
        let rules = Rule::for_line(scene.line);
        let incumbent = self.best.unwrap_or(rules[0]);
        let others = (0..rules.len()).map(|place| rules[(self.turn + place) % rules.len()]);
        let others = others.filter(|other| *other != incumbent);
        let mut best: Option<Promise> = None;
        let mut tried = 0;
        for rule in std::iter::once(incumbent).chain(others) {
            // The best so far is tried against at least one other.
            if tried >= 2 && scene.played() >= BUDGET && !self.unbounded {
                break;
            }
            tried += 1;
            if !(in_time || rule.keeps_order()) {
                continue;
            }
            let limit = best.as_ref().map_or(f64::INFINITY, |best| best.cost);
            if let Some(promise) = scene.roll_out(rule, Until::Costs(limit)) {
                self.best = Some(rule);
                best = Some(promise);
            }
        }
        self.turn = (self.turn + tried - 1) % rules.len();
        best
    }
}

/// The first of the line that have no choice of units, as far as they fit.
fn without_choice(line: &Line) -> Vec<Given> {
    let mut room = Room::of(line);
    let plain = line.waiting.iter().take_while(|waiting| waiting.work.choices().len() == 1);
    let least = plain.map(|waiting| waiting.work.least().units).enumerate();
    least
        .take_while(|(_, units)| {
            let fits = room.fits(*units);
            if fits {
                room.take(*units);
            }
            fits
        })
        .map(|(index, units)| Given { index, units })
        .collect()
}
