//! How long the core takes for one event, with many actions waiting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use rollwright_core::ids::{ActionId, JobId, NodeId, TrajectoryId};
use rollwright_core::profile::Prior;
use rollwright_core::queue::{
    Command, Config, End, Event, Foresight, NodeOrder, NodeReport, NodeUp, OpenTrajectory, Policy,
    Queue, SubmitAction,
};
use rollwright_core::resources::{Cost, UnitChoice, Units};
use rollwright_core::time::Time;

use crate::table::Row;

const NODES: usize = 5;
const CORES: u32 = 256;
const TRAJECTORIES: usize = 400;
const EVENTS: usize = 6_000;
/// Seconds on one core.
const DURATION: f64 = 20.0;
const SERIAL: f64 = 0.1;

/// A full pool of 1,280 cores and so many waiting actions of eight jobs: each action
/// that ends makes room for the next, and a new one is submitted. Beside it, in the same
/// run, what the simplest policy costs.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    [500, 2_000, 8_000].into_iter().map(measure_with).collect()
}

fn measure_with(waiting: usize) -> anyhow::Result<Row> {
    eprintln!("decision: {EVENTS} ends with {waiting} waiting ...");
    let ours = ends(Policy::Elastic, waiting)?;
    let fixed = ends(Policy::FixedDop { dop: Units::cores(4) }, waiting)?;
    let micros = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let (p99, fixed_p99) = (micros(&ours, 0.99), micros(&fixed, 0.99));
    Ok(Row {
        figure: format!("core decision p99, {waiting} waiting, {} cores", NODES as u32 * CORES),
        ours: format!("{p99:.1} us (p50 {:.1} us)", micros(&ours, 0.5)),
        baseline: format!("{fixed_p99:.1} us (FixedDop 4)"),
        ratio: format!("{:.1}", p99 / fixed_p99),
        target: "< 200 us".to_owned(),
        reached: p99 < 200.0,
    })
}

/// Nanoseconds of each end, and of what it lets start; and of each moment that the queue waits for.
fn ends(policy: Policy, waiting: usize) -> anyhow::Result<Histogram<u64>> {
    let mut world = World::new(policy, waiting)?;
    let mut times = Histogram::<u64>::new(3)?;
    for _ in 0..EVENTS {
        // What waits for others to be submitted with it starts then.
        while let Some(ticked) = world.tick_before_next_end() {
            times.record(ticked)?;
        }
        let Reverse((at, node, action, attempt)) = world.running.pop().context("nothing runs")?;
        world.now = at.max(world.now);
        let report = NodeReport::ActionEnded {
            action,
            attempt,
            end: End::Finished,
            not_started: false,
            usage: None,
        };
        times.record(world.timed(Event::Report { node, epoch: 1, report }))?;
        while world.queue.stats().waiting < waiting {
            world.submit()?;
        }
    }
    Ok(times)
}

struct World {
    queue: Queue,
    now: u64,
    submitted: usize,
    /// By when they end.
    running: BinaryHeap<Reverse<(u64, NodeId, ActionId, u32)>>,
}

impl World {
    fn new(policy: Policy, waiting: usize) -> anyhow::Result<Self> {
        let config = Config { policy, ..Config::default() };
        let (queue, running) = (Queue::new(config), BinaryHeap::new());
        let mut world = Self { queue, now: 0, submitted: 0, running };
        for n in 0..NODES {
            let half = CORES / 2;
            let up = NodeUp {
                node: NodeId::new(&format!("n{n}"))?,
                epoch: 1,
                numa: vec![(0..half).collect(), (half..CORES).collect()],
                memory: 1 << 40,
                sandboxes: Vec::new(),
                actions: Vec::new(),
            };
            world.timed(Event::NodeUp(up));
        }
        for t in 0..TRAJECTORIES {
            let trajectory = TrajectoryId::new(&format!("t{t}"))?;
            let open = OpenTrajectory {
                trajectory: trajectory.clone(),
                job: JobId::new(&format!("j{}", t % 8))?,
                memory: 1 << 20,
                min_cores: 1,
                deadline: None,
                placed: None,
            };
            let placed = world.queue.on_event(Event::Open(open), Time::from_nanos(world.now));
            let node = placed.into_iter().find_map(|command| match command {
                Command::TrajectoryPlaced { node, .. } => Some(node),
                _ => None,
            });
            let node = node.context("not placed")?;
            let report = NodeReport::SandboxReady(trajectory);
            world.timed(Event::Report { node, epoch: 1, report });
        }
        while world.queue.stats().waiting < waiting {
            world.submit()?;
        }
        Ok(world)
    }

    fn submit(&mut self) -> anyhow::Result<()> {
        self.submitted += 1;
        let trajectory = TrajectoryId::new(&format!("t{}", self.submitted % TRAJECTORIES))?;
        let cost = Cost {
            cpu: UnitChoice::from_f64(&[1.0, 2.0, 4.0, 8.0])?,
            quota: std::collections::BTreeMap::new(),
        };
        let action = ActionId::new(&format!("a{}", self.submitted))?;
        let seconds = DURATION * (1 + self.submitted % 7) as f64 / 4.0;
        let said = Prior { seconds: Some(seconds), serial: Some(SERIAL) };
        let foresight = Foresight { said, ..Foresight::default() };
        self.timed(Event::Submit(SubmitAction {
            action,
            trajectory,
            cost,
            start_by: None,
            submitted: None,
            foresight,
        }));
        Ok(())
    }

    /// Lets time pass until the queue wants it, if no action ends before.
    fn tick_before_next_end(&mut self) -> Option<u64> {
        let due = self.queue.next_wakeup()?.as_nanos();
        let next = self.running.peek().map(|Reverse((at, ..))| *at);
        if next.is_some_and(|next| next <= due) {
            return None;
        }
        self.now = due.max(self.now);
        Some(self.timed(Event::Tick))
    }

    /// Hands one event over, notes what was started, and returns the nanoseconds of
    /// processor time: others may use the machine.
    fn timed(&mut self, event: Event) -> u64 {
        self.now += 1_000;
        let begin = processor_time();
        let commands = self.queue.on_event(event, Time::from_nanos(self.now));
        let nanos = processor_time() - begin;
        for command in commands {
            if let Command::Node { node, order, .. } = command
                && let NodeOrder::Start { action, attempt, units, .. } = order
            {
                let number: usize = action.as_str()[1..].parse().unwrap_or_default();
                let seconds = DURATION * (1 + number % 7) as f64 / 4.0;
                let seconds = seconds * (SERIAL + (1.0 - SERIAL) / units.as_f64());
                let end = self.now + (seconds * 1e9) as u64;
                self.running.push(Reverse((end, node, action, attempt)));
            }
        }
        nanos
    }
}

/// Nanoseconds that this thread has run.
fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
}
