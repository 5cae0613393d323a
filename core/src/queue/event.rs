//! What the queue is told.

use std::sync::Arc;
use std::time::Duration;

use crate::cpu::CoreSet;
use crate::fault::Fault;
use crate::ids::{ActionId, JobId, NodeId, PermitId, QuotaName, TrajectoryId};
use crate::profile::Prior;
use crate::resources::{Cost, Units};
use crate::time::Time;

/// An input of [`super::Queue::on_event`].
#[derive(Debug, Clone)]
pub enum Event {
    /// A caller opens a trajectory.
    Open(OpenTrajectory),
    /// A caller ends a trajectory.
    Close(TrajectoryId),
    /// A caller submits an action.
    Submit(SubmitAction),
    /// A caller cancels an action.
    Cancel(ActionId),
    /// A caller wants a permit of a quota.
    Acquire(AcquirePermit),
    /// A caller returns a permit, or gives up waiting for it.
    Release {
        /// Which permit.
        permit: PermitId,
        /// The API asked everybody to stay away for so long (429); 0 where it did not say for
        /// how long.
        retry_after: Option<Duration>,
    },
    /// A node's agent is connected and says what it has.
    NodeUp(NodeUp),
    /// The link of this epoch to a node's agent is gone. What runs there goes on.
    NodeDown {
        /// Which node.
        node: NodeId,
        /// The link's epoch: a later link makes this event void.
        epoch: u64,
    },
    /// A node's agent reports; void unless `epoch` is the node's current link.
    Report {
        /// Which node.
        node: NodeId,
        /// The link's epoch.
        epoch: u64,
        /// What happened.
        report: NodeReport,
    },
    /// Time has passed: see [`super::Queue::next_wakeup`].
    Tick,
}

/// Opens a trajectory: reserves memory on a node and makes a sandbox there.
#[derive(Debug, Clone)]
pub struct OpenTrajectory {
    /// The trajectory.
    pub trajectory: TrajectoryId,
    /// Who pays.
    pub job: JobId,
    /// Memory that it holds until it ends, in bytes.
    pub memory: u64,
    /// The least cores that a node must have for its actions.
    pub min_cores: u16,
    /// Waiting longer than this for a node and a ready sandbox fails.
    pub deadline: Option<Time>,
    /// After a restart of the queue: what was decided before it.
    pub placed: Option<Placed>,
}

/// Where a trajectory was before the queue was restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its node.
    pub node: NodeId,
    /// Its sandbox had been ready: if it is gone, so is what was in it. One that was
    /// not is made again.
    pub ready: bool,
}

/// Submits an action.
#[derive(Debug, Clone)]
pub struct SubmitAction {
    /// Idempotency key; a live one is left as it is.
    pub action: ActionId,
    /// A trajectory that was opened before.
    pub trajectory: TrajectoryId,
    /// What it takes while it runs.
    pub cost: Cost,
    /// It fails when it has not started by then.
    pub start_by: Option<Time>,
    /// When it was first accepted; `None` is now. Given after a restart.
    pub submitted: Option<Time>,
    /// What is known of it beforehand.
    pub foresight: Foresight,
}

/// What is known of an action before it runs.
#[derive(Debug, Clone, Default)]
pub struct Foresight {
    /// Name of its action profile: those of one job and profile are taken to be alike.
    pub profile: Arc<str>,
    /// What the profile's manifest says: where learning begins.
    pub prior: Prior,
    /// What its caller says of this very action: not learned over.
    pub said: Prior,
    /// Seconds that its trajectory is predicted to go on after it; only the trajectory-aware
    /// policy looks at it.
    pub remaining: Option<f64>,
    /// Its cores may change while it runs.
    pub malleable: bool,
}

/// Wants a permit of a quota.
#[derive(Debug, Clone)]
pub struct AcquirePermit {
    /// Idempotency key; a live one is left as it is.
    pub permit: PermitId,
    /// Name of the quota.
    pub quota: QuotaName,
    /// How much of it; at least 1.
    pub amount: u32,
    /// Waiting longer than this fails.
    pub deadline: Option<Time>,
    /// It returns by itself after this time.
    pub ttl: Duration,
}

/// A node's agent says what it has and what of ours is alive there.
#[derive(Debug, Clone)]
pub struct NodeUp {
    /// Which node.
    pub node: NodeId,
    /// The link's epoch, growing with every link of this node.
    pub epoch: u64,
    /// Cores that actions may have, one set for each NUMA node.
    pub numa: Vec<CoreSet>,
    /// Memory that sandboxes may reserve, in bytes.
    pub memory: u64,
    /// Sandboxes that are open.
    pub sandboxes: Vec<TrajectoryId>,
    /// Actions that run, or whose end is still to be reported.
    pub actions: Vec<LiveAction>,
}

/// An action that an agent knows.
#[derive(Debug, Clone)]
pub struct LiveAction {
    /// Which action.
    pub action: ActionId,
    /// Which try.
    pub attempt: u32,
    /// Whose.
    pub trajectory: TrajectoryId,
    /// Units that it was granted.
    pub units: Units,
    /// Cores that it is pinned to.
    pub cores: CoreSet,
    /// It has ended: the report of its end follows.
    pub ended: bool,
}

/// What a node's agent reports.
#[derive(Debug, Clone)]
pub enum NodeReport {
    /// The sandbox is ready.
    SandboxReady(TrajectoryId),
    /// The sandbox could not be made, or it is gone.
    SandboxFailed(TrajectoryId, Fault),
    /// The sandbox is removed.
    SandboxClosed(TrajectoryId),
    /// The program runs.
    ActionStarted {
        /// Which action.
        action: ActionId,
        /// Which try.
        attempt: u32,
    },
    /// The action has ended; its cores are free again.
    ActionEnded {
        /// Which action.
        action: ActionId,
        /// Which try.
        attempt: u32,
        /// How.
        end: End,
        /// The program was surely never started.
        not_started: bool,
        /// What the program took, where it came to an end of its own: none of one that
        /// was killed.
        usage: Option<Usage>,
    },
}

/// What a program took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Seconds of CPU of its whole process tree, where they were counted.
    pub cpu_seconds: Option<f64>,
}

/// How an action ended on its node. The caller keeps the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The program ended by itself.
    Finished,
    /// It did not.
    Failed(Fault),
}
