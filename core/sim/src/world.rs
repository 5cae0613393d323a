//! The state that every policy works on: time, what runs, and the books.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cluster::{Cluster, PoolKind};
use crate::usage::Usage;
use crate::workload::{Action, Phase, Trajectory};

/// What happens at an instant. Completions sort first, then the trajectories in the
/// order of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The running action of a trajectory ends, unless it was timed anew since.
    Finished {
        /// Place of the trajectory.
        of: usize,
        /// Which timing this is.
        timing: u64,
    },
    /// A trajectory arrives.
    Arrived(usize),
    /// A trajectory enters its next phase.
    Proceeds(usize),
    /// An action tries again.
    Retries(usize),
    /// Something in the line of a pool may have become possible.
    Wakes,
}

/// One action, as it went. Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Place of the trajectory.
    pub trajectory: usize,
    /// Place of the phase.
    pub phase: usize,
    /// When it was submitted, the wait for a pod taken off.
    pub submitted: u64,
    /// When it started.
    pub started: u64,
    /// When it ended.
    pub ended: u64,
    /// Millionths of units that it had; those of the start where they changed.
    pub units: u64,
}

/// Where a trajectory is.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    phase: usize,
    submitted: u64,
    started: u64,
    units: u64,
    /// Wait for a pod that its first CPU action has to answer for.
    pod_wait: u64,
    timing: u64,
}

/// Time, events, and what became of the actions.
pub(crate) struct World<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) trajectories: &'a [Trajectory],
    pub(crate) now: u64,
    pub(crate) usage: Vec<Usage>,
    pub(crate) records: Vec<Record>,
    /// When the last trajectory so far ended.
    pub(crate) end: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    progress: Vec<Progress>,
}

impl<'a> World<'a> {
    pub(crate) fn new(cluster: &'a Cluster, trajectories: &'a [Trajectory]) -> Self {
        let mut world = Self {
            cluster,
            trajectories,
            now: 0,
            usage: vec![Usage::default(); cluster.pools.len()],
            records: Vec::new(),
            end: 0,
            events: BinaryHeap::new(),
            progress: vec![Progress::default(); trajectories.len()],
        };
        for (of, trajectory) in trajectories.iter().enumerate() {
            world.events.push(Reverse((trajectory.arrival, Event::Arrived(of))));
        }
        world
    }

    /// Goes to the next instant; all that happens then, in order.
    pub(crate) fn next_instant(&mut self) -> Option<Vec<Event>> {
        let Reverse((now, _)) = *self.events.peek()?;
        self.now = now;
        let mut events = Vec::new();
        while let Some(&Reverse((time, event))) = self.events.peek()
            && time == now
        {
            self.events.pop();
            let overtaken = matches!(event, Event::Finished { of, timing }
                if self.progress[of].timing != timing);
            if !overtaken {
                events.push(event);
            }
        }
        Some(events)
    }

    /// Plans an event, `after` nanoseconds from now.
    pub(crate) fn after(&mut self, after: u64, event: Event) {
        self.events.push(Reverse((self.now.saturating_add(after), event)));
    }

    /// The phase that a trajectory is at; `None` at its end.
    pub(crate) fn phase(&self, of: usize) -> Option<&'a Phase> {
        self.trajectories[of].phases.get(self.progress[of].phase)
    }

    /// The place of the phase that a trajectory is at.
    pub(crate) fn phase_index(&self, of: usize) -> usize {
        self.progress[of].phase
    }

    /// The action that the trajectory is at was submitted. Its first CPU action answers
    /// for the wait for a pod.
    pub(crate) fn submitted(&mut self, of: usize, action: &Action) {
        let on_cpu = matches!(self.cluster.pools[action.pool].kind, PoolKind::Cpu { .. });
        let progress = &mut self.progress[of];
        let wait = if on_cpu { std::mem::take(&mut progress.pod_wait) } else { 0 };
        progress.submitted = self.now - wait;
    }

    /// The trajectory waited that long for its pod.
    pub(crate) fn waited_for_pod(&mut self, of: usize, wait: u64) {
        self.progress[of].pod_wait = wait;
    }

    /// The trajectory's action runs on `units` millionths until it ends by itself.
    pub(crate) fn start(&mut self, of: usize, action: &Action, units: u64, nanos: u64) {
        self.usage[action.pool].busy.add(units, self.now);
        self.begin(of, units);
        self.time(of, nanos);
    }

    /// The trajectory's action starts; its end is not known yet.
    pub(crate) fn begin(&mut self, of: usize, units: u64) {
        self.progress[of].started = self.now;
        self.progress[of].units = units;
    }

    /// The trajectory's action ends in `nanos`, whatever was said before.
    pub(crate) fn time(&mut self, of: usize, nanos: u64) {
        self.progress[of].timing += 1;
        let timing = self.progress[of].timing;
        self.after(nanos, Event::Finished { of, timing });
    }

    /// The trajectory's action does not end as it was timed.
    pub(crate) fn untime(&mut self, of: usize) {
        self.progress[of].timing += 1;
    }

    /// The trajectory's action has ended: its record is written, and it proceeds.
    /// Returns the units that it had.
    pub(crate) fn finish(&mut self, of: usize) -> u64 {
        let progress = &mut self.progress[of];
        progress.timing += 1;
        self.records.push(Record {
            trajectory: of,
            phase: progress.phase,
            submitted: progress.submitted,
            started: progress.started,
            ended: self.now,
            units: progress.units,
        });
        progress.units
    }

    /// The trajectory is at its next phase.
    pub(crate) fn advance(&mut self, of: usize) {
        self.progress[of].phase += 1;
    }

    /// A trajectory ends.
    pub(crate) fn ended(&mut self) {
        self.end = self.now;
    }
}
