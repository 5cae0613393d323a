//! How long the core takes for one event, with many actions waiting.

use std::time::Instant;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use rollwright_core::ids::{ActionId, JobId, NodeId, TrajectoryId};
use rollwright_core::queue::{
    Command, Config, End, Event, NodeOrder, NodeReport, NodeUp, OpenTrajectory, Policy, Queue,
    SubmitAction,
};
use rollwright_core::resources::{Cost, UnitChoice, Units};
use rollwright_core::time::Time;

use crate::table::Row;

const NODES: usize = 5;
const CORES: u32 = 256;
const WAITING: usize = 2_000;
const TRAJECTORIES: usize = 400;
const EVENTS: usize = 50_000;

/// A full pool of 1,280 cores and 2,000 waiting actions of eight jobs: each action
/// that ends makes room for the next, and a new one is submitted.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    eprintln!("decision: {EVENTS} ends with {WAITING} waiting ...");
    let mut world = World::new()?;
    let mut times = Histogram::<u64>::new(3)?;
    for _ in 0..EVENTS {
        let (node, action, attempt) = world.running.pop_front().context("nothing runs")?;
        let report =
            NodeReport::ActionEnded { action, attempt, end: End::Finished, not_started: false };
        let nanos = world.timed(Event::Report { node, epoch: 1, report });
        times.record(nanos)?;
        world.submit()?;
    }
    let micros = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let p99 = micros(0.99);
    Ok(vec![Row {
        figure: format!("core decision p99, {WAITING} waiting, {} cores", NODES as u32 * CORES),
        ours: format!("{p99:.1} us (p50 {:.1} us)", micros(0.5)),
        baseline: "-".to_owned(),
        ratio: "-".to_owned(),
        target: "< 200 us".to_owned(),
        reached: p99 < 200.0,
    }])
}

struct World {
    queue: Queue,
    now: u64,
    submitted: usize,
    running: std::collections::VecDeque<(NodeId, ActionId, u32)>,
}

impl World {
    fn new() -> anyhow::Result<Self> {
        let config =
            Config { policy: Policy::FixedDop { dop: Units::cores(4) }, ..Config::default() };
        let (queue, running) = (Queue::new(config), std::collections::VecDeque::new());
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
        while world.queue.stats().waiting < WAITING {
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
        self.timed(Event::Submit(SubmitAction {
            action,
            trajectory,
            cost,
            start_by: None,
            submitted: None,
        }));
        Ok(())
    }

    /// Hands one event over, notes what was started, and returns the nanoseconds.
    fn timed(&mut self, event: Event) -> u64 {
        self.now += 1_000;
        let begin = Instant::now();
        let commands = self.queue.on_event(event, Time::from_nanos(self.now));
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for command in commands {
            if let Command::Node { node, order: NodeOrder::Start { action, attempt, .. }, .. } =
                command
            {
                self.running.push_back((node, action, attempt));
            }
        }
        nanos
    }
}
