//! The core under its mutex, and the requests that wait for what it decides.
//!
//! A request asks for a place ([`Dispatch::place`]); where a worker has room, the answer
//! comes under the same lock, through no channel. Its [`Slot`] tells the core how it ended,
//! also when it is dropped, so a worker's slot is never lost.

mod mailbox;
mod slot;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{TrajectoryId, WorkerId};
use rollwright_core::rollout::{Ask, Command, Event, Rollout};
use rollwright_core::router::{Outcome, WorkerSpec, WorkerState};
use rollwright_core::time::Time;
use rollwright_core::tokens::Finish;
use rollwright_core::version::{RequestId, Version};
use tokio::sync::{Notify, mpsc};

use crate::driver::Order;
use crate::engine::endpoint::Endpoint;
use mailbox::{Answer, Mailbox};
use slot::Held;
pub(crate) use slot::UNREACHABLE;
pub use slot::{Slot, Stop};

/// How long [`Dispatch::run`] sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// The priority of every request, until lengths are predicted.
const PRIORITY: i64 = 0;

/// Where a request was sent.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The engine.
    pub endpoint: Arc<Endpoint>,
    /// The version of the weights that it held then, where that is known.
    pub version: Option<Version>,
    /// For engines that schedule by priority: higher first.
    pub priority: i64,
    /// Where the prefill is done, when that is another engine.
    pub prefill: Option<Arc<Endpoint>>,
}

impl Placement {
    /// The engine whose fault it is.
    pub(crate) fn blamed(&self, prefill: bool) -> &Arc<Endpoint> {
        self.prefill.as_ref().filter(|_| prefill).unwrap_or(&self.endpoint)
    }
}

/// The core, and who waits for it.
#[derive(Debug)]
pub struct Dispatch {
    inner: Mutex<Inner>,
    /// The core's epoch.
    start: Instant,
    next_request: AtomicU64,
    /// The core's next deadline came nearer.
    sooner: Notify,
}

#[derive(Debug)]
struct Inner {
    core: Rollout,
    endpoints: HashMap<WorkerId, Arc<Endpoint>>,
    /// Every request between its arrival and its end: waiting or in flight. Bounded by
    /// `max_pending` and the workers' slots.
    requests: HashMap<RequestId, Arc<Mailbox>>,
    /// What is for the driver. Each is a change of a worker, a trajectory, a group or a
    /// batch, all of which the core bounds.
    orders: mpsc::UnboundedSender<Order>,
    /// When [`Dispatch::run`] will wake.
    armed: Option<Time>,
}

impl Dispatch {
    /// Around `core`; what is not about a request goes into the channel.
    pub(crate) fn new(core: Rollout, orders: mpsc::UnboundedSender<Order>) -> Arc<Self> {
        let inner = Inner {
            core,
            endpoints: HashMap::new(),
            requests: HashMap::new(),
            orders,
            armed: None,
        };
        let dispatch = Self {
            inner: Mutex::new(inner),
            start: Instant::now(),
            next_request: AtomicU64::new(1),
            sooner: Notify::new(),
        };
        Arc::new(dispatch)
    }

    /// The core's clock.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// A worker is there.
    pub fn join(&self, endpoint: Endpoint, spec: WorkerSpec) -> Result<(), Fault> {
        let worker = endpoint.worker.clone();
        let mut inner = self.lock();
        let before = inner.endpoints.insert(worker.clone(), Arc::new(endpoint));
        let event = Event::WorkerJoined { worker: worker.clone(), spec };
        let joined = inner.step(event, self.now(), None);
        if joined.is_err() {
            match before {
                Some(before) => inner.endpoints.insert(worker, before),
                None => inner.endpoints.remove(&worker),
            };
        }
        self.settle(inner, joined)
    }

    /// A worker is gone.
    pub fn leave(&self, worker: &WorkerId) -> Result<(), Fault> {
        let mut inner = self.lock();
        let left = inner.step(Event::WorkerLeft(worker.clone()), self.now(), None);
        // Only then, under the same lock: nothing is sent to it any more.
        inner.endpoints.remove(worker);
        self.settle(inner, left)
    }

    /// Tells the core something, and carries out what it decides.
    pub fn event(&self, event: Event) -> Result<(), Fault> {
        let mut inner = self.lock();
        let step = inner.step(event, self.now(), None);
        self.settle(inner, step)
    }

    /// What follows from a step, outside of the lock.
    fn settle(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        step: Result<Vec<Arc<Mailbox>>, Fault>,
    ) -> Result<(), Fault> {
        let mail = step?;
        let sooner = inner.rearm();
        drop(inner);
        self.deliver(mail, sooner);
        Ok(())
    }

    /// Reads the core.
    pub fn view<T>(&self, read: impl FnOnce(&Rollout) -> T) -> T {
        read(&self.lock().core)
    }

    /// Some engine that is known, for what any of them can answer.
    pub fn any_endpoint(&self) -> Option<Arc<Endpoint>> {
        let inner = self.lock();
        let usable = |worker: &WorkerId| {
            inner.core.router().worker(worker).is_some_and(|view| {
                matches!(view.state, WorkerState::Ready | WorkerState::Probing | WorkerState::Held)
            })
        };
        inner.endpoints.iter().find(|(worker, _)| usable(worker)).map(|(_, at)| Arc::clone(at))
    }

    /// Whether the trajectory's turns go to a token log.
    pub fn records(&self, trajectory: &TrajectoryId) -> bool {
        self.view(|core| core.records(trajectory))
    }

    /// Waits for a worker. Dropping the future withdraws the request.
    pub async fn place(self: &Arc<Self>, ask: Ask) -> Result<Slot, Fault> {
        self.arrive(ask)?.wait().await
    }

    /// A request arrives; its answer may be in its mailbox already.
    fn arrive(self: &Arc<Self>, ask: Ask) -> Result<Held, Fault> {
        let request = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let mailbox = Arc::new(Mailbox::default());
        let mut inner = self.lock();
        let now = self.now();
        inner.requests.insert(request, Arc::clone(&mailbox));
        let step = inner.step(Event::Arrived { request, ask }, now, Some(request));
        if step.is_err() {
            inner.requests.remove(&request);
        }
        let mail = step?;
        let sooner = inner.rearm();
        drop(inner);
        self.deliver(mail, sooner);
        Ok(Held::new(Arc::clone(self), request, mailbox))
    }

    /// Wakes the core when it wants to be woken, for ever.
    pub async fn run(&self) {
        loop {
            let deadline = {
                let mut inner = self.lock();
                inner.armed = inner.core.next_deadline();
                inner.armed
            };
            let now = self.now();
            let sleep = deadline.map_or(LONGEST_SLEEP, |at| at.since(now).min(LONGEST_SLEEP));
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                () = self.sooner.notified() => continue,
            }
            if let Err(fault) = self.event(Event::Tick) {
                tracing::error!(%fault, "the core refused a tick");
            }
        }
    }

    /// A request has ended on its worker. `forget`: nobody waits for more of it.
    fn end(&self, request: RequestId, outcome: Outcome, finish: Option<Finish>, forget: bool) {
        let mut inner = self.lock();
        let now = self.now();
        if forget {
            inner.requests.remove(&request);
        }
        let mut mail = Vec::new();
        inner.tell(request, Event::Ended { request, outcome, finish }, now, &mut mail);
        let sooner = inner.rearm();
        drop(inner);
        self.deliver(mail, sooner);
    }

    /// Nobody waits for a request any more.
    fn withdraw(&self, request: RequestId) {
        let mut inner = self.lock();
        let now = self.now();
        let Some(mailbox) = inner.requests.remove(&request) else { return };
        let mut mail = Vec::new();
        inner.tell(request, Event::Withdrawn(request), now, &mut mail);
        // Under the lock, so that no placement comes between.
        if mailbox.land() {
            let outcome = Outcome::Back;
            let ended = Event::Ended { request, outcome, finish: None };
            inner.tell(request, ended, now, &mut mail);
        }
        let sooner = inner.rearm();
        drop(inner);
        self.deliver(mail, sooner);
    }

    /// Wakes who has mail, outside of the lock.
    fn deliver(&self, mail: Vec<Arc<Mailbox>>, sooner: bool) {
        for mailbox in mail {
            mailbox.wake();
        }
        if sooner {
            self.sooner.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything that could panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// One event; returns the mailboxes to wake, less that of `own`, which is awake.
    fn step(
        &mut self,
        event: Event,
        now: Time,
        own: Option<RequestId>,
    ) -> Result<Vec<Arc<Mailbox>>, Fault> {
        let commands = self.core.on_event(event, now)?;
        let mut mail = Vec::new();
        for command in commands {
            let (request, mailbox) = match command {
                Command::Send { request, worker, prefill, moved: _ } => {
                    let answer = self.placed(&worker, prefill.as_ref());
                    (request, self.letter(request, |mailbox| mailbox.answer(answer)))
                }
                Command::Refuse { request, fault } => (
                    request,
                    self.letter(request, |mailbox| mailbox.answer(Answer::Refused(fault))),
                ),
                Command::TakeBack { request, restart, .. } => {
                    (request, self.letter(request, |mailbox| mailbox.stop(Stop { restart })))
                }
                other => {
                    // Without a driver the gateway is stopping.
                    let _ = self.orders.send(Order::Do(other));
                    continue;
                }
            };
            if own != Some(request) {
                mail.extend(mailbox);
            }
        }
        Ok(mail)
    }

    /// One event about a request that cannot be refused, unless there is a defect.
    fn tell(&mut self, request: RequestId, event: Event, now: Time, mail: &mut Vec<Arc<Mailbox>>) {
        match self.step(event, now, None) {
            Ok(more) => mail.extend(more),
            Err(fault) => {
                tracing::error!(%fault, %request, "the core refused a request's end");
                mail.extend(self.letter(request, |box_| box_.answer(Answer::Refused(fault))));
            }
        }
    }

    fn letter(&self, request: RequestId, write: impl FnOnce(&Mailbox)) -> Option<Arc<Mailbox>> {
        let mailbox = self.requests.get(&request)?;
        write(mailbox);
        Some(Arc::clone(mailbox))
    }

    fn placed(&self, worker: &WorkerId, prefill: Option<&WorkerId>) -> Answer {
        let endpoint = |worker: &WorkerId| self.endpoints.get(worker).map(Arc::clone);
        let prefill_at = prefill.and_then(endpoint);
        match endpoint(worker) {
            Some(at) if prefill.is_none() || prefill_at.is_some() => Answer::Placed(Placement {
                endpoint: at,
                version: self.core.router().version(worker),
                priority: PRIORITY,
                prefill: prefill_at,
            }),
            _ => Answer::Refused(Fault::new(
                FaultKind::Infrastructure,
                "WorkerGone",
                format!("worker `{worker}` has left: try again"),
            )),
        }
    }

    /// True when the core now wants to be woken before [`Dispatch::run`] would.
    fn rearm(&mut self) -> bool {
        let Some(next) = self.core.next_deadline() else { return false };
        if self.armed.is_some_and(|armed| armed <= next) {
            return false;
        }
        self.armed = Some(next);
        true
    }
}
