//! What a node's station is made of, by the agent's settings.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::backend::{Backend, Device};
use super::cuda::{Arena, CudaCheckpoint, Driver, DriverCheckpoints, DriverError};
use super::engines::{Engines, Movers};
use super::fake::{FakeConfig, FakeGpus, FakeMemory};
use super::launch::{Containers, Either, Fence, Launcher, Processes, Records};
use super::mover::Mover;
use super::pinned::{HostPinned, MemoryError};
use super::spec::Inventory;
use super::station::Station;
use crate::docker::Engine;
use crate::docker::labels::Owner;
use crate::images::Images;
use crate::images::gc::Ledger;
use crate::policy::EnginePolicy;

/// Incidents that wait for the node.
const INCIDENTS: usize = 256;

/// Which GPUs a node offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// Those that its driver shows; none where there is no driver.
    Driver {
        /// Bytes of each for engines whose weights the agent keeps; 0: no such engines.
        arena: u64,
        /// No more of them than this.
        most: u32,
    },
    /// A **fake** of some.
    Fake(FakeConfig),
    /// None, whatever it has.
    Unused,
}

impl Gpus {
    /// No more than the first `count` of them, and `host` bytes of the node's memory.
    #[must_use]
    pub fn at_most(self, count: u32, host: u64) -> Self {
        match self {
            _ if count == 0 => Self::Unused,
            Self::Fake(config) => {
                Self::Fake(FakeConfig { gpus: config.gpus.min(count), host, ..config })
            }
            Self::Driver { arena, most } => Self::Driver { arena, most: most.min(count) },
            Self::Unused => Self::Unused,
        }
    }
}

impl Default for Gpus {
    fn default() -> Self {
        Self::Driver { arena: 0, most: u32::MAX }
    }
}

/// What a station is made from.
#[derive(Debug, Clone)]
pub struct Ground {
    /// Which GPUs.
    pub gpus: Gpus,
    /// Bytes of the node's memory for engines.
    pub host: u64,
    /// Directory of records; it survives a restart of the agent.
    pub state_dir: PathBuf,
    /// What may be started.
    pub policy: EnginePolicy,
    /// Where containers are started; `None` is nowhere.
    pub docker: Option<Engine>,
    /// Docker configuration file with the credentials of registries.
    pub docker_config: Option<PathBuf>,
    /// Where the cgroup file systems are mounted.
    pub cgroup_root: PathBuf,
    /// Whose containers they are.
    pub owner: Owner,
}

/// A station cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The records of engines.
    #[error("cannot keep records of engines below {}: {source}", dir.display())]
    Records {
        /// Where.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The memory of GPUs, or of a fake of them.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A driver that is there and cannot be used.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Opens the station of a node; `None` for one without GPUs.
pub fn open(ground: Ground) -> Result<Option<Station>, OpenError> {
    match ground.gpus.clone() {
        Gpus::Fake(config) => open_fake(ground, config).map(Some),
        Gpus::Unused => Ok(None),
        Gpus::Driver { arena, most } => {
            let Some(driver) = Driver::find()? else {
                tracing::info!("no GPU: this node offers none");
                return Ok(None);
            };
            open_driver(ground, driver, arena, most).map(Some)
        }
    }
}

/// Ends what an earlier agent started on a node that offers no GPUs any more: nobody else
/// would. One that cannot be ended is said in the log, and tried again at the next start.
pub async fn end_engines(ground: Ground) -> Result<(), OpenError> {
    if !Records::are_kept(&ground.state_dir) {
        return Ok(());
    }
    // Nobody hears of what they do on the way.
    let (incidents, _) = mpsc::channel(INCIDENTS);
    let mut care = JoinSet::new();
    let launcher = launcher(ground, false, &incidents, &mut care)?;
    for program in launcher.found().await {
        let (engine, service) = (program.engine.0, &program.spec.service);
        match launcher.end(program.engine).await {
            Ok(()) => tracing::info!(engine, service, "ended an engine: no GPUs are offered"),
            Err(trouble) => tracing::warn!(engine, service, %trouble, "an engine lives on"),
        }
    }
    Ok(())
}

fn open_driver(
    ground: Ground,
    driver: Driver,
    arena: u64,
    most: u32,
) -> Result<Station, OpenError> {
    let (gpus, memory, host) = (driver.gpus().min(most), driver.memory()?, ground.host);
    tracing::info!(gpus, bytes = memory, "GPUs");
    let policy = ground.policy.clone();
    let (incidents_tx, incidents) = mpsc::channel(INCIDENTS);
    let mut care = JoinSet::new();
    let launcher = launcher(ground, true, &incidents_tx, &mut care)?;
    let pinned = (arena > 0)
        .then(|| Arena::new(&driver.uuids()?[..gpus as usize], arena).map_err(OpenError::from))
        .transpose()?
        .map(|arena| Arc::new(HostPinned::new(Arc::new(arena), gpus, policy)) as Arc<dyn Mover>);
    let checkpoint = DriverCheckpoints::find()
        .inspect_err(|why| tracing::info!(why, "no engine of this node can use CudaCheckpoint"));
    let checkpoint = checkpoint.ok().map(|checkpoints| {
        let remap = driver.remap().inspect_err(|why| {
            tracing::info!(%why, "engines of CudaCheckpoint return to the GPUs that they left");
        });
        let (checkpoints, launcher) = (Arc::new(checkpoints), Arc::clone(&launcher));
        Arc::new(CudaCheckpoint::new(checkpoints, launcher, remap.ok())) as Arc<dyn Mover>
    });
    let backend = Arc::new(Engines::new(launcher, Movers { pinned, checkpoint }));
    let device = Arc::new(driver);
    let watched = Arc::clone(&device);
    care.spawn(async move { watched.watch(&incidents_tx).await });
    let inventory = Inventory { gpus, memory, host, lost: Vec::new(), fake: false };
    Ok(Station { backend, device, inventory, incidents, care })
}

fn open_fake(ground: Ground, config: FakeConfig) -> Result<Station, OpenError> {
    tracing::warn!(gpus = config.gpus, bytes = config.memory, "the GPUs of this node are a FAKE");
    let policy = ground.policy.clone();
    let (incidents_tx, incidents) = mpsc::channel(INCIDENTS);
    let mut care = JoinSet::new();
    let launcher = launcher(ground, false, &incidents_tx, &mut care)?;
    let memory = FakeMemory::new(config.gpus, config.memory)?;
    let pinned = HostPinned::new(Arc::new(memory), config.gpus, policy);
    let movers = Movers { pinned: Some(Arc::new(pinned)), checkpoint: None };
    let engines = Arc::new(Engines::new(launcher, movers));
    let fake = Arc::new(FakeGpus::new(config, engines, incidents_tx));
    let inventory = fake.inventory();
    let watched = Arc::clone(&fake);
    care.spawn(async move { watched.watch().await });
    let (backend, device) = (Arc::clone(&fake) as Arc<dyn Backend>, fake as Arc<dyn Device>);
    Ok(Station { backend, device, inventory, incidents, care })
}

fn launcher(
    ground: Ground,
    gpus: bool,
    incidents: &mpsc::Sender<super::Incident>,
    care: &mut JoinSet<()>,
) -> Result<Arc<dyn Launcher>, OpenError> {
    let fence = fence(&ground);
    if let Some(fence) = fence.clone() {
        care.spawn(fence.keep());
    }
    let Ground { state_dir, policy, docker, docker_config, owner, .. } = ground;
    let records = Records::open(&state_dir);
    let records = records.map_err(|source| OpenError::Records { dir: state_dir, source })?;
    let (id, sent) = (owner.id.clone(), incidents.clone());
    let processes = Processes::new(records.clone(), policy.clone(), id, gpus, fence.clone(), sent);
    let processes = Arc::new(processes);
    let cared = Arc::clone(&processes);
    care.spawn(async move { cared.care().await });
    let containers = docker.map(|docker| {
        // Engines' images are not collected: they are large, and few.
        let images = Images::new(docker.clone(), Ledger::open(None), docker_config);
        let incidents = incidents.clone();
        let containers =
            Containers::new(docker, images, owner, records, policy, gpus, fence, incidents);
        let containers = Arc::new(containers);
        let cared = Arc::clone(&containers);
        care.spawn(async move { cared.care().await });
        containers
    });
    Ok(Arc::new(Either { processes, containers }))
}

/// The bound on what all engines have together; none where the node has no cgroups.
fn fence(ground: &Ground) -> Option<Arc<Fence>> {
    let id = &ground.owner.id;
    let agent: String = id.chars().take(8).filter(char::is_ascii_alphanumeric).collect();
    match Fence::new(&ground.cgroup_root, &agent, ground.host) {
        Ok(fence) => Some(Arc::new(fence)),
        Err(error) => {
            tracing::warn!(%error, "the memory of engines is not bounded");
            None
        }
    }
}
