//! A model of nodes, devices and engines, and of agents that carry out orders when they are
//! told to. It knows what is true; the pool knows only what is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::reports::Outcome;
use crate::fault::Fault;
use crate::gpu::{
    Chunk, Command, Config, Degree, EngineId, Event, Footprint, Kind, Limits, Order, OrderId,
    Phase, Pool, Service, ServiceIndex,
};
use crate::ids::{ActionId, NodeId};
use crate::reward::Backoff;
use crate::time::Time;

/// Bytes of a model's GPU.
pub(super) const MEMORY: u64 = 10;
/// Bytes of a model's node.
pub(super) const HOST: u64 = 30;
/// How long a model's node may be away before it is forgotten.
pub(super) const FORGET: Duration = Duration::from_secs(30);

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn action(n: usize) -> ActionId {
    ActionId::new(&format!("a{n}")).unwrap()
}

pub(super) fn node(n: usize) -> NodeId {
    NodeId::new(&format!("n{n}")).unwrap()
}

/// The place of a machine among all, which need not be that of its node in the pool's books.
pub(super) fn index(name: &NodeId) -> usize {
    name.as_str()[1..].parse().unwrap()
}

pub(super) fn kind(service: usize, gpus: u32) -> Kind {
    Kind { service: ServiceIndex(service), degree: Degree::new(gpus).unwrap() }
}

fn footprint(device: u64, residue: u64, host: u64) -> Footprint {
    let expected = Limits { launch: secs(20), wake: secs(2), evict: secs(1), stop: secs(1) };
    Footprint { device, residue, host, expected }
}

pub(super) fn service(name: &str, batch: usize, degrees: &[(u32, u64, u64, u64)]) -> Service {
    let degrees = degrees.iter().map(|(gpus, device, residue, host)| {
        (Degree::new(*gpus).unwrap(), footprint(*device, *residue, *host))
    });
    let limits = Limits { launch: secs(60), wake: secs(10), evict: secs(5), stop: secs(5) };
    let (name, degrees, timeout) = (name.into(), degrees.collect(), secs(300));
    Service { name, batch, pinned: 0, degrees, limits, timeout }
}

/// One that batches, one that fills a GPU, one that spans four, one of which an engine stays,
/// one that fits beside others, and [`ROAMS`].
pub(super) fn services() -> Vec<Service> {
    vec![
        service("batches", 2, &[(1, 6, 1, 6), (2, 3, 1, 6)]),
        service("fills", 1, &[(1, MEMORY, 0, 5)]),
        service("spans", 1, &[(4, 5, 1, 20)]),
        Service { pinned: 1, ..service("stays", 1, &[(1, 2, 0, 2)]) },
        service("small", 1, &[(1, 3, 1, 2), (2, 2, 0, 3)]),
        service("roams", 1, &[(1, 6, 1, 3), (2, 5, 1, 3)]),
    ]
}

/// Of [`services`], the one whose engines a driver can move.
pub(super) const ROAMS: ServiceIndex = ServiceIndex(5);

/// What a process truly is.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) kind: Kind,
    pub(super) chunk: Chunk,
    pub(super) awake: bool,
    /// Bytes on each of its GPUs.
    pub(super) held: u64,
    pub(super) answers: bool,
    pub(super) running: BTreeSet<ActionId>,
    /// Ended there, and never acknowledged.
    pub(super) told: Vec<ActionId>,
    /// The process is gone, although its memory may not be.
    pub(super) dead: bool,
}

/// An order that is being carried out.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) engine: EngineId,
    pub(super) node: NodeId,
    pub(super) order: OrderId,
    pub(super) what: Order,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a model keeps apart what is true")]
pub(super) struct Machine {
    pub(super) gpus: u32,
    pub(super) up: bool,
    /// The pool has it in its books.
    pub(super) known: bool,
    pub(super) draining: bool,
    pub(super) lost: BTreeSet<u32>,
    /// Its agent and driver can move engines.
    pub(super) moves: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) pool: Pool,
    pub(super) config: Config,
    pub(super) now: Time,
    pub(super) machines: BTreeMap<NodeId, Machine>,
    /// Services whose engines can be moved where their node can.
    pub(super) movable: BTreeSet<ServiceIndex>,
    pub(super) processes: BTreeMap<EngineId, Process>,
    pub(super) tasks: Vec<Task>,
    /// Submitted and not ended.
    pub(super) open: BTreeSet<ActionId>,
    pub(super) ended: BTreeMap<ActionId, Result<(), Fault>>,
    started: BTreeSet<ActionId>,
    pub(super) kinds: BTreeMap<ActionId, Kind>,
    /// Restored for some that wait still: until when they serve those before they make room;
    /// `None` before the first of them.
    pub(super) owing: BTreeMap<EngineId, Option<Time>>,
    /// Running when their pool was lost.
    pub(super) adrift: BTreeSet<ActionId>,
    /// Cancelled, and still running when their pool was lost.
    pub(super) strays: BTreeSet<ActionId>,
    /// Waiting when their pool was lost.
    pub(super) forgotten: usize,
    pub(super) finished_well: BTreeSet<ActionId>,
    pub(super) drained: Vec<NodeId>,
    ticks: usize,
    pub(super) epoch: u64,
    /// Orders in the order in which they were given.
    pub(super) given: Vec<(Order, EngineId)>,
}

impl World {
    pub(super) fn new(services: Vec<Service>, gpus: &[u32]) -> Self {
        let backoff = Backoff { first: secs(1), most: secs(8) };
        let config = Config { services, max_actions: 100, backoff, grace: secs(2), forget: FORGET };
        let mut world = Self {
            pool: Pool::new(config.clone()),
            config,
            now: Time::ZERO,
            machines: BTreeMap::new(),
            movable: BTreeSet::new(),
            processes: BTreeMap::new(),
            tasks: Vec::new(),
            open: BTreeSet::new(),
            ended: BTreeMap::new(),
            started: BTreeSet::new(),
            kinds: BTreeMap::new(),
            owing: BTreeMap::new(),
            adrift: BTreeSet::new(),
            strays: BTreeSet::new(),
            forgotten: 0,
            finished_well: BTreeSet::new(),
            drained: Vec::new(),
            ticks: 0,
            epoch: 0,
            given: Vec::new(),
        };
        for (n, gpus) in gpus.iter().enumerate() {
            let lost = BTreeSet::new();
            let moves = n == 0;
            let machine =
                Machine { gpus: *gpus, up: false, known: false, draining: false, lost, moves };
            world.machines.insert(node(n), machine);
            world.join(&node(n), false);
        }
        world
    }

    pub(super) fn submit(&mut self, n: usize, kind: Kind, patience: u64) {
        self.open.insert(action(n));
        self.kinds.insert(action(n), kind);
        let (service, degree) = (kind.service, kind.degree);
        let deadline = self.now + secs(patience);
        self.send(Event::Submit { action: action(n), service, degree, deadline });
    }

    pub(super) fn result(&self, n: usize) -> Option<Result<(), &str>> {
        let result = self.ended.get(&action(n))?;
        Some(result.as_ref().copied().map_err(|fault| &*fault.reason))
    }

    pub(super) fn drain(&mut self, name: &NodeId, on: bool) {
        let machine = self.machines.get_mut(name).unwrap();
        machine.draining = on && machine.known;
        self.send(Event::Drain { node: name.clone(), on });
    }

    pub(super) fn gpu(&mut self, name: &NodeId, gpu: u32, lost: bool) {
        let machine = self.machines.get_mut(name).unwrap();
        if gpu >= machine.gpus {
            return;
        }
        if lost {
            machine.lost.insert(gpu);
        } else {
            machine.lost.remove(&gpu);
        }
        if machine.up {
            self.send(Event::Gpu { node: name.clone(), gpu, lost });
        }
    }

    pub(super) fn footprint(&self, kind: Kind) -> Footprint {
        self.config.services[kind.service.0].degrees[&kind.degree]
    }

    /// Whether an engine of this kind can be moved on that node.
    pub(super) fn moves(&self, kind: Kind, node: &NodeId) -> bool {
        self.movable.contains(&kind.service) && self.machines[node].moves
    }

    /// Everything that is ordered is done and everything that runs ends, until nothing does.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            if self.tasks.is_empty() && self.processes.values().all(|p| p.running.is_empty()) {
                return;
            }
            for _ in 0..1000 {
                self.report(0, Outcome::Good);
            }
            assert!(
                self.tasks.is_empty(),
                "orders without end: {:?} {:?}",
                &self.given[self.given.len() - 30..],
                self.pool
            );
            self.finish(0, true);
        }
        panic!("it never settles: {:?}", self.pool);
    }

    /// Time passes, with a tick at each deadline on the way.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(at) = self.pool.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now, "a deadline is not handled");
            self.now = at;
            self.ticks += 1;
            assert!(self.ticks < 100_000, "ticks without end: {:?}", self.pool);
            self.send(Event::Tick);
        }
        self.now = end;
    }

    pub(super) fn send(&mut self, event: Event) {
        for command in self.pool.on_event(event, self.now) {
            self.carry_out(command);
        }
        self.check();
    }

    pub(super) fn carry_out(&mut self, command: Command) {
        match command {
            Command::Ended { action, .. } if self.strays.remove(&action) => {}
            Command::Ended { action, result } => {
                assert!(self.open.remove(&action), "{action} ended twice, or was not submitted");
                assert!(result.is_err() || self.finished_well.contains(&action));
                assert!(self.ended.insert(action, result).is_none());
            }
            Command::Drained(node) => self.drained.push(node),
            Command::Forgotten(node) => self.is_forgotten(&node),
            Command::Restore { node, .. }
            | Command::Evict { node, .. }
            | Command::Stop { node, .. }
            | Command::Run { node, .. }
            | Command::Cancel { node, .. }
                if !self.machines[&node].up => {}
            Command::Restore { engine, order, node, chunk, kind, launch, .. } => {
                assert!(!self.machines[&node].draining, "{engine:?} is restored while draining");
                let chunk = Chunk::new(index(&node), chunk.start(), chunk.degree()).unwrap();
                self.restore(engine, chunk, kind, launch);
                let what = if launch { Order::Launch } else { Order::Wake };
                self.task(engine, node, order, what);
            }
            Command::Evict { engine, order, node, .. } => {
                let process = &self.processes[&engine];
                assert!(process.running.is_empty(), "{engine:?} is evicted while it executes");
                self.check_owes(engine);
                self.task(engine, node, order, Order::Evict);
            }
            Command::Stop { engine, order, node, .. } => {
                self.check_stop(engine, &node);
                // What was ordered before is void, and what ran there is gone.
                self.tasks.retain(|task| task.engine != engine);
                if let Some(process) = self.processes.get_mut(&engine) {
                    process.running.clear();
                    process.dead = true;
                }
                self.task(engine, node, order, Order::Stop);
            }
            Command::Run { action, engine, node, .. } => {
                assert!(!self.machines[&node].draining, "{action} starts while draining");
                self.run(action, engine);
            }
            Command::Cancel { action, engine, .. } => {
                assert!(!self.open.contains(&action) || self.processes.contains_key(&engine));
            }
        }
    }

    fn task(&mut self, engine: EngineId, node: NodeId, order: OrderId, what: Order) {
        assert!(self.tasks.iter().all(|task| task.engine != engine), "two orders at once");
        self.check_moves(engine, what);
        self.given.push((what, engine));
        self.tasks.push(Task { engine, node, order, what });
    }

    fn beside(&self, engine: EngineId, chunk: Chunk) -> impl Iterator<Item = &Process> {
        self.processes
            .iter()
            .filter(move |(id, process)| **id != engine && process.chunk.overlaps(chunk))
            .map(|(_, process)| process)
    }

    fn restore(&mut self, engine: EngineId, chunk: Chunk, kind: Kind, launch: bool) {
        let (need, moves) = (self.footprint(kind), self.moves(kind, &node(chunk.node)));
        let machine = &self.machines[&node(chunk.node)];
        assert!(chunk.gpus().all(|gpu| gpu < machine.gpus && !machine.lost.contains(&gpu)));
        assert_eq!(chunk.degree(), kind.degree);
        assert_eq!(launch, !self.processes.contains_key(&engine), "{engine:?}");
        for gpu in chunk.gpus() {
            let there = self.beside(engine, chunk).filter(|p| p.chunk.gpus().contains(&gpu));
            let held: u64 = there.map(|process| process.held).sum();
            assert!(held + need.device <= MEMORY, "GPU {gpu} has {held} bytes already");
        }
        let process = self.processes.entry(engine).or_insert(Process {
            kind,
            chunk,
            awake: false,
            held: 0,
            answers: false,
            running: BTreeSet::new(),
            told: Vec::new(),
            dead: false,
        });
        assert!(!process.awake, "{engine:?} is woken twice");
        if process.chunk != chunk {
            assert!(moves && process.held == 0, "{engine:?} is bound to {}", process.chunk);
            assert_eq!(process.chunk.node, chunk.node, "{engine:?} is moved to another node");
            process.chunk = chunk;
        }
        // From now on it may take what it was promised.
        process.held = need.device;
        let there = self.processes.values().filter(|process| process.chunk.node == chunk.node);
        let host: u64 = there.filter(|p| !p.dead).map(|p| self.footprint(p.kind).host).sum();
        assert!(host <= HOST, "{host} bytes of the node's memory");
    }

    fn run(&mut self, action: ActionId, engine: EngineId) {
        assert!(self.open.contains(&action), "{action} is not wanted");
        assert!(self.started.insert(action.clone()), "{action} runs twice");
        let process = &self.processes[&engine];
        let (kind, chunk) = (process.kind, process.chunk);
        assert!(process.awake && !process.dead && process.answers, "{engine:?} cannot serve");
        assert_eq!(process.held, self.footprint(kind).device);
        let busy = self.beside(engine, chunk).any(|process| !process.running.is_empty());
        assert!(!busy, "a GPU of {chunk} is booked twice");
        let [evict, wake] = [Phase::Evict, Phase::Wake]
            .map(|phase| self.pool.expected(kind, phase).unwrap_or_default());
        self.owing.entry(engine).and_modify(|until| {
            until.get_or_insert(self.now + evict + wake);
        });
        let process = self.processes.get_mut(&engine).unwrap();
        process.running.insert(action);
        assert!(process.running.len() <= self.config.services[kind.service.0].batch);
    }
}
