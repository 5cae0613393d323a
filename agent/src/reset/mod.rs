//! Reset: from a template to a sandbox that is ready. Three parts, image, start
//! and set-up, each with its own time-out, metric and fault. Whatever fails,
//! nothing stays.

mod removal;
mod setup;
pub mod warm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollwright_core::fault::Fault;
use rollwright_proto::v1::{ExecMode, LiveAction, OpenSandbox, ResetTimes, SandboxSpec};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::{CoreList, Hierarchy, SandboxCgroup, container_cgroup};
use crate::config::AgentConfig;
use crate::docker::labels::Owner;
use crate::docker::spec::{self, Placement};
use crate::docker::{Engine, Running};
use crate::fault;
use crate::images::Images;
use crate::metrics::Metrics;
use crate::network::rules::RuleSet;
use crate::network::{NONE, Networks};
use crate::policy;
use crate::runner::docker::{Context, DockerRunner};
use crate::runner::helper::HelperRunner;
use crate::runner::{ORDERS, Report, Reports};
use crate::sandbox::{Places, Sandbox, new_name};
use crate::session::{Connected, Session, SessionError};
pub use removal::{Leaving, Names};

/// Time limits where the template does not say.
const IMAGE_TIMEOUT: Duration = Duration::from_mins(10);
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// First and longest pause between two tries to reach a new helper.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What sandboxes are made with.
#[derive(Debug)]
pub struct Ground {
    /// The agent, as its containers and networks are labelled.
    pub owner: Owner,
    /// Every sandbox of this process from its making to its removal.
    pub names: Names,
    /// The agent ends.
    pub ending: CancellationToken,
    /// The agent's settings.
    pub config: AgentConfig,
    /// Docker.
    pub engine: Engine,
    /// Images.
    pub images: Images,
    /// Networks.
    pub networks: Arc<Networks>,
    /// Directories.
    pub places: Places,
    /// The node's cgroups.
    pub hierarchy: Hierarchy,
    /// All cores that sandboxes may use, for set-up.
    pub cores: CoreList,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Starts at the same time.
    pub slots: Semaphore,
    /// Removals at the same time.
    pub removals: Semaphore,
    /// Removals that are under way.
    pub tracker: TaskTracker,
    /// runners --reports--> node
    pub reports_tx: mpsc::Sender<(Arc<str>, Report)>,
}

/// A sandbox made, and how long each part took.
#[derive(Debug)]
pub struct Made {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// How long it took.
    pub times: ResetTimes,
}

/// What exists of a sandbox that is being made.
#[derive(Debug)]
struct Attempt {
    name: String,
    network: Option<String>,
    /// Network and rules. Never dropped half-way: what it made would stay.
    acquiring: Option<tokio::task::JoinHandle<Result<String, Fault>>>,
    /// Docker's part. Never dropped half-way: Docker would finish it unseen.
    starting: Option<tokio::task::JoinHandle<Result<(), Fault>>>,
}

impl Ground {
    /// Makes a sandbox; `trajectory` is absent for a warm one.
    pub async fn make(
        self: &Arc<Self>,
        trajectory: Option<&str>,
        spec: &SandboxSpec,
        cancel: &CancellationToken,
    ) -> Result<Made, Fault> {
        let mut times = ResetTimes::default();
        let mut attempt =
            Attempt { name: new_name(), network: None, acquiring: None, starting: None };
        self.names.insert(&attempt.name);
        let made = tokio::select! {
            made = self.try_make(trajectory, spec, &mut attempt, &mut times) => made,
            () = cancel.cancelled() => Err(fault::cancelled("the sandbox was closed")),
        };
        match made {
            Ok(sandbox) => Ok(Made { sandbox, times }),
            Err(fault) => {
                self.metrics.reset_failed(&fault);
                if cancel.is_cancelled() {
                    // Whoever closed it is told when nothing of it is left.
                    self.undo(attempt).await;
                } else {
                    let ground = Arc::clone(self);
                    self.tracker.spawn(async move { ground.undo(attempt).await });
                }
                Err(fault)
            }
        }
    }

    async fn try_make(
        self: &Arc<Self>,
        trajectory: Option<&str>,
        spec: &SandboxSpec,
        attempt: &mut Attempt,
        times: &mut ResetTimes,
    ) -> Result<Sandbox, Fault> {
        let limit = limit(spec.image_timeout, IMAGE_TIMEOUT);
        let begun = Instant::now();
        let pull = spec.pull && self.config.policy.pull;
        self.images.ensure(&spec.image, pull, limit).await?;
        times.image_s = self.observe("image", spec, begun);

        // Only the start is bounded in number: pulls are shared, and set-up is the
        // template's own time.
        let begun = Instant::now();
        let slot = self.slots.acquire().await;
        // The semaphore is never closed.
        let slot = slot.map_err(|_| fault::infrastructure("AgentStopping", "the agent ends"))?;
        times.queue_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let limit = self::limit(spec.start_timeout, START_TIMEOUT);
        let started = tokio::time::timeout(limit, self.start(trajectory, spec, attempt)).await;
        let (running, connected) = started.unwrap_or_else(|_| {
            Err(fault::timeout(
                "StartTimeout",
                format!("the sandbox was not up after {limit:?}: raise startTimeout"),
            ))
        })?;
        let cgroup = self.cgroup(spec, &running)?;
        times.start_s = self.observe("start", spec, begun);
        drop(slot);

        let Connected { session, mut events, .. } = connected;
        let env = running.env.clone();
        if !spec.setup.is_empty() {
            let begun = Instant::now();
            let ground =
                setup::Ground { session: &session, cgroup: cgroup.as_ref(), cores: &self.cores };
            setup::run(&ground, &mut events, spec, &env).await?;
            times.setup_s = self.observe("setup", spec, begun);
        }
        let connected = Connected { session, known: Vec::new(), events };
        let name = attempt.name.clone();
        let network = attempt.network.clone();
        let sandbox = self.run(name, spec.clone(), network, &running, cgroup, connected);
        Ok(sandbox.0)
    }

    fn observe(&self, part: &str, spec: &SandboxSpec, begun: Instant) -> f64 {
        let seconds = begun.elapsed().as_secs_f64();
        self.metrics.reset(part, &spec.template, seconds);
        seconds
    }

    async fn start(
        self: &Arc<Self>,
        trajectory: Option<&str>,
        spec: &SandboxSpec,
        attempt: &mut Attempt,
    ) -> Result<(Running, Connected), Fault> {
        self.network(spec, attempt).await?;
        let run_dir = self.places.make_run_dir(&attempt.name)?;
        let place = Placement {
            owner: &self.owner,
            trajectory,
            init: &self.config.init,
            run_dir: &run_dir,
            network: attempt.network.as_deref().unwrap_or(NONE),
            dns: &self.config.policy.dns_servers,
            cgroup_parent: self.config.cgroup_parent.as_deref(),
        };
        let body = spec::container(spec, place, self.engine.capabilities().await?)?;
        let (engine, name) = (self.engine.clone(), attempt.name.clone());
        let starting = attempt.starting.insert(tokio::spawn(async move {
            engine.create(&name, body).await?;
            engine.start(&name).await
        }));
        let started = starting.await;
        attempt.starting = None;
        started.map_err(|error| fault::infrastructure("StartFailed", error.to_string()))??;
        let running = self.engine.running(&attempt.name).await?;
        if let Some(running) = running
            && let Some(connected) = self.connect(&attempt.name).await
        {
            return Ok((running, connected?));
        }
        let words = self.engine.last_words(&attempt.name).await;
        Err(fault::infrastructure("StartFailed", format!("the sandbox ended at once: {words}")))
    }

    /// Reaches a new helper; `None` when its container has ended.
    async fn connect(&self, name: &str) -> Option<Result<Connected, Fault>> {
        let socket = self.places.socket(name);
        let mut pause = FIRST_PAUSE;
        loop {
            match Session::connect(&socket).await {
                Ok(connected) => return Some(Ok(connected)),
                Err(SessionError::Connect { .. }) => {}
                Err(error) => {
                    return Some(Err(fault::infrastructure("HelperFailed", error.to_string())));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if pause == LONGEST_PAUSE && matches!(self.engine.running(name).await, Ok(None)) {
                return None;
            }
        }
    }

    async fn network(&self, spec: &SandboxSpec, attempt: &mut Attempt) -> Result<(), Fault> {
        let Some(network) = spec.network.as_ref().filter(|network| network.enabled) else {
            return Ok(());
        };
        let rules = RuleSet::new(
            &self.config.policy.closed_cidrs,
            &network.allow,
            &self.config.policy.dns_servers,
        );
        let rules = rules.map_err(|error| fault::user("InvalidSandbox", error.to_string()))?;
        let networks = Arc::clone(&self.networks);
        let acquiring = tokio::spawn(async move { networks.acquire(&rules).await });
        let acquired = attempt.acquiring.insert(acquiring).await;
        attempt.acquiring = None;
        let died = |error: tokio::task::JoinError| {
            fault::infrastructure("NetworkRulesFailed", error.to_string())
        };
        attempt.network = Some(acquired.map_err(died)??);
        Ok(())
    }

    fn cgroup(
        &self,
        spec: &SandboxSpec,
        running: &Running,
    ) -> Result<Option<SandboxCgroup>, Fault> {
        if spec.exec_mode() == ExecMode::Docker {
            return Ok(None);
        }
        let proc = self.config.system_root.join("proc");
        let cgroup = container_cgroup(&self.hierarchy, &proc, running.pid)
            .and_then(|path| SandboxCgroup::adopt(&self.hierarchy, &path));
        cgroup.map(Some).map_err(|error| fault::infrastructure("CgroupFailed", error.to_string()))
    }

    /// Puts a runner on a sandbox that is up.
    fn run(
        &self,
        name: String,
        spec: SandboxSpec,
        network: Option<String>,
        running: &Running,
        cgroup: Option<SandboxCgroup>,
        connected: Connected,
    ) -> (Sandbox, Vec<LiveAction>) {
        let name: Arc<str> = name.into();
        let Connected { session, known, events } = connected;
        let files = cgroup.clone();
        let reports = Reports { sandbox: Arc::clone(&name), node_tx: self.reports_tx.clone() };
        let (orders_tx, orders_rx) = mpsc::channel(ORDERS);
        let uid = policy::uid(&spec);
        let mut live = Vec::new();
        if let Some(cgroup) = cgroup {
            let mut runner = HelperRunner::new(
                session.clone(),
                events,
                cgroup,
                self.cores.clone(),
                uid,
                reports,
            );
            live = runner.adopt(&known);
            tokio::spawn(runner.run(orders_rx));
        } else {
            let container = Arc::clone(&name);
            let engine = self.engine.clone();
            let procs = self.procs(running);
            let context = Context { engine, container, procs, uid, reports };
            tokio::spawn(DockerRunner::new(context, events).run(orders_rx));
        }
        let env = running.env.clone();
        let main = removal::main_process(running.pid);
        (Sandbox { name, spec, env, network, main, session, cgroup: files, orders_tx }, live)
    }

    /// `cgroup.procs` of a container that the plain mode runs.
    fn procs(&self, running: &Running) -> std::path::PathBuf {
        let proc = self.config.system_root.join("proc");
        let path = container_cgroup(&self.hierarchy, &proc, running.pid).unwrap_or_default();
        let mount = match &self.hierarchy {
            Hierarchy::V2 { root } => root.clone(),
            Hierarchy::V1 { root, .. } => root.join("cpu"),
        };
        mount.join(path.strip_prefix("/").unwrap_or(&path)).join("cgroup.procs")
    }

    /// Takes over a sandbox of an earlier process of this agent.
    pub async fn adopt(
        &self,
        name: &str,
        open: &OpenSandbox,
    ) -> Result<(Sandbox, Vec<LiveAction>), Fault> {
        let spec = open.spec.clone().unwrap_or_default();
        if spec.exec_mode() == ExecMode::Docker {
            // What runs there could be started a second time.
            let message = "what `docker exec` started is not found again after a restart of the \
                           agent: open a new sandbox";
            return Err(fault::infrastructure("SandboxLost", message));
        }
        let gone = || fault::infrastructure("SandboxLost", "the sandbox ended while no agent ran");
        let running = self.engine.running(name).await?.ok_or_else(gone)?;
        let (cgroup, connected) = self.adopt_session(name, &spec, &running).await?;
        // Made under the policy of its time: its name says which network it is.
        let network = running.network.clone().filter(|network| network != NONE);
        if let Some(network) = &network {
            self.networks.adopt(network).await;
        }
        self.names.insert(name);
        Ok(self.run(name.to_owned(), spec, network, &running, cgroup, connected))
    }

    async fn adopt_session(
        &self,
        name: &str,
        spec: &SandboxSpec,
        running: &Running,
    ) -> Result<(Option<SandboxCgroup>, Connected), Fault> {
        let connected = Session::connect(&self.places.socket(name)).await;
        let connected = connected.map_err(|error: SessionError| {
            fault::infrastructure("SandboxLost", format!("its helper does not answer: {error}"))
        })?;
        Ok((self.cgroup(spec, running)?, connected))
    }
}

fn limit(given: Option<prost_types::Duration>, default: Duration) -> Duration {
    let given: Option<Duration> = given.and_then(|given| given.try_into().ok());
    given.filter(|limit| !limit.is_zero()).unwrap_or(default)
}
