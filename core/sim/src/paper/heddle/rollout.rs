//! A simulator of a rollout: workers that generate for many trajectories at once, each
//! the slower the more they are, and tools between steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::model::Model;
use super::shape::Shape;

/// Where steps go.
#[derive(Debug, Clone)]
pub(super) enum Where {
    /// A trajectory stays on its worker.
    Pinned(Vec<usize>),
    /// Each step goes to the worker with the fewest; elsewhere than before, its context
    /// is read again.
    LeastLoad,
}

/// Which waiting step runs first where all slots are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// In order of arrival, each step anew: the round robin of step-centric systems.
    RoundRobin,
    /// Those predicted to be shortest first, as Autellix.
    ShortestFirst,
    /// Those predicted to be longest first, which preempt (000, Algorithm 1).
    LongestFirst,
}

/// GPUs of each worker and how it is used.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) model: Model,
    pub(super) gpus: Vec<u64>,
    pub(super) place: Where,
    pub(super) order: Order,
}

/// A key of order: least first, then by trajectory.
type Key = (u64, usize);

/// One worker. Progress is counted in tokens that each of its trajectories has had.
#[derive(Debug, Default)]
struct Worker {
    /// Tokens so far, at `since`.
    done: f64,
    since: f64,
    /// By the tokens at which they end, in bits, which are ordered as they are.
    running: BTreeSet<(u64, usize)>,
    /// What runs, the first to be preempted last.
    ranks: BTreeSet<Key>,
    waiting: BTreeSet<Key>,
    /// Which timing of its next end counts.
    timing: u64,
}

/// Where a trajectory is.
#[derive(Debug, Clone, Default)]
struct Progress {
    step: usize,
    worker: Option<usize>,
    /// Tokens of the step that are left.
    left: f64,
    rank: u64,
    ends: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Event {
    /// The next of a worker ends a step, unless it was timed anew since.
    Step { worker: usize, timing: u64 },
    /// A trajectory comes back from its tool.
    Back(usize),
}

/// Orders events by time, then by their number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64, u64, Event);

impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

struct Rollout<'a> {
    fleet: &'a Fleet,
    shapes: &'a [Shape],
    workers: Vec<Worker>,
    progress: Vec<Progress>,
    events: BinaryHeap<Reverse<At>>,
    numbered: u64,
    now: f64,
}

/// Seconds until the last trajectory ends.
pub(super) fn makespan(fleet: &Fleet, shapes: &[Shape]) -> f64 {
    let mut rollout = Rollout {
        fleet,
        shapes,
        workers: fleet.gpus.iter().map(|_| Worker::default()).collect(),
        progress: vec![Progress::default(); shapes.len()],
        events: BinaryHeap::new(),
        numbered: 0,
        now: 0.0,
    };
    for of in 0..shapes.len() {
        rollout.push(0.0, Event::Back(of));
    }
    while let Some(Reverse(At(now, _, event))) = rollout.events.pop() {
        match event {
            Event::Step { worker, timing } if rollout.workers[worker].timing != timing => {}
            Event::Step { worker, .. } => {
                rollout.now = now;
                rollout.step_ends(worker);
            }
            Event::Back(of) => {
                rollout.now = now;
                rollout.back(of);
            }
        }
    }
    rollout.now
}

impl Rollout<'_> {
    fn push(&mut self, time: f64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse(At(time, self.numbered, event)));
    }

    fn back(&mut self, of: usize) {
        let (gpus, model) = (&self.fleet.gpus, &self.fleet.model);
        let worker = match &self.fleet.place {
            Where::Pinned(worker) => worker[of],
            Where::LeastLoad => {
                let load = |&i: &usize| {
                    let Worker { running, waiting, .. } = &self.workers[i];
                    running.len() + waiting.len()
                };
                (0..gpus.len()).min_by_key(load).unwrap_or(0)
            }
        };
        let progress = &mut self.progress[of];
        let steps = &self.shapes[of].steps;
        let before: f64 = steps[..progress.step].iter().map(|(tokens, _)| tokens).sum();
        // The time to read its context again, in tokens of that worker.
        let moved = progress.worker.is_some_and(|before| before != worker);
        let again = if moved { before * model.prefill(gpus[worker]) } else { 0.0 };
        progress.left = steps[progress.step].0 + again / model.token_time(gpus[worker]);
        progress.worker = Some(worker);
        let predicted = (self.shapes[of].predicted - before).max(0.0);
        progress.rank = match self.fleet.order {
            Order::RoundRobin => self.numbered,
            Order::ShortestFirst => predicted.to_bits(),
            Order::LongestFirst => u64::MAX - predicted.to_bits(),
        };
        let rank = progress.rank;
        self.settle(worker);
        self.workers[worker].waiting.insert((rank, of));
        self.fill(worker);
    }

    fn step_ends(&mut self, worker: usize) {
        self.settle(worker);
        let Some((_, of)) = self.workers[worker].running.pop_first() else { return };
        let progress = &mut self.progress[of];
        self.workers[worker].ranks.remove(&(progress.rank, of));
        let tool = self.shapes[of].steps[progress.step].1;
        progress.step += 1;
        if progress.step < self.shapes[of].steps.len() {
            self.push(self.now + tool, Event::Back(of));
        }
        self.fill(worker);
    }

    /// Brings a worker's tokens up to now.
    fn settle(&mut self, worker: usize) {
        let rate = self.rate(worker);
        let worker = &mut self.workers[worker];
        worker.done += (self.now - worker.since) * rate;
        worker.since = self.now;
    }

    /// Tokens a second that each of its trajectories gets.
    fn rate(&self, worker: usize) -> f64 {
        let (model, running) = (&self.fleet.model, self.workers[worker].running.len());
        let interference = 1.0 + model.slope() * running.saturating_sub(1) as f64;
        1.0 / (model.token_time(self.fleet.gpus[worker]) * interference)
    }

    /// Fills the slots of a settled worker, and times its next end.
    fn fill(&mut self, worker: usize) {
        let slots = self.fleet.model.slots(self.fleet.gpus[worker]);
        let preempts = self.fleet.order == Order::LongestFirst;
        let timing = {
            let worker = &mut self.workers[worker];
            while let Some(&(rank, of)) = worker.waiting.first() {
                if worker.running.len() >= slots {
                    let lowest = worker.ranks.last().copied().filter(|&lowest| lowest > (rank, of));
                    let Some((_, lowest)) = lowest.filter(|_| preempts) else { break };
                    let progress = &mut self.progress[lowest];
                    worker.running.remove(&(progress.ends, lowest));
                    worker.ranks.remove(&(progress.rank, lowest));
                    progress.left = f64::from_bits(progress.ends) - worker.done;
                    worker.waiting.insert((progress.rank, lowest));
                }
                worker.waiting.remove(&(rank, of));
                let progress = &mut self.progress[of];
                progress.ends = (worker.done + progress.left.max(0.0)).to_bits();
                worker.running.insert((progress.ends, of));
                worker.ranks.insert((rank, of));
            }
            worker.timing += 1;
            worker.timing
        };
        let Worker { running, done, .. } = &self.workers[worker];
        if let Some(&(ends, _)) = running.first() {
            let after = (f64::from_bits(ends) - done).max(0.0) / self.rate(worker);
            self.push(self.now + after, Event::Step { worker, timing });
        }
    }
}

/// By worker, how many of `count` it takes in turn.
pub(super) fn in_turn(count: usize, workers: usize) -> Where {
    Where::Pinned((0..count).map(|of| of % workers).collect())
}

/// Where each goes, from the groups of a plan.
pub(super) fn pinned(groups: &[Vec<usize>], count: usize) -> Where {
    let of_worker = groups.iter().enumerate();
    let place: BTreeMap<usize, usize> =
        of_worker.flat_map(|(worker, group)| group.iter().map(move |&of| (of, worker))).collect();
    Where::Pinned((0..count).map(|of| place.get(&of).copied().unwrap_or(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::model::QWEN3_14B;
    use super::*;

    fn shape(tokens: f64, steps: usize, tool: f64) -> Shape {
        Shape { steps: vec![(tokens, tool); steps], predicted: tokens * steps as f64 }
    }

    #[test]
    fn one_alone_takes_its_tokens_and_its_tools() {
        let model = QWEN3_14B;
        let place = in_turn(1, 1);
        let fleet = Fleet { model, gpus: vec![1], place, order: Order::RoundRobin };
        // The tool after the last step is not waited for.
        let want = 3.0 * 100.0 * model.token_time(1) + 2.0 * 0.5;
        assert!((makespan(&fleet, &[shape(100.0, 3, 0.5)]) - want).abs() < 1e-9);
    }

    #[test]
    fn two_together_slow_each_other_down_until_the_first_ends() {
        let model = QWEN3_14B;
        let place = in_turn(2, 1);
        let fleet = Fleet { model, gpus: vec![1], place, order: Order::RoundRobin };
        let want = model.token_time(1) * (100.0 * (1.0 + model.slope()) + 200.0);
        let got = makespan(&fleet, &[shape(100.0, 1, 0.0), shape(300.0, 1, 0.0)]);
        assert!((got - want).abs() < 1e-9, "{got} {want}");
    }

    #[test]
    fn the_longest_first_preempt_and_lose_nothing() {
        let model = QWEN3_14B;
        let slots = model.slots(1);
        // One long one behind a full worker of short ones.
        let mut shapes = vec![shape(100.0, 1, 0.0); slots];
        shapes.push(shape(1000.0, 1, 0.0));
        let fleet = |order| Fleet { model, gpus: vec![1], place: in_turn(slots + 1, 1), order };
        let waits = makespan(&fleet(Order::RoundRobin), &shapes);
        let first = makespan(&fleet(Order::LongestFirst), &shapes);
        let full = model.token_time(1) * (1.0 + model.slope() * (slots - 1) as f64);
        let alone = model.token_time(1);
        assert!((waits - (100.0 * full + 1000.0 * alone)).abs() < 1e-6);
        // The long one runs from the start. The preempted one takes the slot of the
        // others when they end, and all its tokens are still to be had.
        let two = model.token_time(1) * (1.0 + model.slope());
        let want = 100.0 * full + 100.0 * two + 800.0 * alone;
        assert!((first - want).abs() < 1e-6, "{first} {want}");
    }
}
