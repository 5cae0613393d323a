//! The core's pool over a station, with a number of actions under way at all times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rollwright_agent::gpu::{Backend, Caller, Driver, Instruction};
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{
    Adopted, Command, Config, Degree, EngineId, Event, Footprint, Kind, Limits, Node, Pool, Proof,
    Service, ServiceIndex,
};
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_core::reward::Backoff;
use rollwright_core::time::Time;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Outcome;
use super::calls::Calls;
use crate::engines::Bench;
use crate::load::Load;
use crate::settings::Args;

/// An action's time, waiting included.
const LIMIT: Duration = Duration::from_mins(5);
/// Bytes by which an engine may outgrow what it had before the run: workspaces of libraries.
const GROWTH: u64 = 512 << 20;
/// Messages between pool and driver.
const ROOM: usize = 1000;

/// An engine that was started before the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) service: usize,
    pub(super) engine: EngineId,
    /// Its state as the run begins.
    pub(super) proof: Proof,
    /// Bytes that it has while it is awake, and asleep.
    pub(super) awake: u64,
    pub(super) asleep: u64,
}

/// A pool that has taken over the engines.
pub(super) struct Pooled {
    pool: Pool,
    calls: Arc<Calls>,
    commands: mpsc::Sender<Instruction>,
    events: mpsc::Receiver<Event>,
    driver: JoinHandle<()>,
    begun: Instant,
    candidates: usize,
    submitted: usize,
    /// Time inside the pool.
    core: Duration,
    joined: Option<Node>,
}

fn kind(service: usize) -> anyhow::Result<Kind> {
    Ok(Kind { service: ServiceIndex(service), degree: Degree::new(1)? })
}

impl Pooled {
    pub(super) fn new(args: &Args, bench: &Bench, members: &[Member], candidates: usize) -> Self {
        let of = |field: fn(&Member) -> u64| members.iter().map(field).max().unwrap_or_default();
        // A process on a real GPU grows a little with the requests that it serves.
        let growth = if args.fake { 0 } else { (args.bytes / 4).min(GROWTH) };
        let asleep = growth + of(|member| member.asleep);
        let awake = growth + of(|member| member.awake);
        let expected = Limits::default();
        let footprint = Footprint { device: awake, residue: asleep, host: 0, expected };
        let service = |service| Service {
            name: format!("service-{service}"),
            batch: 1,
            pinned: 0,
            degrees: Degree::ALL.into_iter().take(1).map(|degree| (degree, footprint)).collect(),
            limits: Limits::default(),
            timeout: LIMIT,
        };
        let services = (0..args.services).map(service).collect();
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(10) };
        let grace = Duration::from_secs(30);
        let forget = Duration::from_hours(1);
        let pool = Pool::new(Config { services, max_actions: ROOM, backoff, grace, forget });
        // Room for as many as fit, and for what the others keep.
        let others = members.len().saturating_sub(args.fit()) as u64;
        let memory = args.fit() as u64 * awake + others * asleep;
        let engines = members.iter().filter_map(|member| {
            let (kind, proof) = (kind(member.service).ok()?, Some(member.proof));
            let (order, running) = (None, Vec::new());
            Some(Adopted { engine: member.engine, kind, start: 0, order, proof, running })
        });
        let joined = NodeId::new("node").ok().map(|name| Node {
            name,
            gpus: bench.inventory.gpus.min(1),
            memory,
            host: bench.inventory.host,
            lost: Vec::new(),
            engines: engines.collect(),
        });
        let calls = Arc::new(Calls::new(args));
        let backend = Arc::clone(&bench.backend) as Arc<dyn Backend>;
        let caller = Arc::clone(&calls) as Arc<dyn Caller>;
        let driver = Driver::new(backend, Arc::clone(&bench.device), caller);
        let (commands, orders) = mpsc::channel(ROOM);
        let (reports, events) = mpsc::channel(ROOM);
        let driver = tokio::spawn(driver.run(orders, reports));
        let (begun, core) = (Instant::now(), Duration::ZERO);
        Self {
            pool,
            calls,
            commands,
            events,
            driver,
            begun,
            candidates,
            submitted: 0,
            core,
            joined,
        }
    }

    /// Serves actions, so many at a time.
    pub(super) async fn run(
        &mut self,
        actions: &[(usize, usize)],
        at_once: usize,
    ) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome { at_once, ..Outcome::default() };
        let (begun, before) = (Instant::now(), self.core);
        let mut acts = BTreeMap::new();
        let mut live: BTreeMap<ActionId, (usize, Instant, (usize, usize))> = BTreeMap::new();
        let mut ended = Vec::new();
        if let Some(node) = self.joined.take() {
            self.send(Event::Joined(node), &mut ended).await?;
        }
        let mut next = actions.iter().copied().enumerate();
        let mut more = true;
        while more || !live.is_empty() {
            while more && live.len() < at_once {
                let Some((place, what)) = next.next() else {
                    more = false;
                    break;
                };
                let since = Instant::now();
                let action = self.submit(what, &mut ended).await?;
                live.insert(action, (place, since, what));
            }
            for (action, result) in ended.drain(..) {
                let (place, since, what) = live.remove(&action).context("an action ended twice")?;
                result.map_err(|fault: Fault| anyhow!("{action}: {fault}"))?;
                acts.insert(place, since.elapsed());
                let (took, answer) = self.calls.answer(&action).context("an answer")?;
                outcome.calls.push(took);
                outcome.answers.insert(what, answer);
            }
            if live.is_empty() || (more && live.len() < at_once) {
                continue;
            }
            let wait = self.pool.next_deadline().map_or(LIMIT, |at| at.since(self.now()));
            let event = tokio::time::timeout(wait, self.events.recv()).await;
            let event =
                event.map_or(Some(Event::Tick), |event| event).context("the driver ended")?;
            self.send(event, &mut ended).await?;
        }
        outcome.acts = acts.into_values().collect();
        (outcome.core, outcome.took) = (self.core.saturating_sub(before), begun.elapsed());
        Ok(outcome)
    }

    /// Ends the driver; engines stay.
    pub(super) async fn end(self) {
        drop((self.commands, self.events));
        // It ends by itself; how is of no interest.
        let _ended = self.driver.await;
    }

    async fn submit(
        &mut self,
        (service, question): (usize, usize),
        ended: &mut Vec<(ActionId, Result<(), Fault>)>,
    ) -> anyhow::Result<ActionId> {
        let action = ActionId::new(&format!("a{}", self.submitted))?;
        self.submitted += 1;
        self.calls.prepare(action.clone(), Load::body(question, self.candidates));
        let Kind { service, degree } = kind(service)?;
        let deadline = self.now() + LIMIT;
        let submit = Event::Submit { action: action.clone(), service, degree, deadline };
        self.send(submit, ended).await?;
        Ok(action)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.begun.elapsed()
    }

    async fn send(
        &mut self,
        event: Event,
        ended: &mut Vec<(ActionId, Result<(), Fault>)>,
    ) -> anyhow::Result<()> {
        let (now, begun) = (self.now(), Instant::now());
        let commands = self.pool.on_event(event, now);
        self.core += begun.elapsed();
        for command in commands {
            let instruction = match command {
                Command::Restore { launch: true, .. } => {
                    return Err(anyhow!("an engine failed, and the pool would launch another"));
                }
                Command::Restore { engine, order, limit, .. } => {
                    Instruction::Wake { engine, order, to: None, limit }
                }
                Command::Evict { engine, order, residue, limit, .. } => {
                    Instruction::Evict { engine, order, residue, limit }
                }
                Command::Stop { engine, order, limit, .. } => {
                    Instruction::Stop { engine, order, limit }
                }
                Command::Run { action, engine, .. } => Instruction::Run { action, engine },
                Command::Cancel { action, engine, .. } => Instruction::Cancel { action, engine },
                Command::Ended { action, result } => {
                    ended.push((action, result));
                    continue;
                }
                Command::Drained(_) | Command::Forgotten(_) => continue,
            };
            self.commands.send(instruction).await.ok().context("the driver ended")?;
        }
        Ok(())
    }
}
