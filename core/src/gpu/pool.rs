//! The state machine of a pool: what it knows, and what can be asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::chunk::Chunk;
use super::chunks::Chunks;
use super::command::Command;
use super::config::{Config, Footprint, Service};
use super::event::{Event, OrderId};
use super::learned::{Learned, Phase};
use super::tenant::{EngineId, Kind, ServiceIndex, State, Turn};
use crate::arrange;
use crate::fault::Fault;
use crate::ids::{ActionId, NodeId};
use crate::time::Time;

/// The reward services of a GPU pool.
#[derive(Debug)]
pub struct Pool {
    pub(super) config: Config,
    pub(super) nodes: Vec<Home>,
    pub(super) chunks: Chunks,
    pub(super) engines: BTreeMap<EngineId, Engine>,
    pub(super) actions: BTreeMap<ActionId, Action>,
    /// Those that wait, by order of submission.
    pub(super) waiting: BTreeMap<Kind, BTreeMap<Turn, ActionId>>,
    pub(super) timers: BTreeSet<(Time, Timer)>,
    pub(super) ailing: BTreeMap<Kind, Ailing>,
    pub(super) learned: Learned,
    pub(super) stats: Stats,
    /// Failures of each service's engines, by [`super::Trouble::reason`].
    pub(super) failed: BTreeMap<(ServiceIndex, &'static str), u64>,
    pub(super) submitted: Turn,
    pub(super) decided: u64,
    pub(super) last_engine: u64,
    pub(super) last_order: u64,
    pub(super) out: Vec<Command>,
}

/// A node, in the place that [`Chunks`] gave it.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) name: NodeId,
    /// Bytes of its own memory that engines may keep.
    pub(super) host: u64,
    /// Since when its agent is away.
    pub(super) left: Option<Time>,
    pub(super) draining: bool,
    /// It is empty, and that was said.
    pub(super) drained: bool,
    /// It was forgotten: its place is for the next that comes.
    pub(super) vacant: bool,
}

/// A process, or the place that is kept for one.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) kind: Kind,
    /// Where it is, or is to be.
    pub(super) chunk: Chunk,
    /// Where it was awake last: other than `chunk` while it is being moved.
    pub(super) left: Chunk,
    pub(super) state: State,
    /// The last order given.
    pub(super) order: OrderId,
    pub(super) since: Time,
    /// Until when it serves those that wait for it before it makes room.
    pub(super) term: Time,
    /// Actions on it, cancelled ones too.
    pub(super) running: BTreeMap<ActionId, Time>,
    /// Tries to end it.
    pub(super) stops: u32,
    /// When it was decided that it is moved, among all such decisions.
    pub(super) decided: u64,
}

impl Engine {
    /// It is being ended, and a try to end it has failed.
    pub(super) fn withstands(&self) -> bool {
        matches!(self.state, State::Leaving { .. }) && self.stops >= 2
    }
}

#[derive(Debug)]
pub(super) struct Action {
    pub(super) kind: Kind,
    pub(super) seq: Turn,
    pub(super) deadline: Time,
    /// `None`: it waits.
    pub(super) on: Option<EngineId>,
}

/// A service at a degree whose last engine failed.
#[derive(Debug)]
pub(super) struct Ailing {
    pub(super) times: u32,
    /// It is left alone until then.
    pub(super) until: Time,
    pub(super) last: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Deadline(ActionId),
    /// An order should have been reported.
    Order(EngineId, OrderId),
    /// A cancelled action should have ended.
    Cancelled(EngineId, ActionId),
    /// An action on a node that is away should have ended by itself.
    Lost(EngineId, ActionId),
    /// A service may be tried again.
    Retry(Kind),
    /// A node has been away for so long that it is forgotten.
    Away(NodeId),
}

/// Where an engine is, as the status says it. One that does not exist is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Residency {
    /// Not on the device; asleep, if its process lives.
    Absent,
    /// On its way to the device.
    Restoring,
    /// Verified on the device.
    Resident,
    /// On its way off the device.
    Evicting,
    /// In an unknown state, and being ended.
    Failed,
}

/// An engine of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineView {
    /// Its id.
    pub engine: EngineId,
    /// What it serves.
    pub kind: Kind,
    /// Its node.
    pub node: NodeId,
    /// Its GPUs.
    pub chunk: Chunk,
    /// Its state.
    pub residency: Residency,
    /// Actions on it.
    pub running: usize,
}

/// What the pool did since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Actions started.
    pub runs: u64,
    /// Engines launched.
    pub launches: u64,
    /// Engines woken.
    pub wakes: u64,
    /// Engines put to sleep.
    pub evictions: u64,
    /// Engines that failed.
    pub failures: u64,
}

impl Pool {
    /// A pool without nodes.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            nodes: Vec::new(),
            chunks: Chunks::default(),
            engines: BTreeMap::new(),
            actions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            timers: BTreeSet::new(),
            ailing: BTreeMap::new(),
            learned: Learned::default(),
            stats: Stats::default(),
            failed: BTreeMap::new(),
            submitted: 0,
            decided: 0,
            last_engine: 0,
            last_order: 0,
            out: Vec::new(),
        }
    }

    /// The same, whose numbers of engines and orders are all above `epoch`: an agent that
    /// outlives the pool's process never sees a number twice.
    pub fn above(epoch: u64, config: Config) -> Self {
        Self { last_engine: epoch, last_order: epoch, ..Self::new(config) }
    }

    /// Handles one event. None is refused: an action that cannot run ends in
    /// [`Command::Ended`] with a fault, and a report that is void is ignored.
    pub fn on_event(&mut self, event: Event, now: Time) -> Vec<Command> {
        match event {
            Event::Submit { action, service, degree, deadline } => {
                self.submit(action, Kind { service, degree }, deadline);
            }
            Event::Cancel(action) => self.cancel(&action, now),
            Event::Late(action) => self.late(&action, now),
            Event::Finished { action, engine, result } => {
                self.finished(&action, engine, result, now);
            }
            Event::Restored(engine, order, result) => self.restored(engine, order, result, now),
            Event::Evicted(engine, order, result) => self.evicted(engine, order, result, now),
            Event::Stopped(engine, order, result) => self.stopped(engine, order, &result, now),
            Event::Broke(engine, trouble) => self.broke(engine, &trouble, now),
            Event::Gpu { node, gpu, lost } => self.gpu(&node, gpu, lost, now),
            Event::Joined(node) => self.joined(node, now),
            Event::Left(node) => self.left(&node, now),
            Event::Drain { node, on } => self.drain(&node, on, now),
            Event::Tick => {}
        }
        self.fire_timers(now);
        self.round(now);
        std::mem::take(&mut self.out)
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// All engines, by id.
    pub fn engines(&self) -> impl Iterator<Item = EngineView> {
        self.engines.iter().map(|(id, engine)| self.view(*id, engine))
    }

    /// One engine.
    pub fn engine(&self, id: EngineId) -> Option<EngineView> {
        self.engines.get(&id).map(|engine| self.view(id, engine))
    }

    fn view(&self, id: EngineId, engine: &Engine) -> EngineView {
        EngineView {
            engine: id,
            kind: engine.kind,
            node: self.nodes[engine.chunk.node].name.clone(),
            chunk: engine.chunk,
            residency: engine.state.residency(),
            running: engine.running.len(),
        }
    }

    /// Where an action runs; `None`: it waits, or is not alive.
    pub fn runs_on(&self, action: &ActionId) -> Option<EngineId> {
        self.actions.get(action)?.on
    }

    /// The last failure of a service's engines, as long as none of that degree came up since.
    pub fn trouble(&self, service: ServiceIndex) -> Option<&Fault> {
        let of = self.ailing.iter().filter(|(kind, _)| kind.service == service);
        of.max_by_key(|(_, ailing)| ailing.until).map(|(_, ailing)| &ailing.last)
    }

    /// Actions that have not ended.
    pub fn live(&self) -> usize {
        self.actions.len()
    }

    /// Actions that wait for a service.
    pub fn waiting(&self, service: ServiceIndex) -> usize {
        let of = self.waiting.iter().filter(|(kind, _)| kind.service == service);
        of.map(|(_, line)| line.len()).sum()
    }

    /// Free chunks of every size.
    pub fn free(&self) -> arrange::Chunks {
        self.chunks.free()
    }

    /// See [`Chunks::fragmentation`].
    pub fn fragmentation(&self) -> f64 {
        self.chunks.fragmentation()
    }

    /// What was done since the pool began.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Engines of a service that failed since the pool began.
    pub fn failures(&self, service: ServiceIndex) -> u64 {
        self.failures_by_reason(service).map(|(_, count)| count).sum()
    }

    /// The same by [`super::Trouble::reason`], without reasons that there were none of.
    pub fn failures_by_reason(
        &self,
        service: ServiceIndex,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let of = self.failed.iter().filter(move |((of, _), _)| *of == service);
        of.map(|((_, reason), count)| (*reason, *count))
    }

    /// How long a phase takes: as measured, else as declared; `None` where neither is known.
    pub fn expected(&self, kind: Kind, phase: Phase) -> Option<Duration> {
        let declared = || {
            let expected = self.footprint(kind)?.expected;
            match phase {
                Phase::Launch => Some(expected.launch),
                Phase::Wake => Some(expected.wake),
                Phase::Evict => Some(expected.evict),
                Phase::Run => None,
            }
        };
        self.learned.mean(kind, phase).or_else(declared)
    }

    /// Whether a node's agent is here.
    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|home| home.left.is_none())
    }

    pub(super) fn service(&self, kind: Kind) -> Option<&Service> {
        self.config.services.get(kind.service.0)
    }

    pub(super) fn footprint(&self, kind: Kind) -> Option<Footprint> {
        self.service(kind)?.degrees.get(&kind.degree).copied()
    }

    pub(super) fn node_of(&self, chunk: Chunk) -> NodeId {
        self.nodes[chunk.node].name.clone()
    }

    /// Bytes of a node's memory that its engines have, or are about to have.
    pub(super) fn host_used(&self, node: usize) -> u64 {
        let there = self.engines.values().filter(|engine| engine.chunk.node == node);
        there.filter_map(|engine| Some(self.footprint(engine.kind)?.host)).sum()
    }

    fn fire_timers(&mut self, now: Time) {
        while let Some((_, timer)) = self.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.timers.pop_first();
            match timer {
                Timer::Deadline(action) => self.deadline(&action, now),
                Timer::Order(engine, order) => self.overdue(engine, order, now),
                Timer::Cancelled(engine, action) => self.still_running(engine, &action, now),
                Timer::Lost(engine, action) => self.lost(engine, &action, now),
                // The round that follows tries it.
                Timer::Retry(_) => {}
                Timer::Away(node) => self.forget_node(&node, now),
            }
        }
    }
}

impl State {
    fn residency(self) -> Residency {
        match self {
            Self::Reserved { .. } | Self::Asleep => Residency::Absent,
            Self::Restoring { .. } => Residency::Restoring,
            Self::Resident => Residency::Resident,
            Self::Yielding | Self::Evicting | Self::Leaving { failed: false } => {
                Residency::Evicting
            }
            Self::Leaving { failed: true } => Residency::Failed,
        }
    }
}
