//! One pool: the core, and what is counted beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use rollwright_core::gpu::{self, EngineId, Kind, Residency, ServiceIndex};
use rollwright_core::ids::{JobId, NodeId};
use rollwright_core::reward::Backoff;
use rollwright_core::time::Time;

use super::config::{GpuPool, GpuService};
use super::strays::Stray;

/// How long a service is left alone after a fault.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_mins(1) };
/// How long past an order's limit an agent may be silent, and a cancelled call may take.
const GRACE: Duration = Duration::from_secs(10);
/// How long a node may be away before it is forgotten: longer than one takes to be restarted.
const FORGET: Duration = Duration::from_hours(1);

/// A pool of GPUs.
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) services: Vec<GpuService>,
    pub(super) max_calls: usize,
    pub(super) core: gpu::Pool,
    /// What was done for each service.
    pub(super) tallies: Vec<Tally>,
    pub(super) moves: HashMap<EngineId, Move>,
    /// Calls of each job.
    pub(super) jobs: HashMap<JobId, usize>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
}

/// Counts since the queue began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) restores: u64,
    pub(super) evictions: u64,
    pub(super) calls: u64,
    pub(super) hits: u64,
    pub(super) running: u64,
}

/// When an engine was last on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) kind: Kind,
    /// The last order was given.
    pub(super) ordered: Time,
    /// It was made resident from and until then; `None`: it was found resident.
    pub(super) restore: Option<(Time, Time)>,
}

/// What a node that is leaving still waits for, beside its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Nothing: its engines stay.
    Alone,
    /// Its engines end as well.
    Draining,
    /// They have ended.
    Drained,
}

/// A node as its agent described it.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) linked: bool,
    pub(super) gpus: u32,
    /// Bytes of each.
    pub(super) memory: u64,
    /// Bytes of its own memory that engines may keep.
    pub(super) host: u64,
    pub(super) lost: BTreeSet<u32>,
    pub(super) fake: bool,
    /// Engines that are of no service here and are being ended.
    pub(super) strays: BTreeMap<u64, Stray>,
    /// Its agent is about to end.
    pub(super) leaving: Option<Leaving>,
}

impl Pool {
    pub(super) fn new(config: GpuPool, epoch: u64) -> Self {
        let services = config.services.iter().map(|service| service.core.clone()).collect();
        let core = gpu::Config {
            services,
            max_actions: config.max_calls,
            backoff: BACKOFF,
            grace: GRACE,
            forget: FORGET,
        };
        Self {
            tallies: vec![Tally::default(); config.services.len()],
            name: config.name,
            services: config.services,
            max_calls: config.max_calls,
            core: gpu::Pool::above(epoch, core),
            moves: HashMap::new(),
            jobs: HashMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// A service by its id at the queue.
    pub(super) fn service(&self, id: &str) -> Option<ServiceIndex> {
        self.services.iter().position(|service| service.core.name == id).map(ServiceIndex)
    }

    /// The name of a service, for labels.
    pub(super) fn label(&self, service: ServiceIndex) -> &str {
        self.services.get(service.0).map_or("", |service| service.core.name.as_str())
    }

    /// True when the engine is on this node: other agents have no say in it.
    pub(super) fn is_at(&self, engine: EngineId, node: &NodeId) -> bool {
        self.core.engine(engine).is_some_and(|view| view.node == *node)
    }

    /// Whether a node's agent is here: of one that is away nothing is known but its last word.
    pub(super) fn is_linked(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.linked)
    }

    /// Engines of a service on the device.
    pub(super) fn residents(&self, service: ServiceIndex) -> usize {
        let of = self.core.engines().filter(|view| view.kind.service == service);
        let of = of.filter(|view| self.is_linked(&view.node));
        of.filter(|view| view.residency == Residency::Resident).count()
    }

    /// Of the time from `submitted` to `now`, how much the engine was being made resident;
    /// `None` where it was resident already.
    pub(super) fn restored_for(&self, engine: EngineId, submitted: Time) -> Option<Duration> {
        let (began, until) = self.moves.get(&engine)?.restore?;
        (until > submitted).then(|| until.since(began.max(submitted)))
    }

    /// Forgets engines that are gone.
    pub(super) fn tidy(&mut self) {
        let core = &self.core;
        self.moves.retain(|engine, _| core.engine(*engine).is_some());
    }
}
