//! Carries out what the core decided: every order within its limit, every result verified.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::gpu::{
    Chunk, ENGINE_UNREACHABLE, EngineId, Event, Order, OrderId, Proof, Trouble,
};
use rollwright_core::ids::ActionId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::backend::{Backend, Caller, Device};
use super::spec::{EngineSpec, Occupant};
use super::unreachable;

/// Between two looks at memory that has not followed yet: an engine gives it back shortly
/// after its call has returned.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long memory may take to follow.
const FOLLOWS_IN: Duration = Duration::from_secs(2);

/// A command of the core, as it reaches the node: see [`rollwright_core::gpu::Command`].
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// Start an engine: answered by [`Event::Restored`].
    Launch {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// What it is.
        spec: Arc<EngineSpec>,
        /// On which GPUs.
        chunk: Chunk,
        /// Time for it.
        limit: Duration,
    },
    /// Bring a sleeping engine back: answered by [`Event::Restored`].
    Wake {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Other GPUs than those that it left, where it is to be moved.
        to: Option<Chunk>,
        /// Time for it.
        limit: Duration,
    },
    /// Put an engine to sleep: answered by [`Event::Evicted`].
    Evict {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Bytes that it may keep on each GPU.
        residue: u64,
        /// Time for it.
        limit: Duration,
    },
    /// End an engine, whatever it does: answered by [`Event::Stopped`].
    Stop {
        /// The engine.
        engine: EngineId,
        /// The order.
        order: OrderId,
        /// Time for it.
        limit: Duration,
    },
    /// Make an action's call: answered by [`Event::Finished`], or [`Event::Broke`] where its
    /// engine has ended.
    Run {
        /// The action.
        action: ActionId,
        /// Where.
        engine: EngineId,
    },
    /// End a call; its end is still reported.
    Cancel {
        /// The action.
        action: ActionId,
        /// Where.
        engine: EngineId,
    },
}

/// Carries out commands for one node. Events are sent in the order in which things end; the
/// core knows by their numbers which are void.
pub struct Driver {
    backend: Arc<dyn Backend>,
    device: Arc<dyn Device>,
    caller: Arc<dyn Caller>,
    /// Orders that are being carried out, one an engine.
    orders: BTreeMap<EngineId, Ordered>,
    /// Actions that run, and where.
    calls: BTreeMap<ActionId, (EngineId, AbortHandle)>,
    tasks: JoinSet<Done>,
}

/// An order that is being carried out.
#[derive(Debug)]
struct Ordered {
    order: OrderId,
    dropped: CancellationToken,
    /// Ends when nothing is done for it any more.
    idle: oneshot::Receiver<()>,
}

/// What a task leaves.
enum Done {
    /// No event is an order that a later one replaced.
    Order(EngineId, OrderId, Option<Event>),
    Call(ActionId, EngineId, Result<(), Fault>),
    /// A call found that its engine has ended.
    Death(EngineId, Trouble),
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Driver");
        shown.field("orders", &self.orders).field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver that has nothing to do.
    pub fn new(
        backend: Arc<dyn Backend>,
        device: Arc<dyn Device>,
        caller: Arc<dyn Caller>,
    ) -> Self {
        let (orders, calls, tasks) = (BTreeMap::new(), BTreeMap::new(), JoinSet::new());
        Self { backend, device, caller, orders, calls, tasks }
    }

    /// Works until there are no more commands, or nobody takes events. What is under way is
    /// then dropped; engines stay as they are.
    pub async fn run(mut self, commands: mpsc::Receiver<Instruction>, events: mpsc::Sender<Event>) {
        self.work(commands, events).await;
        for (_, call) in self.calls.values() {
            call.abort();
        }
        self.tasks.shutdown().await;
    }

    async fn work(
        &mut self,
        mut commands: mpsc::Receiver<Instruction>,
        events: mpsc::Sender<Event>,
    ) {
        loop {
            let event = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                Some(done) = self.tasks.join_next() => self.done(done),
            };
            if let Some(event) = event
                && events.send(event).await.is_err()
            {
                return;
            }
        }
    }

    fn obey(&mut self, instruction: Instruction) -> Option<Event> {
        let (backend, device) = (Arc::clone(&self.backend), Arc::clone(&self.device));
        match instruction {
            Instruction::Launch { engine, order, spec, chunk, limit } => {
                self.order(engine, order, async move {
                    let launched = async {
                        backend.launch(engine, spec, chunk).await?;
                        prove(&*backend, &*device, engine).await
                    };
                    Event::Restored(engine, order, within(limit, Order::Launch, launched).await)
                });
            }
            Instruction::Wake { engine, order, to, limit } => {
                self.order(engine, order, async move {
                    let woken = async {
                        match to {
                            Some(chunk) => backend.wake_on(engine, chunk).await?,
                            None => backend.wake(engine).await?,
                        }
                        prove(&*backend, &*device, engine).await
                    };
                    Event::Restored(engine, order, within(limit, Order::Wake, woken).await)
                });
            }
            Instruction::Evict { engine, order, residue, limit } => {
                self.order(engine, order, async move {
                    let evicted = evict(&*backend, &*device, engine, residue);
                    Event::Evicted(engine, order, within(limit, Order::Evict, evicted).await)
                });
            }
            Instruction::Stop { engine, order, limit } => self.stop(engine, order, limit),
            Instruction::Run { action, engine } => self.call(action, engine),
            Instruction::Cancel { action, engine } => {
                let Some((_, call)) = self.calls.get(&action) else {
                    let result = Err(cancelled());
                    return Some(Event::Finished { action, engine, result });
                };
                // Its end is reported when the call is dropped.
                call.abort();
            }
        }
        None
    }

    /// Begins an order once what was ordered of the engine before is dropped: nothing is done
    /// to an engine twice at a time.
    fn order(
        &mut self,
        engine: EngineId,
        order: OrderId,
        work: impl Future<Output = Event> + Send + 'static,
    ) {
        let (busy, idle) = oneshot::channel();
        let dropped = CancellationToken::new();
        let ordered = Ordered { order, dropped: dropped.clone(), idle };
        let before = self.orders.insert(engine, ordered);
        if let Some(before) = &before {
            before.dropped.cancel();
        }
        self.tasks.spawn(async move {
            let _busy: oneshot::Sender<()> = busy;
            if let Some(before) = before {
                // It says nothing; it ends.
                let _ended = before.idle.await;
            }
            let event = tokio::select! {
                biased;
                () = dropped.cancelled() => None,
                event = work => Some(event),
            };
            Done::Order(engine, order, event)
        });
    }

    /// Ends an engine; what was ordered before, and what runs there, is dropped first.
    fn stop(&mut self, engine: EngineId, order: OrderId, limit: Duration) {
        self.calls.retain(|_, (on, call)| {
            let stays = *on != engine;
            if !stays {
                call.abort();
            }
            stays
        });
        let (backend, device) = (Arc::clone(&self.backend), Arc::clone(&self.device));
        self.order(engine, order, async move {
            let stopped = async {
                // Where its processes cannot be counted it is ended all the same.
                let at = backend.occupant(engine).await;
                backend.stop(engine).await?;
                // What the agent lent it came back with that.
                let at = at?.map(|at| Occupant { lent: 0, ..at });
                settled(&*device, engine, at.as_ref(), 0).await
            };
            Event::Stopped(engine, order, within(limit, Order::Stop, stopped).await)
        });
    }

    fn call(&mut self, action: ActionId, engine: EngineId) {
        if self.calls.contains_key(&action) {
            return;
        }
        let (backend, caller) = (Arc::clone(&self.backend), Arc::clone(&self.caller));
        let id = action.clone();
        let call = tokio::spawn(async move {
            let Some(address) = backend.address(engine).await else {
                let message = "the engine of the reward service is gone";
                return Ok(Err(Fault::new(FaultKind::Infrastructure, "EngineGone", message)));
            };
            match caller.call(&id, &address).await {
                Err(fault) if fault.reason == ENGINE_UNREACHABLE => {
                    unreachable::look(&*backend, engine, fault).await.map(Err)
                }
                result => Ok(result),
            }
        });
        self.calls.insert(action.clone(), (engine, call.abort_handle()));
        self.tasks.spawn(async move {
            match call.await {
                Ok(Ok(result)) => Done::Call(action, engine, result),
                Ok(Err(trouble)) => Done::Death(engine, trouble),
                Err(error) => Done::Call(action, engine, Err(broken(&error))),
            }
        });
    }

    fn done(&mut self, done: Result<Done, JoinError>) -> Option<Event> {
        match done {
            Ok(Done::Order(engine, order, event)) => {
                if self.orders.get(&engine).is_some_and(|last| last.order == order) {
                    self.orders.remove(&engine);
                }
                event
            }
            Ok(Done::Call(action, engine, result)) => {
                // One whose engine was ended has been reported by that.
                self.calls.remove(&action)?;
                Some(Event::Finished { action, engine, result })
            }
            Ok(Done::Death(engine, trouble)) => {
                // All that ran there is reported by one; or was, when the engine was ended.
                let before = self.calls.len();
                self.calls.retain(|_, (on, _)| *on != engine);
                (self.calls.len() < before).then_some(Event::Broke(engine, trouble))
            }
            // Nothing that a task does panics.
            Err(_) => None,
        }
    }
}

fn cancelled() -> Fault {
    Fault::new(FaultKind::Cancelled, "Cancelled", "the call was cancelled")
}

fn broken(error: &JoinError) -> Fault {
    if error.is_cancelled() {
        return cancelled();
    }
    let message = format!("the call of the reward service failed inside the agent: {error}");
    Fault::new(FaultKind::Infrastructure, "AgentFailed", message)
}

async fn within<T>(
    limit: Duration,
    what: Order,
    order: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::time::timeout(limit, order).await.unwrap_or(Err(Trouble::TimedOut(what)))
}

/// The three means by which an engine is believed to be resident.
pub(super) async fn prove(
    backend: &dyn Backend,
    device: &dyn Device,
    engine: EngineId,
) -> Result<Proof, Trouble> {
    // Each by its own means, and neither waits for the other.
    let (asleep, at) = tokio::try_join!(backend.is_asleep(engine), backend.occupant(engine))?;
    let held = device.held(engine, at.as_ref()).await?;
    let answers = !asleep && backend.probe(engine).await?;
    let movable = asleep && backend.is_movable(engine).await;
    Ok(Proof { asleep, held, answers, movable })
}

async fn evict(
    backend: &dyn Backend,
    device: &dyn Device,
    engine: EngineId,
    residue: u64,
) -> Result<Proof, Trouble> {
    backend.evict(engine).await?;
    // Each by its own means, and neither waits for the other.
    let (asleep, at) = tokio::try_join!(backend.is_asleep(engine), backend.occupant(engine))?;
    let held = settled(device, engine, at.as_ref(), residue).await?;
    let movable = asleep && backend.is_movable(engine).await;
    Ok(Proof { asleep, held, answers: false, movable })
}

/// What an engine holds when it is at most `enough`, or after the time that memory may take.
async fn settled(
    device: &dyn Device,
    engine: EngineId,
    at: Option<&Occupant>,
    enough: u64,
) -> Result<u64, Trouble> {
    let until = tokio::time::Instant::now() + FOLLOWS_IN;
    loop {
        let held = device.held(engine, at).await?;
        if held <= enough || tokio::time::Instant::now() >= until {
            return Ok(held);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
