//! The one task that owns the core: everything comes in over one bounded channel,
//! in batches, and each batch is one scheduling round. It never waits for anything
//! but that channel and the core's timers.

mod actions;
mod files;
mod handle;
mod input;
mod known;
mod nodes;
mod output;
mod permits;
mod profiles;
mod progress;
mod recover;
mod stats;
mod trajectories;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rollwright_core::ids::{ActionId, NodeId, PermitId, TrajectoryId};
use rollwright_core::queue::{Command, Event, Queue};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use actions::weight;
pub(crate) use handle::Handle;
pub(crate) use input::{Input, Lookup, Standing, State, Subscriber};
pub(crate) use known::Known;

use self::input::Peek;

use self::actions::{Action, ProfileEntry};
use self::files::Transfers;
use self::nodes::Link;
use self::permits::Permit;
use self::profiles::Learned;
use self::trajectories::{Gone, Leaving, Trajectory};
use crate::clock::Clock;
use crate::config::QueueConfig;
use crate::mailbox::{Budget, Mailbox, Written, slow_reader};
use crate::metrics::Metrics;
use crate::store::{Durable, Op, Recovered, Retained, StoreError, Writer};

/// How often the gauges of nodes are set.
const GAUGES_EVERY: Duration = Duration::from_millis(200);
/// Inputs of one round at most.
const BATCH: usize = 256;
/// Streams with much unread from which on those that ended are dropped.
const PRUNE: usize = 1024;
/// Inputs that may wait for the scheduler.
pub(crate) const INBOX: usize = 1024;

/// Looks up stored results on a thread of its own.
pub(crate) type Lookups = std::sync::mpsc::SyncSender<Lookup>;

/// The state of the scheduler task.
pub(crate) struct Scheduler {
    config: QueueConfig,
    core: Queue,
    clock: Clock,
    metrics: Arc<Metrics>,
    budget: Arc<Budget>,
    writer: Writer,
    lookups: Lookups,
    retained: Retained,
    profiles: HashMap<String, Arc<ProfileEntry>>,
    learned: Learned,
    actions: HashMap<ActionId, Action>,
    trajectories: HashMap<TrajectoryId, Trajectory>,
    gone: Gone,
    leaving: Leaving,
    permits: HashMap<PermitId, Permit>,
    links: HashMap<NodeId, Link>,
    transfers: Transfers,
    next_epoch: u64,
    accepted: u64,
    ended: u64,
    /// For the core, in this round.
    events: Vec<Event>,
    /// For the store, in this round.
    ops: Vec<Op>,
    /// Written to in this round and to be woken after it.
    touched: Vec<Arc<Mailbox<pb::ActionEvent>>>,
    touched_links: Vec<Arc<Mailbox<pb::QueueMessage>>>,
    /// In which much waited once.
    large: Vec<Weak<Mailbox<pb::ActionEvent>>>,
    gauges_at: Instant,
    failed: Option<StoreError>,
}

/// What a scheduler is given to work with.
pub(crate) struct Parts {
    pub(crate) config: QueueConfig,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) writer: Writer,
    pub(crate) lookups: Lookups,
}

impl Scheduler {
    /// Starts from what the store held.
    pub(crate) fn new(parts: Parts, recovered: Recovered) -> Result<Self, StoreError> {
        let profiles = parts.config.profiles.iter().map(|(name, profile)| {
            let entry = ProfileEntry::new(name, profile.clone(), &parts.metrics);
            (name.clone(), Arc::new(entry))
        });
        let mut scheduler = Self {
            core: Queue::new(parts.config.core.clone()),
            profiles: profiles.collect(),
            config: parts.config,
            clock: parts.clock,
            metrics: parts.metrics,
            budget: parts.budget,
            writer: parts.writer,
            lookups: parts.lookups,
            retained: recovered.retained,
            learned: Learned::default(),
            actions: HashMap::new(),
            trajectories: HashMap::new(),
            gone: Gone::default(),
            leaving: Leaving::default(),
            permits: HashMap::new(),
            links: HashMap::new(),
            transfers: Transfers::default(),
            next_epoch: recovered.epoch,
            accepted: 0,
            ended: 0,
            events: Vec::new(),
            ops: Vec::new(),
            touched: Vec::new(),
            touched_links: Vec::new(),
            large: Vec::new(),
            gauges_at: Instant::now(),
            failed: None,
        };
        scheduler.recover_profiles(recovered.profiles);
        scheduler.recover(recovered.trajectories, recovered.actions)?;
        Ok(scheduler)
    }

    /// Runs until the shutdown, or until the store fails.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        shutdown: CancellationToken,
    ) -> Result<(), StoreError> {
        let mut batch = Vec::with_capacity(BATCH);
        self.round(&mut batch);
        while self.failed.is_none() {
            let timer = self.core.next_wakeup().map(|at| self.clock.instant(at));
            let wakeup = timer.into_iter().chain(self.learned.due()).min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                count = inbox.recv_many(&mut batch, BATCH) => if count == 0 { break },
                () = sleep_until(wakeup) => {}
            }
            self.round(&mut batch);
        }
        self.hang_up();
        self.write_profiles();
        self.writer.push(&mut self.ops);
        // The writer must not wait for this task while this task waits for it.
        inbox.close();
        let drain = tokio::spawn(async move { while inbox.recv().await.is_some() {} });
        let mut writer = self.writer;
        if tokio::task::spawn_blocking(move || writer.stop()).await.is_err() {
            tracing::error!("stopping the store's writer panicked");
        }
        if drain.await.is_err() {
            tracing::error!("draining the inbox panicked");
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Ends all streams; unanswered calls end as their replies are dropped.
    fn hang_up(&mut self) {
        let stopping = crate::fault::stopping();
        for action in self.actions.values_mut() {
            action.cancellers.clear();
            for to in &action.subscribers {
                to.mailbox.close(Some(stopping.clone()));
            }
        }
        for link in self.links.values() {
            link.hang_up();
        }
        self.transfers.end_all(&stopping);
        self.trajectories.clear();
        self.leaving = Leaving::default();
        self.permits.clear();
    }

    /// One round: all inputs, one scheduling decision, everything that follows.
    fn round(&mut self, batch: &mut Vec<Input>) {
        let began = Instant::now();
        for input in batch.drain(..) {
            self.take(input);
        }
        let mut commands = Vec::new();
        loop {
            let events = std::mem::take(&mut self.events);
            self.core.on_events(events, self.clock.now(), &mut commands);
            for command in commands.drain(..) {
                self.carry_out(command);
            }
            if self.events.is_empty() {
                break;
            }
        }
        self.keep_profiles();
        self.writer.push(&mut self.ops);
        for mailbox in self.touched.drain(..) {
            if mailbox.wake() {
                self.large.push(Arc::downgrade(&mailbox));
            }
        }
        if self.large.len() >= PRUNE && self.large.len().is_power_of_two() {
            self.large.retain(|reader| reader.upgrade().is_some_and(|reader| !reader.is_closed()));
        }
        self.reclaim();
        for mailbox in self.touched_links.drain(..) {
            mailbox.wake();
        }
        self.metrics.decision_seconds.observe(began.elapsed().as_secs_f64());
    }

    /// Ends the streams with most unread when too much is held: their callers find
    /// the results in the store, and nobody else is turned away for them.
    fn reclaim(&mut self) {
        let most = self.config.max_buffered_bytes;
        if self.budget.used() <= most {
            return;
        }
        let readers = self.large.iter().filter_map(Weak::upgrade);
        let mut readers: Vec<_> = readers.map(|reader| (reader.unread(), reader)).collect();
        readers.sort_unstable_by_key(|(unread, _)| std::cmp::Reverse(*unread));
        for (unread, reader) in readers {
            if unread == 0 || self.budget.used() <= most - most / 8 {
                break;
            }
            reader.close(Some(slow_reader(unread)));
            self.metrics.slow_readers.inc();
        }
        self.large.retain(|reader| reader.upgrade().is_some_and(|reader| !reader.is_closed()));
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Execute { caller, requests, to } => {
                for request in requests {
                    self.execute(&caller, request, to.clone(), false);
                }
            }
            Input::Found { caller, request, to, result, charged } => {
                self.budget.sub(charged);
                self.found(&caller, *request, to, result);
            }
            Input::Attach { caller, action, to, reply } => {
                self.attach_only(&caller, &action, &to, reply);
            }
            Input::Peek { caller, action, reply } => self.peek(&caller, &action, reply),
            Input::Cancel { caller, job, action, reply } => {
                self.cancel(&caller, &job, &action, reply);
            }
            Input::Open { caller, request, reply } => self.open(&caller, request, reply),
            Input::Close { caller, job, trajectory, reply } => {
                self.close(&caller, &job, trajectory, reply);
            }
            Input::Look { caller, trajectory, reply } => self.look(&caller, &trajectory, reply),
            Input::Acquire { caller, request, waiter, reply } => {
                self.acquire(&caller, &request, waiter, reply);
            }
            Input::GiveUp { permit_id, waiter } => self.give_up(&permit_id, waiter),
            Input::Release { caller, request, reply } => self.release(&caller, &request, reply),
            Input::Stats { caller, reply } => {
                // A caller that has gone does not want the answer.
                let _gone = reply.send(self.stats(caller.as_ref()));
            }
            Input::LinkUp { hello, outbox, reply } => self.link_up(&hello, outbox, reply),
            Input::LinkBatch { node, epoch, messages } => self.link_batch(&node, epoch, messages),
            Input::LinkDown { node, epoch } => self.link_down(&node, epoch),
            Input::Stored(Ok(durable)) => self.stored(durable),
            Input::Stored(Err(error)) => self.failed = Some(error),
            Input::FileOpen { transfer, caller, target, put, to, reply } => {
                let opened = self.file_open(&caller, transfer, target, put, to);
                if reply.send(opened).is_err() {
                    self.file_end(transfer, false);
                }
            }
            Input::FileData { transfer, data, last } => self.file_data(transfer, data, last),
            Input::FileCredit { transfer, bytes } => self.file_credit(transfer, bytes),
            Input::FileEnd { transfer, complete } => self.file_end(transfer, complete),
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Node { node, epoch, order } => self.order(&node, epoch, order),
            Command::TrajectoryPlaced { trajectory, node } => self.placed(&trajectory, &node),
            Command::TrajectoryReady { trajectory, node, opened, placed } => {
                self.ready(&trajectory, &node, placed.since(opened));
            }
            Command::TrajectoryEnded { trajectory, fault } => {
                self.trajectory_ended(&trajectory, fault);
            }
            Command::TrajectoryRefused { trajectory, fault } => {
                self.metrics.refused.with_label_values(&[fault.kind.as_str()]).inc();
                self.trajectory_refused(&trajectory, &fault);
            }
            Command::ActionQueued(action) => self.queued(&action),
            Command::ActionRefused { action, fault } => self.action_refused(&action, &fault),
            Command::ActionStarted { action, node, run } => self.started(&action, &node, &run),
            Command::ActionEnded { action, outcome, submitted, run } => {
                self.action_ended(&action, outcome, submitted, run.as_ref());
            }
            Command::PermitGranted { permit, submitted } => {
                self.permit_granted(&permit, submitted);
            }
            Command::PermitEnded { permit, fault } => self.permit_ended(&permit, fault.as_ref()),
        }
    }

    fn stored(&mut self, durable: Vec<Durable>) {
        for durable in durable {
            match durable {
                Durable::Accepted(action) => self.accept_durable(&action),
                Durable::Ended { action, bucket } => self.end_durable(&action, bucket),
                // The GPU pools are told of these.
                Durable::Started(_) => {}
                Durable::Answered { action, bucket } => {
                    self.retained.insert(bucket, action.as_str());
                }
                Durable::Trajectory(trajectory) => self.trajectory_durable(&trajectory),
                Durable::Removed(trajectory) => self.trajectory_removed(&trajectory),
                Durable::Expired { bucket, early } => {
                    self.retained.expire(bucket);
                    if early > 0 {
                        self.metrics.evicted.inc_by(early as u64);
                        tracing::warn!(
                            early,
                            "results went before their time: too many or too large; raise the bounds or shorten the time they are kept"
                        );
                    }
                }
            }
        }
        self.refresh_gauges();
    }

    fn refresh_gauges(&mut self) {
        // A pass over the nodes: not for every commit.
        if self.gauges_at.elapsed() >= GAUGES_EVERY {
            self.gauges_at = Instant::now();
            let nodes = self.core.stats().nodes;
            let exclusive = nodes.iter().map(|node| node.exclusive).sum();
            self.metrics.exclusive_cores.set(gauge(exclusive));
            self.metrics.shared_cores.set(gauge(nodes.iter().map(|node| node.shared).sum()));
        }
        self.metrics.trajectories.set(gauge(self.trajectories.len()));
        self.metrics.links.set(gauge(self.links.len()));
        self.metrics.buffered_bytes.set(gauge(self.budget.used()));
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Writes an event to a reader, who is woken at the end of the round.
    fn tell(&mut self, to: &Subscriber, event: pb::ActionEvent, ends: bool) {
        let written = to.mailbox.write(event, ends);
        self.note(to, written);
    }

    fn note(&mut self, to: &Subscriber, written: Written) {
        match written {
            Written::First => self.touched.push(Arc::clone(&to.mailbox)),
            Written::Overflow => self.metrics.slow_readers.inc(),
            Written::More | Written::Closed => {}
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Seconds as the wire has them.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
