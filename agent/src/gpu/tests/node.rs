//! A pool and a driver that are wired to each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{
    Command, Config, Degree, Event, Footprint, Kind, Limits, Node, Pool, Service, ServiceIndex,
};
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_core::reward::Backoff;
use rollwright_core::time::Time;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::gpu::spec::{EngineKind, EngineSpec, EvictBy, Needs};
use crate::gpu::{Backend, Caller, Device, Driver, Instruction};

/// A generous limit of a whole test.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

pub(super) fn kind(service: usize) -> Kind {
    Kind { service: ServiceIndex(service), degree: Degree::new(1).unwrap() }
}

/// What each service of a test needs: two do not fit on a GPU of 10.
pub(super) fn footprint() -> Footprint {
    Footprint { device: 6, residue: 1, host: 1, expected: Limits::default() }
}

/// What the engines of a service are.
pub(super) fn spec(kind: Kind) -> EngineSpec {
    let Footprint { device, residue, host, .. } = footprint();
    EngineSpec {
        service: format!("s{}", kind.service.0),
        engine: EngineKind::Vllm,
        image: None,
        args: Vec::new(),
        env: BTreeMap::new(),
        model: "model".into(),
        served_name: "engine-sim".into(),
        degree: kind.degree.gpus(),
        evict: EvictBy::EngineSleep,
        probe: None,
        footprint: Needs { device, residue, host },
    }
}

/// A command as it reaches the node; none is one that stays with the core.
pub(super) fn instruction(command: Command, spec: &EngineSpec) -> Option<Instruction> {
    Some(match command {
        Command::Restore { engine, order, chunk, kind, launch: true, limit, .. } => {
            let service = format!("s{}", kind.service.0);
            let spec = Arc::new(EngineSpec { service, ..spec.clone() });
            Instruction::Launch { engine, order, spec, chunk, limit }
        }
        Command::Restore { engine, order, limit, .. } => {
            Instruction::Wake { engine, order, to: None, limit }
        }
        Command::Evict { engine, order, residue, limit, .. } => {
            Instruction::Evict { engine, order, residue, limit }
        }
        Command::Stop { engine, order, limit, .. } => Instruction::Stop { engine, order, limit },
        Command::Run { action, engine, .. } => Instruction::Run { action, engine },
        Command::Cancel { action, engine, .. } => Instruction::Cancel { action, engine },
        Command::Ended { .. } | Command::Drained(_) | Command::Forgotten(_) => return None,
    })
}

/// Services with one engine each, and these limits for orders.
pub(super) fn config(services: usize, limits: Limits) -> Config {
    let service = |n| Service {
        name: format!("s{n}"),
        batch: 2,
        pinned: 0,
        degrees: BTreeMap::from([(Degree::new(1).unwrap(), footprint())]),
        limits,
        timeout: Duration::from_mins(1),
    };
    let backoff = Backoff { first: Duration::from_millis(5), most: Duration::from_millis(50) };
    let services = (0..services).map(service).collect();
    Config {
        services,
        max_actions: 1000,
        backoff,
        grace: Duration::from_secs(30),
        forget: Duration::from_hours(1),
    }
}

/// Remembers what was called where.
#[derive(Debug, Default)]
pub(super) struct Calls(pub(super) Mutex<Vec<(ActionId, String)>>);

#[async_trait]
impl Caller for Calls {
    async fn call(&self, action: &ActionId, address: &str) -> Result<(), Fault> {
        self.0.lock().unwrap().push((action.clone(), address.to_owned()));
        Ok(())
    }
}

pub(super) struct Wired {
    pub(super) pool: Pool,
    pub(super) calls: Arc<Calls>,
    pub(super) ended: BTreeMap<ActionId, Result<(), Fault>>,
    spec: EngineSpec,
    commands: mpsc::Sender<Instruction>,
    events: mpsc::Receiver<Event>,
    begun: Instant,
    submitted: usize,
}

impl Wired {
    /// A node with one GPU of 10 bytes and memory for a hundred engines.
    pub(super) async fn new(
        config: Config,
        spec: EngineSpec,
        backend: Arc<dyn Backend>,
        device: Arc<dyn Device>,
    ) -> Self {
        let calls = Arc::new(Calls::default());
        let driver = Driver::new(backend, device, Arc::clone(&calls) as Arc<dyn Caller>);
        let (commands, orders) = mpsc::channel(1000);
        let (reports, events) = mpsc::channel(1000);
        tokio::spawn(driver.run(orders, reports));
        let (pool, ended) = (Pool::new(config), BTreeMap::new());
        let begun = Instant::now();
        let mut wired = Self { pool, calls, ended, spec, commands, events, begun, submitted: 0 };
        let name = NodeId::new("node").unwrap();
        let (lost, engines) = (Vec::new(), Vec::new());
        let node = Node { name, gpus: 1, memory: 10, host: 100, lost, engines };
        wired.send(Event::Joined(node)).await;
        wired
    }

    /// Submits one action for a service, with all the time of the test.
    pub(super) async fn submit(&mut self, service: usize) {
        let action = ActionId::new(&format!("a{}", self.submitted)).unwrap();
        self.submitted += 1;
        let Kind { service, degree } = kind(service);
        let deadline = self.now() + LIMIT;
        self.send(Event::Submit { action, service, degree, deadline }).await;
    }

    /// Works until every action has ended.
    pub(super) async fn finish(&mut self) {
        let work = async {
            while self.pool.live() > 0 {
                let next = self.pool.next_deadline().expect("a deadline of an action");
                let wait = next.since(self.now());
                let event = tokio::time::timeout(wait, self.events.recv()).await;
                let event = event.map_or(Event::Tick, |event| event.expect("a driver"));
                self.send(event).await;
            }
        };
        tokio::time::timeout(LIMIT, work).await.expect("all actions end in time");
    }

    /// Every action that was submitted was called once, and has ended well.
    pub(super) fn assert_all_served(&self) {
        assert_eq!(self.ended.len(), self.submitted);
        for (action, result) in &self.ended {
            assert_eq!(*result, Ok(()), "{action}");
        }
        let mut called: Vec<_> = self.calls.0.lock().unwrap().iter().map(|c| c.0.clone()).collect();
        let calls = called.len();
        called.sort();
        called.dedup();
        assert_eq!((called.len(), calls), (self.submitted, self.submitted));
    }

    fn now(&self) -> Time {
        Time::ZERO + self.begun.elapsed()
    }

    async fn send(&mut self, event: Event) {
        let now = self.now();
        for command in self.pool.on_event(event, now) {
            if let Command::Ended { action, result } = &command {
                assert!(self.ended.insert(action.clone(), result.clone()).is_none());
            }
            if let Some(instruction) = instruction(command, &self.spec) {
                self.commands.send(instruction).await.expect("a driver");
            }
        }
    }
}
