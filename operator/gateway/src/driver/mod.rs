//! Carries out what the core decides beside the data path: rewards, sandboxes, weights,
//! the store, events; and answers `/rollout/v1` from the core's state.

mod batches;
mod engines;
mod execute;
mod fleet;
mod record;
mod recover;
mod rewards;
mod rollouts;
mod updates;
mod view;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::reward::CallId;
use rollwright_core::rollout::{Command, Event, Rollout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::fleet::Fleet;
pub(crate) use self::fleet::{Wish, initial};
pub(crate) use self::recover::recovered;
pub(crate) use self::rollouts::Api;
use self::waiting::Waiting;
use crate::actions::Actions;
use crate::config::GatewayConfig;
use crate::dispatch::Dispatch;
use crate::events::EventHub;
use crate::metrics::Metrics;
use crate::reward::Scorer;
use crate::store::Store;
use crate::weights::{BucketStore, Puller};
use crate::workers::WorkerEvent;

/// What the driver's task is told, in order.
pub(crate) enum Order {
    /// By the core.
    Do(Command),
    /// By a caller: answer when everything before it is done, disk included.
    Barrier(oneshot::Sender<()>),
}

/// The rollouts of a job, as they run.
pub(crate) struct Driver {
    config: GatewayConfig,
    dispatch: Arc<Dispatch>,
    orders_tx: mpsc::UnboundedSender<Order>,
    store: Store,
    hub: Arc<EventHub>,
    buckets: BucketStore,
    puller: Puller,
    /// May be locked while the core is asked, and never the other way round.
    fleet: Mutex<Fleet>,
    /// One set of workers is taken after the other.
    wishing: Arc<tokio::sync::Mutex<()>>,
    /// By the index of the service.
    scorers: Vec<Scorer>,
    actions: Option<Actions>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Counts changes of groups: whoever waits for one looks again.
    changed_tx: watch::Sender<u64>,
    next_taker: AtomicU64,
    /// Whoever waits is answered at once: the gateway stops.
    stopping: CancellationToken,
    /// The store writes no more: nothing may be accepted any longer.
    broken: CancellationToken,
    /// Records on their way to the disk.
    keeps: TaskTracker,
}

/// What a driver is made with.
pub(crate) struct Parts {
    pub(crate) config: GatewayConfig,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) orders_tx: mpsc::UnboundedSender<Order>,
    pub(crate) store: Store,
    pub(crate) hub: Arc<EventHub>,
    pub(crate) buckets: BucketStore,
    pub(crate) puller: Puller,
    pub(crate) workers: Vec<Wish>,
    /// Watchers --what they see--> the driver.
    pub(crate) engines_tx: mpsc::Sender<WorkerEvent>,
    pub(crate) scorers: Vec<Scorer>,
    pub(crate) actions: Option<Actions>,
    pub(crate) metrics: Arc<Metrics>,
}

/// Log-probabilities of a trajectory's tokens, by teacher; `None` where not generated.
type Taught = BTreeMap<String, Vec<Option<f32>>>;

/// What is kept beside the core.
#[derive(Default)]
struct State {
    waiting: Waiting,
    /// What the callers of open groups want back, until it is on disk.
    payloads: HashMap<GroupId, Bytes>,
    /// What drivers said of completed trajectories, until it is on disk.
    metadata: HashMap<TrajectoryId, Bytes>,
    /// What teachers said of trajectories that are being scored, until it is on disk.
    taught: HashMap<TrajectoryId, Taught>,
    /// Calls of reward services in flight.
    calls: HashMap<CallId, AbortHandle>,
    /// Groups whose record could not be written.
    failed: HashMap<GroupId, Fault>,
}

impl Driver {
    /// Begins to watch the engines.
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let mut fleet = Fleet::new(parts.engines_tx);
        for worker in parts.workers {
            fleet.add(worker, &parts.config);
        }
        Arc::new(Self {
            fleet: Mutex::new(fleet),
            wishing: Arc::default(),
            config: parts.config,
            dispatch: parts.dispatch,
            orders_tx: parts.orders_tx,
            store: parts.store,
            hub: parts.hub,
            buckets: parts.buckets,
            puller: parts.puller,
            scorers: parts.scorers,
            actions: parts.actions,
            metrics: parts.metrics,
            state: Mutex::default(),
            changed_tx: watch::Sender::new(0),
            next_taker: AtomicU64::new(1),
            stopping: CancellationToken::new(),
            broken: CancellationToken::new(),
            keeps: TaskTracker::new(),
        })
    }

    /// What it counts.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// From now on nobody waits for what has not happened yet.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    /// Ends reward calls, and waits until what was decided is done.
    pub(crate) async fn finish(&self) {
        for task in self.state().calls.values() {
            task.abort();
        }
        self.keeps.close();
        // What is decided now, then the records, then what they have settled.
        for last in [false, true] {
            if let Err(fault) = self.settled().await {
                tracing::debug!(%fault, "the driver has ended already");
            }
            if !last {
                self.keeps.wait().await;
            }
        }
    }

    /// Ends when the store has failed for good.
    pub(crate) async fn broke(&self) {
        self.broken.cancelled().await;
    }

    fn fleet(&self) -> MutexGuard<'_, Fleet> {
        // Every change of it is complete before anything that could panic.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single insertion or removal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the core something.
    fn event(&self, event: Event) -> Result<(), Fault> {
        self.dispatch.event(event)
    }

    /// Tells the core something that it can only refuse if there is a defect.
    fn tell(&self, event: Event) {
        if let Err(fault) = self.event(event) {
            tracing::error!(%fault, "the core refused what happened");
        }
    }

    fn view<T>(&self, read: impl FnOnce(&Rollout) -> T) -> T {
        self.dispatch.view(read)
    }

    /// Waits until everything that the core has decided so far is done.
    async fn settled(&self) -> Result<(), Fault> {
        let (done_tx, done) = oneshot::channel();
        let stopping = || crate::fault::infrastructure("Stopping", "the gateway is stopping");
        self.orders_tx.send(Order::Barrier(done_tx)).map_err(|_| stopping())?;
        done.await.map_err(|_| stopping())?;
        if self.broken.is_cancelled() {
            let message = "the store has failed: nothing more is accepted, see the log";
            return Err(crate::fault::infrastructure("StoreStopped", message));
        }
        Ok(())
    }

    fn taker(&self) -> u64 {
        self.next_taker.fetch_add(1, Ordering::Relaxed)
    }

    fn changed(&self) {
        self.changed_tx.send_modify(|count| *count += 1);
    }
}
