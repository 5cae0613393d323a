//! The action queue as a state machine: events in, commands out.
//!
//! Every accepted action ends exactly once. Its cores, quota and memory are held
//! from the grant until the node says that it has ended, or the node is given up.
//! Agents may report late, twice or under an old link; links and the queue itself
//! may be lost at any time.

mod action;
mod command;
mod config;
mod crowd;
mod elastic;
mod event;
mod fair;
mod held;
mod line;
mod node;
mod permit;
mod policy;
mod reconcile;
mod schedule;
mod stats;
mod trajectory;

use std::collections::{BTreeMap, BTreeSet};

pub use command::{Command, NodeOrder, Outcome, Run};
pub use config::Config;
pub use event::{
    AcquirePermit, End, Event, Foresight, LiveAction, NodeReport, NodeUp, OpenTrajectory, Placed,
    SubmitAction, Usage,
};
pub use policy::{Decision, Policy};
pub use stats::{NodeStats, QuotaStats, Stats};

use self::action::Action;
use self::fair::FairShare;
use self::line::Line;
use self::node::Node;
use self::permit::{Permit, QuotaLine};
use self::trajectory::Trajectory;
use crate::elastic::Remaining;
use crate::ids::{ActionId, NodeId, PermitId, QuotaName, TrajectoryId};
use crate::profile::Profiles;
use crate::time::Time;

/// Order of submission; names an action or permit inside the queue.
type Seq = u64;

/// What a timer is for. A timer that fires is checked against the present state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    StartBy(Seq),
    OpenBy(TrajectoryId),
    NodeGrace(NodeId),
    Line(NodeId),
    PermitWait(PermitId),
    PermitTtl(PermitId),
    QuotaRoom(QuotaName),
    NodesSettled,
}

/// One scheduler over the pools of one `ActionQueue`.
///
/// Cost of an event: logarithmic in the number of live actions; of a scheduling
/// round: proportional to what it starts, times the number of waiting jobs. Under the
/// elastic policy that of a decision for each node in which something changed, which
/// looks at a bounded number of waiting actions and at what runs there.
#[derive(Debug)]
pub struct Queue {
    config: Config,
    now: Time,
    next_seq: Seq,
    actions: BTreeMap<Seq, Action>,
    action_ids: BTreeMap<ActionId, Seq>,
    trajectories: BTreeMap<TrajectoryId, Trajectory>,
    /// Trajectories that wait for a node.
    opening: Line<(Seq, TrajectoryId)>,
    nodes: BTreeMap<NodeId, Node>,
    quotas: BTreeMap<QuotaName, QuotaLine>,
    permits: BTreeMap<PermitId, Permit>,
    cpu_share: FairShare,
    memory_share: FairShare,
    profiles: Profiles,
    /// Who is first, under the trajectory-aware policy.
    remaining: Remaining,
    timers: BTreeSet<(Time, Timer)>,
    /// Actions and permits that wait.
    waiting: usize,
    /// From then on the nodes that are known count as all there are.
    settled: Option<Time>,
    dirty: Dirty,
    out: Vec<Command>,
}

/// Where something changed since the last scheduling round.
#[derive(Debug, Default)]
struct Dirty {
    nodes: BTreeSet<NodeId>,
    quotas: BTreeSet<QuotaName>,
    opening: bool,
    /// Granted actions whose start is to be ordered.
    starts: BTreeSet<Seq>,
    /// Running actions that have other exclusive cores than before.
    resized: BTreeSet<Seq>,
}

impl Queue {
    /// An empty queue.
    pub fn new(config: Config) -> Self {
        let quotas =
            config.quotas.iter().map(|(name, limit)| (name.clone(), QuotaLine::new(*limit)));
        Self {
            quotas: quotas.collect(),
            cpu_share: FairShare::new(config.weights.clone()),
            memory_share: FairShare::new(config.weights.clone()),
            profiles: Profiles::default(),
            remaining: Remaining::default(),
            config,
            now: Time::ZERO,
            next_seq: 0,
            actions: BTreeMap::new(),
            action_ids: BTreeMap::new(),
            trajectories: BTreeMap::new(),
            opening: Line::default(),
            nodes: BTreeMap::new(),
            permits: BTreeMap::new(),
            timers: BTreeSet::new(),
            waiting: 0,
            settled: None,
            dirty: Dirty::default(),
            out: Vec::new(),
        }
    }

    /// Handles one event and schedules.
    pub fn on_event(&mut self, event: Event, now: Time) -> Vec<Command> {
        let mut commands = Vec::new();
        self.on_events([event], now, &mut commands);
        commands
    }

    /// Handles all events of one instant in their order, then schedules once.
    /// Commands are appended to `commands`, to be carried out in order. `now` never
    /// runs backwards: an earlier one counts as the latest seen.
    pub fn on_events(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        now: Time,
        commands: &mut Vec<Command>,
    ) {
        self.now = self.now.max(now);
        for event in events {
            self.handle(event);
        }
        self.fire_timers();
        self.schedule();
        commands.append(&mut self.out);
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// What was learned of actions: to be kept over a restart, and given back before the first
    /// event after it.
    pub fn profiles_mut(&mut self) -> &mut Profiles {
        &mut self.profiles
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(open) => self.open(open),
            Event::Close(trajectory) => self.close(&trajectory),
            Event::Submit(submit) => self.submit(submit),
            Event::Cancel(action) => self.cancel(&action),
            Event::Acquire(acquire) => self.acquire(acquire),
            Event::Release { permit, retry_after } => self.release_permit(&permit, retry_after),
            Event::NodeUp(up) => self.node_up(up),
            Event::NodeDown { node, epoch } => self.node_down(&node, epoch),
            Event::Report { node, epoch, report } => self.report(&node, epoch, report),
            Event::Tick => {}
        }
    }

    fn fire_timers(&mut self) {
        while let Some((at, _)) = self.timers.first() {
            if *at > self.now {
                break;
            }
            let Some((_, timer)) = self.timers.pop_first() else { break };
            match timer {
                Timer::StartBy(seq) => self.start_deadline_passed(seq),
                Timer::OpenBy(trajectory) => self.open_deadline_passed(&trajectory),
                Timer::NodeGrace(node) => self.grace_passed(&node),
                Timer::Line(node) => {
                    self.dirty.nodes.insert(node);
                }
                Timer::PermitWait(permit) => self.permit_deadline_passed(&permit),
                Timer::PermitTtl(permit) => self.permit_ttl_passed(&permit),
                Timer::QuotaRoom(quota) => {
                    self.dirty.quotas.insert(quota);
                }
                Timer::NodesSettled => self.dirty.opening = true,
            }
        }
    }

    fn take_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq
    }

    fn emit(&mut self, command: Command) {
        self.out.push(command);
    }

    /// Sends an order to a node, if it is connected: otherwise what it needs to
    /// know is worked out again when it comes back.
    fn order(&mut self, node: &NodeId, order: NodeOrder) {
        if let Some(state) = self.nodes.get(node).filter(|state| state.connected) {
            self.out.push(Command::Node { node: node.clone(), epoch: state.epoch, order });
        }
    }
}

#[cfg(test)]
mod tests;
