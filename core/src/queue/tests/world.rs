//! A model of agents, links and callers, which loses, delays and repeats what real
//! ones lose, delay and repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::agent::{Agent, Known};
use crate::cpu::CoreSet;
use crate::fault::{Fault, FaultKind};
use crate::ids::{ActionId, JobId, NodeId, PermitId, QuotaName, TrajectoryId};
use crate::profile::Prior;
use crate::queue::{
    AcquirePermit, Command, Config, End, Event, Foresight, LiveAction, NodeOrder, NodeReport,
    NodeUp, OpenTrajectory, Outcome, Placed, Policy, Queue, SubmitAction,
};
use crate::resources::{Cost, UnitChoice};
use crate::time::Time;

pub(super) const NODE_MEMORY: u64 = 100;

pub(super) fn action(n: usize) -> ActionId {
    ActionId::new(&format!("a{n}")).unwrap()
}
pub(super) fn trajectory(n: usize) -> TrajectoryId {
    TrajectoryId::new(&format!("t{n}")).unwrap()
}
pub(super) fn node(n: usize) -> NodeId {
    NodeId::new(&format!("n{n}")).unwrap()
}
pub(super) fn permit(n: usize) -> PermitId {
    PermitId::new(&format!("p{n}")).unwrap()
}
pub(super) fn job(n: usize) -> JobId {
    JobId::new(&format!("j{n}")).unwrap()
}
pub(super) fn quota() -> QuotaName {
    QuotaName::new("search").unwrap()
}

/// What is durable outside the core: enough to feed a new queue after a crash.
#[derive(Debug, Clone)]
struct Accepted {
    trajectory: TrajectoryId,
    cost: Cost,
    submitted: Time,
    foresight: Foresight,
}

pub(super) struct World {
    config: Config,
    pub(super) queue: Queue,
    pub(super) now: u64,
    agents: BTreeMap<NodeId, Agent>,
    accepted: BTreeMap<ActionId, Accepted>,
    opened: BTreeMap<TrajectoryId, (JobId, u64, Option<Placed>)>,
    /// How often each accepted action ended.
    pub(super) ended: BTreeMap<ActionId, Vec<Outcome>>,
    pub(super) starts: Vec<ActionId>,
    /// How often each action's program was run by an agent.
    runs: BTreeMap<ActionId, u32>,
    pub(super) permits: BTreeSet<PermitId>,
}

impl World {
    pub(super) fn new(config: Config, nodes: &[Vec<u32>]) -> Self {
        let agents = nodes.iter().enumerate().map(|(n, sizes)| {
            let mut next = 0;
            let numa = sizes.iter().map(|size| {
                next += size;
                (next - size..next).collect()
            });
            (node(n), Agent { numa: numa.collect(), ..Agent::default() })
        });
        Self {
            queue: Queue::new(config.clone()),
            config,
            now: 1,
            agents: agents.collect(),
            accepted: BTreeMap::new(),
            opened: BTreeMap::new(),
            ended: BTreeMap::new(),
            starts: Vec::new(),
            runs: BTreeMap::new(),
            permits: BTreeSet::new(),
        }
    }

    pub(super) fn send(&mut self, event: Event) -> Vec<Command> {
        self.send_all([event])
    }

    fn send_all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Command> {
        let mut commands = Vec::new();
        self.queue.on_events(events, Time::from_nanos(self.now), &mut commands);
        for command in &commands {
            self.carry_out(command);
        }
        self.queue.assert_nothing_is_stuck();
        commands
    }

    fn carry_out(&mut self, command: &Command) {
        match command {
            Command::Node { node, epoch, order } => {
                let agent = self.agents.get_mut(node).unwrap();
                if agent.linked && agent.epoch == *epoch {
                    agent.inbox.push_back(order.clone());
                }
            }
            Command::TrajectoryPlaced { trajectory, node } => {
                self.opened.get_mut(trajectory).unwrap().2 =
                    Some(Placed { node: node.clone(), ready: false });
            }
            Command::TrajectoryRefused { trajectory, .. }
            | Command::TrajectoryEnded { trajectory, .. } => {
                self.opened.remove(trajectory);
            }
            Command::ActionEnded { action, outcome, .. } => {
                assert!(self.accepted.remove(action).is_some(), "{action} ended but was not live");
                self.ended.entry(action.clone()).or_default().push(outcome.clone());
            }
            Command::ActionRefused { action, .. } => {
                self.accepted.remove(action);
            }
            Command::PermitGranted { permit, .. } => {
                assert!(self.permits.insert(permit.clone()));
            }
            Command::PermitEnded { permit, .. } => {
                self.permits.remove(permit);
            }
            Command::ActionStarted { action, .. } => self.starts.push(action.clone()),
            Command::TrajectoryReady { trajectory, .. } => {
                if let Some((_, _, Some(placed))) = self.opened.get_mut(trajectory) {
                    placed.ready = true;
                }
            }
            Command::ActionQueued(_) => {}
        }
    }

    pub(super) fn open(&mut self, t: usize, j: usize, memory: u64) {
        self.opened.entry(trajectory(t)).or_insert_with(|| (job(j), memory, None));
        self.send(Event::Open(OpenTrajectory {
            trajectory: trajectory(t),
            job: job(j),
            memory,
            min_cores: 1,
            deadline: None,
            placed: None,
        }));
    }

    pub(super) fn submit(
        &mut self,
        a: usize,
        t: usize,
        units: &[f64],
        with_quota: u32,
    ) -> Vec<Command> {
        let id = action(a);
        // An id is used once: a live repeat is sent on, an ended one is the store's.
        if self.ended.contains_key(&id) {
            return Vec::new();
        }
        let quota = (with_quota > 0).then(|| (quota(), with_quota)).into_iter().collect();
        let cost = Cost { cpu: UnitChoice::from_f64(units).unwrap(), quota };
        let submitted = Time::from_nanos(self.now);
        // Some of each sort: lengths that are learned, and lengths that are said.
        let said = Prior { seconds: a.is_multiple_of(3).then_some(1e-8 * a as f64), serial: None };
        let profile = if a.is_multiple_of(2) { "even" } else { "odd" };
        let foresight = Foresight {
            profile: profile.into(),
            said,
            remaining: (a % 5 > 1).then_some(1e-8 * (a % 7) as f64),
            malleable: a % 4 > 1,
            ..Foresight::default()
        };
        self.accepted.entry(id.clone()).or_insert_with(|| Accepted {
            trajectory: trajectory(t),
            cost: cost.clone(),
            submitted,
            foresight: foresight.clone(),
        });
        self.send(Event::Submit(SubmitAction {
            action: id,
            trajectory: trajectory(t),
            cost,
            start_by: None,
            submitted: None,
            foresight,
        }))
    }

    pub(super) fn acquire(&mut self, p: usize, amount: u32) {
        self.send(Event::Acquire(AcquirePermit {
            permit: permit(p),
            quota: quota(),
            amount,
            deadline: None,
            ttl: Duration::from_nanos(200),
        }));
    }

    pub(super) fn link_up(&mut self, n: usize) {
        self.link_up_and(n, None);
    }

    /// A link comes up, and another event arrives in the same instant.
    pub(super) fn link_up_and(&mut self, n: usize, and: Option<Event>) {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        agent.linked = true;
        agent.epoch += 1;
        agent.inbox.clear();
        agent.outbox.clear();
        for (id, known) in &agent.actions {
            if let Some((end, not_started)) = &known.end {
                agent.outbox.push_back(NodeReport::ActionEnded {
                    action: id.clone(),
                    attempt: known.attempt,
                    end: end.clone(),
                    not_started: *not_started,
                    usage: known.usage,
                });
            }
        }
        let up = NodeUp {
            node: node(n),
            epoch: agent.epoch,
            numa: agent.numa.clone(),
            memory: NODE_MEMORY,
            sandboxes: agent.sandboxes.iter().cloned().collect(),
            actions: agent
                .actions
                .iter()
                .map(|(id, known)| LiveAction {
                    action: id.clone(),
                    attempt: known.attempt,
                    trajectory: known.trajectory.clone(),
                    units: known.units,
                    cores: known.cores.clone(),
                    ended: known.end.is_some(),
                })
                .collect(),
        };
        let mut events = vec![Event::NodeUp(up)];
        events.extend(and);
        self.send_all(events);
    }

    pub(super) fn link_down(&mut self, n: usize) {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        agent.linked = false;
        agent.inbox.clear();
        agent.outbox.clear();
        let epoch = agent.epoch;
        self.send(Event::NodeDown { node: node(n), epoch });
    }

    /// The agent carries out its next order. False when it has none.
    pub(super) fn deliver(&mut self, n: usize) -> bool {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        let Some(order) = agent.inbox.pop_front() else { return false };
        match order {
            NodeOrder::OpenSandbox(t) if agent.sandboxes.contains(&t) => {
                agent.outbox.push_back(NodeReport::SandboxReady(t));
            }
            NodeOrder::OpenSandbox(t) => {
                agent.resetting.insert(t);
            }
            NodeOrder::CloseSandbox(t) => {
                agent.lose_sandbox(&t, "closed");
                agent.outbox.push_back(NodeReport::SandboxClosed(t));
            }
            NodeOrder::Start { action, attempt, units, cores } => {
                let trajectory = self.accepted.get(&action).map(|a| a.trajectory.clone());
                let Some(trajectory) = trajectory else { return true };
                let here = agent.sandboxes.contains(&trajectory);
                let known = agent.actions.get(&action).is_some_and(|k| k.attempt == attempt);
                if known {
                    return true;
                }
                let end = (!here).then(|| {
                    let gone = Fault::new(FaultKind::Infrastructure, "SandboxLost", "gone");
                    (End::Failed(gone), true)
                });
                let report = match &end {
                    None => {
                        *self.runs.entry(action.clone()).or_default() += 1;
                        NodeReport::ActionStarted { action: action.clone(), attempt }
                    }
                    Some((end, not_started)) => NodeReport::ActionEnded {
                        action: action.clone(),
                        attempt,
                        end: end.clone(),
                        not_started: *not_started,
                        usage: None,
                    },
                };
                agent.outbox.push_back(report);
                agent
                    .actions
                    .insert(action, Known { attempt, trajectory, units, cores, end, usage: None });
            }
            NodeOrder::Resize { action, units, cores } => {
                if let Some(known) = agent.actions.get_mut(&action) {
                    known.units = units;
                    known.cores = cores;
                }
            }
            NodeOrder::Kill(action) => agent.end(&action, End::Finished),
            NodeOrder::Forget(action) => {
                agent.actions.remove(&action);
            }
        }
        true
    }

    /// The queue hears the agent's next report. False when there is none.
    pub(super) fn hear(&mut self, n: usize) -> bool {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        let Some(report) = agent.outbox.pop_front() else { return false };
        let epoch = agent.epoch;
        let ended = match &report {
            NodeReport::ActionEnded { action, .. } => Some(action.clone()),
            _ => None,
        };
        self.send(Event::Report { node: node(n), epoch, report });
        // What is durable is acknowledged.
        if let Some(action) = ended
            && !self.accepted.contains_key(&action)
        {
            self.agents.get_mut(&node(n)).unwrap().actions.remove(&action);
        }
        true
    }

    pub(super) fn make_ready(&mut self, n: usize) -> bool {
        self.agents.get_mut(&node(n)).unwrap().make_ready()
    }

    pub(super) fn finish(&mut self, n: usize, pick: usize) {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        let running: Vec<ActionId> = agent
            .actions
            .iter()
            .filter(|(_, k)| k.end.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        if !running.is_empty() {
            agent.end(&running[pick % running.len()], End::Finished);
        }
    }

    /// Somebody removes a container behind the agent's back.
    pub(super) fn lose_sandbox(&mut self, n: usize, pick: usize) {
        let agent = self.agents.get_mut(&node(n)).unwrap();
        let open: Vec<TrajectoryId> = agent.sandboxes.iter().cloned().collect();
        if open.is_empty() {
            return;
        }
        let lost = open[pick % open.len()].clone();
        agent.lose_sandbox(&lost, "lost");
        let fault = Fault::new(FaultKind::Infrastructure, "SandboxLost", "removed from under us");
        agent.outbox.push_back(NodeReport::SandboxFailed(lost, fault));
    }

    /// The queue's process dies and comes back with what is durable.
    pub(super) fn restart_queue(&mut self) {
        self.queue = Queue::new(self.config.clone());
        self.permits.clear();
        for agent in self.agents.values_mut() {
            agent.linked = false;
            agent.inbox.clear();
            agent.outbox.clear();
        }
        for (t, (job, memory, placed)) in self.opened.clone() {
            let (trajectory, deadline) = (t, None);
            self.send(Event::Open(OpenTrajectory {
                trajectory,
                job,
                memory,
                min_cores: 1,
                deadline,
                placed,
            }));
        }
        for (id, accepted) in self.accepted.clone() {
            let commands = self.send(Event::Submit(SubmitAction {
                action: id.clone(),
                trajectory: accepted.trajectory,
                cost: accepted.cost,
                start_by: None,
                submitted: Some(accepted.submitted),
                foresight: accepted.foresight,
            }));
            // Its trajectory was closed before the crash: the store ends it.
            if commands.iter().any(|c| matches!(c, Command::ActionRefused { .. })) {
                self.ended.entry(id).or_default().push(Outcome::Cancelled);
            }
        }
    }

    pub(super) fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        self.send(Event::Tick);
    }

    /// No core is used by an exclusive action and anything else, on the nodes
    /// themselves; no program ran twice; memory is never overbooked.
    pub(super) fn check(&self) {
        for (id, agent) in &self.agents {
            let running = || agent.actions.iter().filter(|(_, known)| known.end.is_none());
            // Cores held for life are shared by the actions of one trajectory.
            let for_life = matches!(self.config.policy, Policy::Static { .. });
            let mut exclusive = CoreSet::new();
            let mut of: BTreeMap<&TrajectoryId, CoreSet> = BTreeMap::new();
            for (action, known) in
                running().filter(|(_, known)| for_life || !known.units.is_share())
            {
                assert!(!known.cores.is_empty(), "{action} on {id} has no core");
                let own = of.entry(&known.trajectory).or_default();
                let shared = for_life && *own == known.cores;
                let free = !exclusive.overlaps(&known.cores);
                assert!(shared || free, "{action} on {id}: a core is held twice");
                exclusive.extend(&known.cores);
                own.extend(&known.cores);
            }
            if for_life {
                continue;
            }
            for (action, known) in running().filter(|(_, known)| known.units.is_share()) {
                assert!(
                    !exclusive.overlaps(&known.cores),
                    "share {action} on {id}: an exclusive core"
                );
            }
        }
        for (action, runs) in &self.runs {
            assert!(*runs <= 1, "{action} ran {runs} times");
        }
        for (action, ends) in &self.ended {
            assert_eq!(ends.len(), 1, "{action} ended {ends:?}");
        }
        for stats in self.queue.stats().nodes {
            assert!(!stats.connected || stats.memory_held <= stats.memory, "{stats:?}");
        }
    }

    /// Links come up, everything is delivered and finished, everything is closed.
    /// Then nothing may be left.
    pub(super) fn settle(&mut self) {
        let nodes = self.agents.len();
        for n in 0..nodes {
            self.link_up(n);
        }
        let mut rounds = 0;
        while self.turn(nodes) {
            rounds += 1;
            assert!(rounds < 10_000, "it does not settle");
        }
        self.pass(1_000_000);
        let permits: Vec<PermitId> = self.permits.iter().cloned().collect();
        for permit in permits {
            self.send(Event::Release { permit, retry_after: None });
        }
        while self.turn(nodes) {}
        // Those that wait for memory get it when those that have nothing to do close.
        while !self.accepted.is_empty() {
            let busy: BTreeSet<_> = self.accepted.values().map(|a| a.trajectory.clone()).collect();
            let idle: Vec<_> = self.opened.keys().filter(|t| !busy.contains(*t)).cloned().collect();
            assert!(!idle.is_empty(), "accepted but never ended: {:?}", self.accepted.keys());
            for trajectory in idle {
                self.send(Event::Close(trajectory));
            }
            while self.turn(nodes) {}
        }
        let open: Vec<TrajectoryId> = self.opened.keys().cloned().collect();
        for trajectory in open {
            self.send(Event::Close(trajectory));
        }
        while self.turn(nodes) {}
        self.check();
        let stats = self.queue.stats();
        assert_eq!((stats.waiting, stats.running, stats.trajectories), (0, 0, 0), "{stats:?}");
        for node in &stats.nodes {
            let kept = usize::from(self.config.shared_cores).min(node.cores);
            assert_eq!((node.exclusive, node.shared, node.memory_held), (0, kept, 0), "{node:?}");
        }
        assert!(
            stats.quotas.iter().all(|quota| quota.held == 0 && quota.waiting == 0),
            "{stats:?}"
        );
    }

    /// One step everywhere. False when there was nothing to do.
    fn turn(&mut self, nodes: usize) -> bool {
        let mut moved = false;
        for n in 0..nodes {
            moved |= self.deliver(n) | self.make_ready(n) | self.hear(n);
            let runs = self.agents[&node(n)].actions.values().any(|known| known.end.is_none());
            if runs {
                self.finish(n, 0);
                moved = true;
            }
        }
        if !moved && let Some(at) = self.queue.next_wakeup() {
            self.now = self.now.max(at.as_nanos());
            let commands = self.send(Event::Tick);
            moved = !commands.is_empty()
                || !self.queue.stats().quotas.iter().all(|quota| quota.waiting == 0);
        }
        self.check();
        moved
    }
}
