//! The Docker engine: connection, what it can do, and the few calls that sandboxes need.

pub mod labels;
pub mod probe;
pub mod spec;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerSummary, ContainerUpdateBody, EventMessage};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::{Stream, StreamExt as _};
use rollwright_core::fault::Fault;
use tokio::sync::OnceCell;

use crate::fault;
use labels::Owner;
use spec::Capabilities;

/// Seconds that one Docker call may take before the engine counts as hung.
const CALL_TIMEOUT_S: u64 = 120;

/// A connection to this node's Docker engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    docker: Docker,
    capabilities: std::sync::Arc<OnceCell<Capabilities>>,
}

/// A container of ours, as Docker lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Container name, which is the sandbox's name.
    pub name: String,
    /// Its labels.
    pub labels: HashMap<String, String>,
    /// Whether its main process runs.
    pub running: bool,
}

/// What of a running container matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its main process, as this machine numbers it.
    pub pid: u32,
    /// Docker's name of its network.
    pub network: Option<String>,
    /// Its environment: the image's and the template's.
    pub env: BTreeMap<String, String>,
}

impl Engine {
    /// Connects over the engine's unix socket and agrees on an API version.
    pub async fn connect(socket: &Path) -> Result<Self, Fault> {
        let path = socket.display().to_string();
        let unreachable = |error: Error| {
            fault::infrastructure(
                "DockerUnreachable",
                format!("no Docker engine answers at {path}: {error}; start it or name its socket"),
            )
        };
        let docker = Docker::connect_with_unix(&path, CALL_TIMEOUT_S, API_DEFAULT_VERSION)
            .map_err(unreachable)?
            .negotiate_version()
            .await
            .map_err(unreachable)?;
        Ok(Self { docker, capabilities: std::sync::Arc::default() })
    }

    /// The client, for calls that only one module makes.
    pub(crate) fn raw(&self) -> &Docker {
        &self.docker
    }

    /// Whether the engine answers.
    pub async fn ping(&self) -> bool {
        self.docker.ping().await.is_ok()
    }

    /// What this engine can do; looked up at the first call.
    pub async fn capabilities(&self) -> Result<&Capabilities, Fault> {
        self.capabilities
            .get_or_try_init(|| async {
                let info = self.docker.info().await;
                info.map(|info| probe::capabilities(&info))
                    .map_err(|error| fault::docker("asking Docker what it can do", &error))
            })
            .await
    }

    /// Docker's root directory, whose file system holds sandboxes and images.
    pub async fn root_dir(&self) -> Result<PathBuf, Fault> {
        let info = self.docker.info().await;
        let info = info.map_err(|error| fault::docker("asking Docker for its root", &error))?;
        Ok(info.docker_root_dir.unwrap_or_else(|| "/var/lib/docker".into()).into())
    }

    /// How a cgroup, relative to the root of the hierarchy, is named as the parent of containers.
    pub async fn cgroup_parent(&self, cgroup: &Path) -> Result<String, Fault> {
        let info = self.docker.info().await;
        let info = info.map_err(|error| fault::docker("asking Docker for its driver", &error))?;
        probe::cgroup_parent(&info, cgroup)
    }

    /// Creates a container.
    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<(), Fault> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.docker.create_container(Some(options), body).await;
        created.map(drop).map_err(|error| start_fault("creating the sandbox", &error))
    }

    /// Starts a container.
    pub async fn start(&self, name: &str) -> Result<(), Fault> {
        let started = self.docker.start_container(name, None::<StartContainerOptions>).await;
        started.map_err(|error| start_fault("starting the sandbox", &error))
    }

    /// A container that runs; `None` when it does not.
    pub async fn running(&self, name: &str) -> Result<Option<Running>, Fault> {
        match self.docker.inspect_container(name, None::<InspectContainerOptions>).await {
            Ok(found) => {
                let pid = found.state.and_then(|state| state.pid).unwrap_or_default();
                let env = found.config.and_then(|config| config.env).unwrap_or_default();
                let env = env.iter().filter_map(|entry| entry.split_once('='));
                let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
                let network = found.host_config.and_then(|host| host.network_mode);
                Ok(pid.map(|pid| Running { pid, network, env }))
            }
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(fault::docker("inspecting a sandbox", &error)),
        }
    }

    /// Removes a container with whatever runs in it. Succeeds when it is gone, and
    /// fails while another removal of it is still on its way.
    pub async fn remove(&self, name: &str) -> Result<(), Fault> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.docker.remove_container(name, Some(options)).await {
            Ok(()) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
            Err(error) => Err(fault::docker("removing a sandbox", &error)),
        }
    }

    /// All sandboxes of one agent, running or not.
    pub async fn sandboxes(&self, owner: &Owner) -> Result<Vec<Found>, Fault> {
        let filters = labels::filter(owner, labels::SANDBOX);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let list = self.docker.list_containers(Some(options)).await;
        let list = list.map_err(|error| fault::docker("listing sandboxes", &error))?;
        Ok(list.into_iter().filter_map(found).collect())
    }

    /// Bytes of the writable layer of each of one agent's sandboxes, by name. Slow.
    pub async fn layer_bytes(&self, owner: &Owner) -> Result<Vec<(String, u64)>, Fault> {
        let filters = labels::filter(owner, labels::SANDBOX);
        let options = ListContainersOptionsBuilder::default().size(true).filters(&filters).build();
        let list = self.docker.list_containers(Some(options)).await;
        let list =
            list.map_err(|error| fault::docker("asking for the sandboxes' sizes", &error))?;
        let sizes = list.into_iter().filter_map(|summary| {
            let bytes = summary.size_rw.and_then(|bytes| bytes.try_into().ok())?;
            Some((found(summary)?.name, bytes))
        });
        Ok(sizes.collect())
    }

    /// Pins a whole container, as the plain mode does for each action.
    pub async fn update_cpus(&self, name: &str, cores: &str, shares: i64) -> Result<(), Fault> {
        let body = ContainerUpdateBody {
            cpuset_cpus: Some(cores.to_owned()),
            cpu_shares: Some(shares),
            ..Default::default()
        };
        let done = self.docker.update_container(name, body).await;
        done.map_err(|error| fault::docker("updating a sandbox's cores", &error))
    }

    /// The last lines that a container printed, for the message of a failed start.
    pub async fn last_words(&self, name: &str) -> String {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("5").build();
        let mut logs = self.docker.logs(name, Some(options));
        let mut text = String::new();
        while let Some(Ok(line)) = logs.next().await {
            text.push_str(&line.to_string());
            if text.len() > 1024 {
                break;
            }
        }
        text.trim().to_owned()
    }

    /// Deaths of one agent's sandboxes from `since` (seconds of the epoch) on, as
    /// they happen, until the engine goes away.
    pub fn deaths(
        &self,
        owner: &Owner,
        since: u64,
    ) -> impl Stream<Item = Result<EventMessage, Error>> + use<> {
        let mut filters = labels::filter(owner, labels::SANDBOX);
        filters.insert("type".into(), vec!["container".into()]);
        filters.insert("event".into(), vec!["die".into(), "destroy".into()]);
        let options =
            EventsOptionsBuilder::default().since(&since.to_string()).filters(&filters).build();
        self.docker.events(Some(options))
    }
}

fn found(summary: ContainerSummary) -> Option<Found> {
    let name = summary.names?.into_iter().next()?.trim_start_matches('/').to_owned();
    let running = summary.state.is_some_and(|state| state.to_string() == "running");
    Some(Found { name, labels: summary.labels.unwrap_or_default(), running })
}

/// A refused create or start: the request's fault where Docker says so (400).
fn start_fault(doing: &str, error: &Error) -> Fault {
    match error {
        Error::DockerResponseServerError { status_code: 400, message } => {
            fault::user("SandboxRefused", format!("Docker refused {doing}: {message}"))
        }
        Error::DockerResponseServerError { status_code: 404, message }
            if message.contains("No such image") =>
        {
            fault::infrastructure("ImageVanished", format!("while {doing}: {message}"))
        }
        other => fault::docker(doing, other),
    }
}
