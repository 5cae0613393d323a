//! The task that owns the node's state.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rollwright_core::fault::Fault;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{
    ActionEnded, ActionOutput, AgentMessage, GpuNode, Hello, LiveAction, LiveSandbox, NumaNode,
    QueueMessage, SandboxFailed, SandboxSpec,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Input;
use super::handover::Handover;
use super::inbox;
use crate::docker::Found;
use crate::gpu::Desk;
use crate::reset::warm::WarmPools;
use crate::reset::{Ground, Made};
use crate::runner::Report;
use crate::sandbox::Sandbox;
use crate::topology::Topology;

/// What tasks of the node say to it.
#[derive(Debug)]
pub(super) enum Event {
    /// A reset ended.
    Opened { trajectory: String, made: Result<Box<Made>, Fault> },
    /// A warm one was made, or not.
    Warmed { spec: Box<SandboxSpec>, made: Result<Box<Made>, Fault> },
    /// A closed sandbox is removed.
    Removed { trajectory: String },
    /// Docker says that this container died.
    Died { name: String },
    /// All containers that Docker has of this agent.
    Listed { found: Vec<Found> },
    /// Bytes of the writable layers of containers, by name.
    Sized { sizes: Vec<(String, u64)> },
    /// The sandbox that was ended for its writable layer is gone.
    DiskFreed,
    /// A transfer ended.
    TransferEnded { transfer: u64 },
}

/// A trajectory's sandbox.
#[derive(Debug)]
pub(super) enum Entry {
    /// In reset.
    Opening { cancel: CancellationToken },
    /// Up.
    Ready(Box<Ready>),
    /// On its way out.
    Closing,
}

/// A sandbox that is up.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) sandbox: Sandbox,
    pub(super) warm: bool,
    pub(super) times: rollwright_proto::v1::ResetTimes,
    /// Actions that have not ended.
    pub(super) running: usize,
    pub(super) last_active: Instant,
    /// Its place in the order of idle sandboxes.
    pub(super) idle_at: Option<Instant>,
}

/// An action until its end is acknowledged.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) live: LiveAction,
    pub(super) sandbox: Arc<str>,
    pub(super) ordered: Instant,
    pub(super) started: bool,
    /// All kept output, for a new stream; bounded by the action's output limit.
    pub(super) outputs: Vec<ActionOutput>,
    pub(super) end: Option<Box<ActionEnded>>,
}

/// The state.
pub(super) struct Actor {
    pub(super) ground: Arc<Ground>,
    pub(super) topology: Topology,
    pub(super) root_dir: PathBuf,
    pub(super) disk_free: Arc<AtomicU64>,
    incarnation: u64,
    pub(super) sandboxes: HashMap<String, Entry>,
    /// Trajectory of each sandbox that is up, by container name.
    pub(super) trajectories: HashMap<Arc<str>, String>,
    pub(super) actions: HashMap<String, Action>,
    pub(super) handover: Handover,
    pub(super) warm: WarmPools<Box<Made>>,
    /// The sizes of sandboxes are being looked up, or the largest is being removed.
    pub(super) sizing: bool,
    /// When warm pools go that the queue has not named in this stream.
    warm_due: Option<Instant>,
    /// Failures that no stream has taken yet.
    pub(super) untold: Vec<SandboxFailed>,
    pub(super) idle: BTreeSet<(Instant, String)>,
    pub(super) transfers: HashMap<u64, inbox::Sender>,
    link: Option<mpsc::Sender<AgentMessage>>,
    /// Who waits until nothing of the queue's is left here; dropped, it is answered.
    pub(super) leaving: Option<oneshot::Sender<()>>,
    /// Engines on GPUs; `None` where there is no GPU.
    pub(super) desk: Option<Desk>,
    /// tasks of the node --events--> the node
    pub(super) events_tx: mpsc::Sender<Event>,
    events_rx: mpsc::Receiver<Event>,
    pub(super) stopping: CancellationToken,
}

/// How long a new stream may take to name the warm sandboxes that it wants; the
/// queue does so right after its welcome.
const WARM_GRACE: Duration = Duration::from_mins(1);
/// Time between two looks at how much of the disk is free.
const DISK_EVERY: Duration = Duration::from_secs(5);
/// Events that wait for the node.
const EVENTS: usize = 1024;

impl Actor {
    pub(super) fn new(
        ground: Arc<Ground>,
        topology: Topology,
        root_dir: PathBuf,
        disk_free: Arc<AtomicU64>,
        desk: Option<Desk>,
    ) -> Self {
        let (events_tx, events_rx) = mpsc::channel(EVENTS);
        let stopping = ground.ending.clone();
        Self {
            ground,
            topology,
            root_dir,
            disk_free,
            incarnation: rand::random(),
            sandboxes: HashMap::new(),
            trajectories: HashMap::new(),
            actions: HashMap::new(),
            handover: Handover::default(),
            warm: WarmPools::default(),
            sizing: false,
            warm_due: None,
            untold: Vec::new(),
            idle: BTreeSet::new(),
            transfers: HashMap::new(),
            link: None,
            leaving: None,
            desk,
            events_tx,
            events_rx,
            stopping,
        }
    }

    /// Works until it is stopped or nobody has its handle any more.
    pub(super) async fn run(
        mut self,
        mut inbox_rx: mpsc::Receiver<Input>,
        mut reports_rx: mpsc::Receiver<(Arc<str>, Report)>,
    ) {
        let watching = tokio::spawn(super::upkeep::watch(
            self.ground.engine.clone(),
            self.ground.owner.clone(),
            self.events_tx.clone(),
        ));
        let mut disk = tokio::time::interval(DISK_EVERY);
        disk.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut unused = tokio::time::interval(self.ground.config.images.every);
        unused.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stopped = None;
        while stopped.is_none() {
            let wake = self.next_wake();
            let at = wake.unwrap_or_else(Instant::now).into();
            tokio::select! {
                input = inbox_rx.recv() => match input {
                    Some(Input::Queue(message)) => self.queue(*message).await,
                    Some(Input::LinkUp(outbox_tx)) => self.link_up(outbox_tx).await,
                    Some(Input::LinkDown) => self.link_down().await,
                    Some(Input::Leave { clear, done_tx }) => self.leave(clear, done_tx).await,
                    Some(Input::Stop { clear, done_tx }) => stopped = Some(Some((clear, done_tx))),
                    None => stopped = Some(None),
                },
                Some((sandbox, report)) = reports_rx.recv() => self.report(sandbox, report).await,
                Some(event) = self.events_rx.recv() => self.event(event).await,
                () = tokio::time::sleep_until(at), if wake.is_some() => self.wake().await,
                _ = disk.tick() => self.look_at_disk(),
                _ = unused.tick() => self.look_for_unused(),
            }
        }
        watching.abort();
        let (clear, done_tx) = stopped.flatten().unzip();
        self.shut_down(clear.unwrap_or(false)).await;
        if let Some(done_tx) = done_tx {
            // Whoever asked may have gone.
            let _ = done_tx.send(());
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let idle = self.idle.first().map(|(at, _)| *at);
        [idle, self.warm.next_retry(), self.warm_due].into_iter().flatten().min()
    }

    async fn wake(&mut self) {
        self.close_idle().await;
        if self.warm_due.is_some_and(|due| due <= Instant::now()) {
            self.warm_due = None;
            for made in self.warm.drop_unnamed() {
                self.remove_in_background(made.sandbox);
            }
        }
        self.refill();
    }

    async fn queue(&mut self, message: QueueMessage) {
        match message.message {
            Some(FromQueue::OpenSandbox(open)) => self.open(open).await,
            Some(FromQueue::CloseSandbox(close)) => self.close(&close.trajectory_id).await,
            Some(FromQueue::WarmSandboxes(warm)) => self.keep_warm(warm),
            Some(FromQueue::StartAction(start)) => self.start(start).await,
            Some(FromQueue::ResizeAction(resize)) => self.resize(resize).await,
            Some(FromQueue::KillAction(kill)) => self.kill(&kill.action_id).await,
            Some(FromQueue::AckAction(ack)) => self.ack(&ack.action_id).await,
            Some(FromQueue::FileOpen(open)) => self.open_file(open).await,
            Some(FromQueue::FileData(data)) => {
                // A transfer that has ended said so.
                if let Some(inbox_tx) = self.transfers.get(&data.transfer) {
                    inbox_tx.data(&data.data, data.last);
                }
            }
            Some(FromQueue::FileCredit(credit)) => {
                if let Some(inbox_tx) = self.transfers.get(&credit.transfer) {
                    inbox_tx.credit(credit.bytes);
                }
            }
            Some(FromQueue::FileDone(done)) => {
                self.transfers.remove(&done.transfer);
            }
            Some(
                message @ (FromQueue::RestoreEngine(_)
                | FromQueue::EvictEngine(_)
                | FromQueue::StopEngine(_)
                | FromQueue::StartCall(_)
                | FromQueue::CancelCall(_)
                | FromQueue::AckCall(_)),
            ) => {
                if let Some(desk) = &self.desk {
                    desk.handle(message).await;
                }
            }
            Some(FromQueue::Released(_)) => self.leaving = None,
            // The link has seen to it; anything else is a newer queue's.
            Some(FromQueue::Welcome(_)) | None => {}
        }
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::Opened { trajectory, made } => self.opened(trajectory, made).await,
            Event::Warmed { spec, made } => self.warmed(&spec, made),
            Event::Removed { trajectory } => self.removed(trajectory).await,
            Event::Died { name } => self.died(&name).await,
            Event::Sized { sizes } => self.sized(sizes).await,
            Event::DiskFreed => self.sizing = false,
            Event::Listed { found } => self.listed(&found),
            Event::TransferEnded { transfer } => {
                self.transfers.remove(&transfer);
            }
        }
    }

    /// Says something to the queue, if a stream stands. What must not be lost is
    /// kept elsewhere and said again to the next stream.
    pub(super) async fn emit(&mut self, message: FromAgent) {
        if let Some(link) = &self.link
            && link.send(AgentMessage { message: Some(message) }).await.is_err()
        {
            self.link = None;
        }
    }

    /// The way to the queue, for a task that serves it.
    pub(super) fn outbox(&self) -> Option<mpsc::Sender<AgentMessage>> {
        self.link.clone()
    }

    async fn link_up(&mut self, outbox_tx: mpsc::Sender<AgentMessage>) {
        self.link = Some(outbox_tx);
        self.warm.expect_names();
        self.warm_due = Some(Instant::now() + WARM_GRACE);
        let hello = Hello { gpu: self.gpus().await, ..self.hello() };
        self.emit(FromAgent::Hello(hello)).await;
        if let (Some(desk), Some(link)) = (&self.desk, &self.link) {
            desk.attach(link.clone()).await;
        }
        for failed in std::mem::take(&mut self.untold) {
            self.emit(FromAgent::SandboxFailed(failed)).await;
        }
        let mut again = Vec::new();
        for action in self.actions.values() {
            again.extend(action.outputs.iter().cloned().map(FromAgent::ActionOutput));
            again.extend(action.end.iter().map(|end| FromAgent::ActionEnded((**end).clone())));
        }
        for message in again {
            self.emit(message).await;
        }
    }

    async fn link_down(&mut self) {
        (self.link, self.leaving) = (None, None);
        if let Some(desk) = &self.desk {
            desk.detach().await;
        }
        self.warm_due = None;
        // Transfers belong to their stream.
        self.transfers.clear();
    }

    fn hello(&self) -> Hello {
        let config = &self.ground.config;
        let ready = self.sandboxes.iter().filter_map(|(trajectory, entry)| match entry {
            Entry::Ready(ready) => Some(LiveSandbox {
                trajectory_id: trajectory.clone(),
                template: ready.sandbox.spec.template.clone(),
                memory_bytes: ready.sandbox.spec.memory_bytes,
            }),
            Entry::Opening { .. } | Entry::Closing => None,
        });
        let actions = self.actions.values().map(|action| action.live.clone());
        let numa = self.topology.numa.iter().map(|cores| NumaNode { cores: cores.clone() });
        Hello {
            node: config.node.clone(),
            pool: config.pool.clone(),
            incarnation: self.incarnation,
            numa: numa.collect(),
            memory_bytes: self.topology.memory_bytes,
            sandboxes: ready.collect(),
            actions: actions.collect(),
            gpu: None,
        }
    }

    /// What the hello says of the GPUs.
    async fn gpus(&self) -> Option<GpuNode> {
        let gpus = self.desk.as_ref()?.hello().await?;
        let pool = self.ground.config.gpu_pool.clone().unwrap_or_default();
        let agent = self.ground.owner.id.clone();
        Some(GpuNode { pool, agent, ..gpus })
    }

    async fn shut_down(&mut self, clear: bool) {
        self.stopping.cancel();
        self.transfers.clear();
        let mut gone: Vec<Sandbox> =
            self.warm.drain().into_iter().map(|made| made.sandbox).collect();
        let remove = clear || self.ground.config.remove_on_exit;
        if let Some(desk) = &self.desk {
            desk.stop(remove).await;
        }
        for (_, entry) in self.sandboxes.drain() {
            match entry {
                Entry::Opening { cancel } => cancel.cancel(),
                Entry::Ready(ready) if remove => gone.push(ready.sandbox),
                Entry::Ready(_) | Entry::Closing => {}
            }
        }
        for sandbox in gone {
            self.remove_in_background(sandbox);
        }
        self.ground.tracker.close();
        let tracker = self.ground.tracker.clone();
        loop {
            // Tasks say what they did before they end: events are taken to the last.
            let event = tokio::select! {
                biased;
                Some(event) = self.events_rx.recv() => event,
                () = tracker.wait() => match self.events_rx.try_recv() {
                    Ok(event) => event,
                    Err(_) => break,
                },
            };
            if let Event::Opened { made: Ok(made), .. } | Event::Warmed { made: Ok(made), .. } =
                event
            {
                self.remove_in_background(made.sandbox);
            }
        }
        if remove && let Err(fault) = self.ground.networks.collect().await {
            tracing::warn!(%fault, "cannot remove networks");
        }
    }
}
