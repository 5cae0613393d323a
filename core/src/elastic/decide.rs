//! The default policy's decision.

use super::arrivals::Arrivals;
use super::backfill::backfill;
use super::chunk_line::Demand;
use super::line::{Decision, Given, Line};
use super::malleable::resize;
use super::roll_out::{Promise, Scene};
use super::room::{Room, Space};
use super::rule::Rule;
use super::work::Work;
use crate::time::Time;

/// Waiting actions of a line that a decision looks at; the rest only counts. Where all of
/// them start, the next decision is due at once.
pub const WINDOW: usize = 192;
/// Actions that the roll-outs of one decision play, together.
const BUDGET: usize = 800;

/// The default policy for one line: each round plays the line forward under a few simple
/// rules and does what the best of them does now (a parallel roll-out). While nothing
/// unforeseen comes, the promise only gets better from round to round, so that the
/// line ends no later than under any one of the rules.
///
/// A long line bounds the rules that a round can try: then the one that was best is tried
/// against the others in turn.
#[derive(Debug, Clone, Default)]
pub struct Elastic {
    arrivals: Arrivals,
    outlook: Outlook,
}

impl Elastic {
    /// An action was submitted to the line; `opens` where it is the first of its
    /// trajectory here.
    pub fn submitted(&mut self, at: Time, opens: bool, work: Work) {
        self.arrivals.submitted(at, opens, work, Demand::default());
    }

    /// What starts now, and with what; and what is resized.
    pub fn decide(&mut self, line: &Line) -> Decision {
        let resizable = line.running.iter().any(|running| running.resizable.is_some());
        if resizable || line.waiting.iter().any(|waiting| waiting.resizable) {
            return resize(line);
        }
        Decision { resizes: Vec::new(), starts: self.decide_window(line) }
    }

    fn decide_window(&mut self, line: &Line) -> Vec<Given> {
        let seen = line.waiting.len().min(WINDOW);
        let beyond = line.beyond + line.waiting.len() - seen;
        let line = &Line { waiting: &line.waiting[..seen], beyond, ..*line };
        let mut starts = self.starts(line);
        backfill(line, &mut starts);
        starts
    }

    fn starts(&mut self, line: &Line) -> Vec<Given> {
        let Some(first) = line.waiting.first() else { return Vec::new() };
        let room = Room::of(line);
        if !room.fits(first.work.least().units) {
            return Vec::new();
        }
        if line.waiting.iter().all(|waiting| waiting.work.choices().len() == 1) {
            return one_after_the_other(line);
        }
        let held = line.running.iter().map(|running| running.units);
        let expected = self.arrivals.expected(line.now, line.idle_trajectories);
        let scene = Scene::new(line, &[], &expected, room, held);
        self.outlook.best(&scene).unwrap_or_default()
    }
}

/// Which rules were best lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Outlook {
    /// The place in [`Rule::ALL`] of the rule that was best.
    best: usize,
    /// The next to be tried against it.
    turn: usize,
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
        let count = (BUDGET / scene.size().max(1)).clamp(2, Rule::ALL.len());
        let turn = self.turn;
        let others = (0..Rule::ALL.len()).map(|i| (turn + i) % Rule::ALL.len());
        let mut best: Option<Promise> = None;
        let incumbent = self.best;
        let tried = std::iter::once(incumbent)
            .chain(others.filter(|other| *other != incumbent).take(count - 1));
        for index in tried {
            let rule = Rule::ALL[index];
            if index != incumbent {
                self.turn = (index + 1) % Rule::ALL.len();
            }
            if !(in_time || rule.keeps_order()) {
                continue;
            }
            let limit = best.as_ref().map_or(f64::INFINITY, |best| best.cost);
            if let Some(promise) = scene.roll_out(rule, limit) {
                self.best = index;
                best = Some(promise);
            }
        }
        best
    }
}

/// Without a choice of units there is nothing to weigh.
fn one_after_the_other(line: &Line) -> Vec<Given> {
    let mut room = Room::of(line);
    let least = line.waiting.iter().map(|waiting| waiting.work.least().units).enumerate();
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
