//! The node: sandboxes and actions of one agent. One task owns the state; it
//! takes the queue's messages and says what became of them, over any link.

mod actions;
mod actor;
mod adopt;
mod disk;
mod files;
mod handover;
mod inbox;
mod leave;
mod sandboxes;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_proto::v1::{AgentMessage, QueueMessage};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::{Bounds, Hierarchy};
use crate::config::{AgentConfig, ConfigError};
use crate::docker::Engine;
use crate::docker::labels::Owner;
use crate::gpu::{self, Desk};
use crate::images::Images;
use crate::images::gc::Ledger;
use crate::metrics::Metrics;
use crate::network::Networks;
use crate::reset::{Ground, Names};
use crate::sandbox::Places;
use crate::topology::{self, TopologyError};
use actor::Actor;

/// Messages of the queue that wait for the node.
const INBOX: usize = 1024;
/// Sandboxes that are removed at the same time: more only make Docker slower.
const REMOVALS_AT_ONCE: usize = 8;
/// How long an agent that is ending may hold its state directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// How long calls of reward services may take to end before the agent does: less than the
/// time between a pod's SIGTERM and its SIGKILL.
const LEAVE: Duration = Duration::from_secs(20);
/// Reports of runners that wait for the node.
const REPORTS: usize = 4096;

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Docker or the state directory cannot be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The machine cannot be described.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The cgroup file systems cannot be used.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// The GPUs cannot be used.
    #[error("cannot use the GPUs: {0}")]
    Gpus(#[from] gpu::OpenError),
}

/// What comes in from outside.
#[derive(Debug)]
enum Input {
    /// A message of the queue.
    Queue(Box<QueueMessage>),
    /// A stream stands: node --messages--> queue.
    LinkUp(mpsc::Sender<AgentMessage>),
    /// It is gone.
    LinkDown,
    /// Tell the queue that the node is about to end; answered when nothing is left here that
    /// ends with it.
    Leave {
        /// Engines end as well, whatever the settings say.
        clear: bool,
        done_tx: oneshot::Sender<()>,
    },
    /// End, and say when it is done.
    Stop {
        /// Sandboxes end as well, whatever the settings say.
        clear: bool,
        done_tx: oneshot::Sender<()>,
    },
}

/// A running node, to be given messages. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    inbox_tx: mpsc::Sender<Input>,
    engine: Engine,
    disk_free: Arc<AtomicU64>,
}

impl NodeHandle {
    /// Hands over a message of the queue; fails when the node has stopped.
    pub async fn handle(&self, message: QueueMessage) -> Result<(), ()> {
        self.inbox_tx.send(Input::Queue(Box::new(message))).await.map_err(drop)
    }

    /// A stream stands. The node's hello is the first message into it, then
    /// whatever the queue has not acknowledged.
    pub async fn link_up(&self, outbox_tx: mpsc::Sender<AgentMessage>) -> Result<(), ()> {
        self.inbox_tx.send(Input::LinkUp(outbox_tx)).await.map_err(drop)
    }

    /// The stream is gone.
    pub async fn link_down(&self) {
        // A stopped node knows.
        let _ = self.inbox_tx.send(Input::LinkDown).await;
    }

    /// Waits for a while until no call of a reward service runs here, and tells the queue to
    /// start none; with `clear` engines end too. Stream and node go on.
    pub async fn leave(&self, clear: bool) {
        let (done_tx, done_rx) = oneshot::channel();
        if self.inbox_tx.send(Input::Leave { clear, done_tx }).await.is_ok()
            && tokio::time::timeout(LEAVE, done_rx).await.is_err()
        {
            tracing::warn!("calls of reward services still run: they end with a fault");
        }
    }

    /// Ends the node: resets are cancelled, and with `remove_on_exit` all sandboxes go.
    pub async fn stop(&self) {
        self.end(false).await;
    }

    /// Ends the node and all its sandboxes.
    pub async fn clear(&self) {
        self.end(true).await;
    }

    async fn end(&self, clear: bool) {
        let (done_tx, done_rx) = oneshot::channel();
        if self.inbox_tx.send(Input::Stop { clear, done_tx }).await.is_ok() {
            // An error is the end as well.
            let _ = done_rx.await;
        }
    }

    /// Free bytes of the disk that sandboxes are on, as last looked at.
    pub fn disk_free_bytes(&self) -> u64 {
        self.disk_free.load(Ordering::Relaxed)
    }

    /// The engine that it uses.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Starts a node: finds sandboxes of an earlier process again, removes what is
/// no use any more, and then takes messages.
pub async fn start(config: AgentConfig, metrics: Arc<Metrics>) -> Result<NodeHandle, NodeError> {
    config.validate()?;
    let hierarchy = Hierarchy::detect(&config.cgroup_root)?;
    let parent = config.cgroup_parent.as_deref();
    let within = parent.map(|parent| Bounds::of(&hierarchy, parent)).transpose()?.flatten();
    let topology = topology::discover(&config.system_root, &config.reserved, within.as_ref())?;
    let places = Places::take(&config.state_dir, LOCK_PATIENCE).await?;
    let owner = Owner { node: config.node.clone(), id: places.id().to_owned() };
    let engine = Engine::connect(&config.docker_socket).await?;
    engine.capabilities().await?;
    let root_dir = engine.root_dir().await?;
    let offered = gpu::Ground {
        gpus: config.gpus.clone(),
        host: config.engine_memory,
        state_dir: config.state_dir.clone(),
        policy: config.policy.engines.clone(),
        docker: Some(engine.clone()),
        docker_config: config.docker_config.clone(),
        cgroup_root: config.cgroup_root.clone(),
        owner: owner.clone(),
    };
    let desk = if let Some(station) = gpu::open(offered.clone())? {
        Some(Desk::open(station).await)
    } else {
        gpu::end_engines(offered).await?;
        None
    };
    let (reports_tx, reports_rx) = mpsc::channel(REPORTS);
    let ground = Arc::new(Ground {
        images: Images::new(
            engine.clone(),
            Ledger::open(Some(places.pulled())),
            config.docker_config.clone(),
        ),
        networks: Arc::new(Networks::new(engine.clone(), owner.clone())),
        owner,
        names: Names::default(),
        ending: CancellationToken::new(),
        places,
        hierarchy,
        cores: topology.numa.iter().flatten().copied().collect(),
        metrics,
        slots: Semaphore::new(config.resets_at_once.max(1)),
        removals: Semaphore::new(REMOVALS_AT_ONCE),
        tracker: TaskTracker::new(),
        reports_tx,
        engine: engine.clone(),
        config,
    });
    let disk_free =
        Arc::new(AtomicU64::new(disk::free_bytes(&root_dir).map_or(0, |disk| disk.free)));
    let (inbox_tx, inbox_rx) = mpsc::channel(INBOX);
    let mut actor = Actor::new(ground, topology, root_dir, Arc::clone(&disk_free), desk);
    actor.adopt().await?;
    tokio::spawn(actor.run(inbox_rx, reports_rx));
    Ok(NodeHandle { inbox_tx, engine, disk_free })
}
