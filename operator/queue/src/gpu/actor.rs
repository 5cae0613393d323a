//! The one task that owns the pools. It never waits for anything but its inbox and timers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollwright_core::gpu::{Event, ServiceIndex};
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::calls::Call;
use super::config::GpuPool;
use super::handle::Input;
use super::links::Link;
use super::pool::Pool;
use crate::clock::Clock;
use crate::mailbox::{Budget, Mailbox};
use crate::metrics::Metrics;
use crate::store::{Op, Pusher, StartedCall, Store, StoreError};

/// Inputs of one round at most.
const BATCH: usize = 64;
/// Numbers of engines and orders that one pool may give in the life of a process: the
/// store's epochs of two processes are 2^32 apart.
const NUMBERS: u64 = 1 << 24;

/// What the task is given to work with.
pub(crate) struct Parts {
    pub(crate) pools: Vec<GpuPool>,
    /// Services are called `<namespace>.<name>`.
    pub(crate) namespaced: bool,
    /// Above every epoch that was given out before.
    pub(crate) epoch: u64,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<Store>,
    pub(crate) pusher: Pusher,
    pub(crate) budget: Arc<Budget>,
    pub(crate) max_buffered_bytes: usize,
    /// How long the calls of a node that is away are waited for.
    pub(crate) node_grace: Duration,
    pub(crate) metrics: Arc<Metrics>,
    /// Its own inbox, for what is looked up.
    pub(crate) inbox: mpsc::Sender<Input>,
}

/// The state of the task.
pub(crate) struct Gpu {
    pub(super) parts: Parts,
    pub(super) pools: Vec<Pool>,
    /// Pool and place of each service.
    pub(super) services: HashMap<String, (usize, ServiceIndex)>,
    pub(super) calls: HashMap<ActionId, Call>,
    pub(super) links: HashMap<NodeId, Link>,
    /// When the calls of nodes without a link are given up.
    pub(super) away: BTreeMap<NodeId, Time>,
    /// When calls must have begun.
    pub(super) late: BTreeSet<(Time, ActionId)>,
    /// For the cores, in this round.
    pub(super) events: VecDeque<(usize, Event)>,
    /// For the store, in this round.
    pub(super) ops: Vec<Op>,
    /// Written to in this round and to be woken after it.
    pub(super) touched: Vec<Arc<Mailbox<pb::QueueMessage>>>,
}

impl Gpu {
    /// Without nodes, and with the calls that were started and not answered.
    pub(crate) fn new(
        mut parts: Parts,
        calls: Vec<(String, StartedCall)>,
    ) -> Result<Self, StoreError> {
        let pools = std::mem::take(&mut parts.pools).into_iter().enumerate();
        let epoch = |index: usize| parts.epoch + index as u64 * NUMBERS;
        let pools: Vec<Pool> = pools.map(|(at, pool)| Pool::new(pool, epoch(at))).collect();
        let services = pools.iter().enumerate().flat_map(|(at, pool)| {
            let names = pool.services.iter().map(|service| service.core.name.clone());
            names.enumerate().map(move |(index, name)| (name, (at, ServiceIndex(index))))
        });
        let mut gpu = Self {
            services: services.collect(),
            parts,
            pools,
            calls: HashMap::new(),
            links: HashMap::new(),
            away: BTreeMap::new(),
            late: BTreeSet::new(),
            events: VecDeque::new(),
            ops: Vec::new(),
            touched: Vec::new(),
        };
        let services = gpu.pools.iter().flat_map(|pool| &pool.services);
        services.for_each(|service| gpu.parts.metrics.gpu.begin(service));
        gpu.recover(calls)?;
        gpu.parts.pusher.push(&mut gpu.ops);
        Ok(gpu)
    }

    /// Runs until the shutdown. Unanswered calls end as their replies are dropped.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        shutdown: CancellationToken,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        self.refresh_gauges();
        loop {
            let due = self.next_deadline();
            let wakeup = async {
                match due {
                    Some(at) => tokio::time::sleep_until(self.parts.clock.instant(at).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                count = inbox.recv_many(&mut batch, BATCH) => if count == 0 { break },
                () = wakeup => {}
            }
            for input in batch.drain(..) {
                self.take(input);
                self.work();
            }
            self.tick();
            self.work();
            self.parts.pusher.push(&mut self.ops);
            for outbox in self.touched.drain(..) {
                outbox.wake();
            }
            self.refresh_gauges();
        }
        self.calls.clear();
        // Who sends must not wait for this task while it ends.
        inbox.close();
        while inbox.recv().await.is_some() {}
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Call { caller, asked, reply } => self.call(&caller, *asked, reply),
            Input::Found { action, result } => self.found(&action, *result),
            Input::Cancel { caller, job, action, reply } => {
                // Who has gone does not want the answer.
                let _gone = reply.send(self.cancel(&caller, &job, &action));
            }
            Input::MayLink { node, agent, reply } => {
                let _gone = reply.send(self.may_link(&node, &agent));
            }
            Input::LinkUp { node, epoch, gpu, answered, outbox } => {
                self.link_up(&node, epoch, &gpu, &answered, outbox);
            }
            Input::LinkBatch { node, epoch, messages } => self.link_batch(&node, epoch, messages),
            Input::LinkDown { node, epoch } => self.link_down(&node, epoch),
            Input::Look { caller, action, wait, reply } => {
                let _gone = reply.send(self.look(&caller, &action, wait));
            }
            Input::Started(action) => self.on_record(&action),
            Input::Answered(action) => self.durable(&action),
            Input::Stats { caller, reply } => {
                let _gone = reply.send(self.stats(caller.as_ref()));
            }
        }
    }

    /// Tells the cores what happened, and does what follows, until nothing does.
    pub(super) fn work(&mut self) {
        while let Some((at, event)) = self.events.pop_front() {
            let now = self.now();
            let Some(pool) = self.pools.get_mut(at) else { continue };
            for command in pool.core.on_event(event, now) {
                self.carry_out(at, command);
            }
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        while let Some((at, _)) = self.late.first()
            && *at <= now
            && let Some((_, action)) = self.late.pop_first()
        {
            self.late(&action);
        }
        self.give_up_away(now);
        self.end_strays(now);
        for (at, pool) in self.pools.iter().enumerate() {
            if pool.core.next_deadline().is_some_and(|due| due <= now) {
                self.events.push_back((at, Event::Tick));
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let cores = self.pools.iter().filter_map(|pool| pool.core.next_deadline());
        let late = self.late.first().map(|(at, _)| *at);
        let away = self.away.values().copied().min();
        cores.chain(late).chain(away).chain(self.strays_due()).min()
    }

    pub(super) fn now(&self) -> Time {
        self.parts.clock.now()
    }
}
