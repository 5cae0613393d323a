//! Engines as Docker containers: without privileges, on a network that nothing else is on.

mod network;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits,
};
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptionsBuilder, TopOptions,
};
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use tokio::sync::mpsc;

use super::fence::Fence;
use super::line::{CommandLine, Place, command_line};
use super::record::{Record, Records, Runs};
use super::roster::Roster;
use super::{Launcher, Program};
use crate::docker::Engine;
use crate::docker::labels::{self, Owner};
use crate::gpu::spec::{EngineSpec, EvictBy, Incident};
use crate::images::Images;
use crate::policy::EnginePolicy;

/// Value of [`labels::MANAGED`] on engines' containers.
const SORT: &str = "engine";
/// Number of the engine in the pool.
const ENGINE: &str = "rollwright.dev/engine";
/// Where engines listen in their containers.
const PORT: u16 = 8000;
/// How long an image may take to be pulled; the order's limit is shorter as a rule.
const PULL: Duration = Duration::from_hours(1);
/// Bytes of shared memory: engines of several GPUs talk through it.
const SHARED: i64 = 8 << 30;
/// Processes and threads of one engine: frameworks start hundreds for each GPU.
const MAX_THREADS: i64 = 16_384;

/// Starts containers.
#[derive(Debug)]
pub struct Containers {
    docker: Engine,
    images: Images,
    owner: Owner,
    records: Records,
    policy: EnginePolicy,
    /// Real GPUs are given to containers.
    gpus: bool,
    /// Where cgroups can be made.
    fence: Option<Arc<Fence>>,
    incidents: mpsc::Sender<Incident>,
    /// Names of containers.
    roster: Roster<String>,
    /// Held while the network is made.
    making: tokio::sync::Mutex<()>,
}

impl Containers {
    /// With the records of what an earlier agent started. [`Self::care`] must run beside it.
    #[expect(clippy::too_many_arguments, reason = "each is another thing that it needs")]
    pub fn new(
        docker: Engine,
        images: Images,
        owner: Owner,
        records: Records,
        policy: EnginePolicy,
        gpus: bool,
        fence: Option<Arc<Fence>>,
        incidents: mpsc::Sender<Incident>,
    ) -> Self {
        let (roster, making) = (Roster::default(), tokio::sync::Mutex::default());
        Self { docker, images, owner, records, policy, gpus, fence, incidents, roster, making }
    }

    /// Reports engines that die by themselves, without end.
    pub async fn care(&self) {
        self.roster.care(&self.incidents, |engine, name| self.death(engine, name)).await;
    }

    async fn death(&self, engine: EngineId, name: String) -> Option<Trouble> {
        match self.docker.running(&name).await {
            Ok(None) => Some(self.cause(engine).await),
            // Where Docker does not answer, nothing is known.
            Ok(Some(_)) | Err(_) => None,
        }
    }

    /// A name that no other agent of this machine uses.
    fn name(&self, engine: EngineId) -> String {
        let id: String = self.owner.id.chars().take(8).collect();
        format!("rollwright-engine-{id}-{}", engine.0)
    }

    fn body(&self, program: &Program, host_config: HostConfig) -> ContainerCreateBody {
        let Program { engine, spec, chunk, arena, .. } = program;
        let place = Place { host: "0.0.0.0", port: PORT, chunk: *chunk, arena };
        let CommandLine { command, args, env } = command_line(spec, place);
        let mut labels = labels::of(&self.owner, SORT);
        labels.insert(ENGINE.into(), engine.0.to_string());
        let entrypoint = command.first().map(|program| vec![program.clone()]);
        let cmd = command.into_iter().skip(1).chain(args).collect();
        ContainerCreateBody {
            image: spec.image.clone(),
            entrypoint,
            cmd: Some(cmd),
            env: Some(env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
            labels: Some(labels),
            host_config: Some(host_config),
            ..Default::default()
        }
    }

    fn host_config(
        &self,
        program: &Program,
        network: String,
        parent: Option<String>,
    ) -> HostConfig {
        let Program { engine, spec, chunk, .. } = program;
        let pinned = spec.evict == EvictBy::HostPinned;
        let arena = self.records.arena_dir(*engine).display().to_string();
        let arena = pinned.then(|| bind(&arena, false));
        // A path that may not be read, or that is not there, is one of the image.
        let model = self.policy.readable(&spec.model);
        let model = model.map(|path| Mount {
            source: Some(path.display().to_string()),
            ..bind(&spec.model, true)
        });
        let most = spec.most_memory().and_then(|bytes| i64::try_from(bytes).ok());
        let request = DeviceRequest {
            device_ids: Some(chunk.gpus().map(|gpu| gpu.to_string()).collect()),
            capabilities: Some(vec![vec!["gpu".into()]]),
            ..Default::default()
        };
        let unlimited =
            ResourcesUlimits { name: Some("memlock".into()), soft: Some(-1), hard: Some(-1) };
        let log = [("max-size".into(), "8m".into()), ("max-file".into(), "2".into())];
        HostConfig {
            device_requests: self.gpus.then(|| vec![request]),
            // Pinned memory of the host is locked memory.
            ulimits: self.gpus.then(|| vec![unlimited]),
            cgroup_parent: parent,
            // What was not declared is bounded by what all have together.
            memory: most,
            // No more by swapping.
            memory_swap: most,
            shm_size: Some(SHARED),
            pids_limit: Some(MAX_THREADS),
            cap_drop: Some(vec!["ALL".into()]),
            security_opt: Some(vec!["no-new-privileges:true".into()]),
            privileged: Some(false),
            ipc_mode: Some("private".into()),
            network_mode: Some(network),
            mounts: Some(model.into_iter().chain(arena).collect()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".into()),
                config: Some(HashMap::from(log)),
            }),
            ..Default::default()
        }
    }

    /// The cgroup of the engines, as Docker is told of it. Without one a container runs only
    /// where nothing is to be bounded.
    async fn raise(&self) -> Result<Option<String>, Trouble> {
        let Some(fence) = self.fence.clone() else { return Ok(None) };
        let (bytes, raised) = (fence.bytes(), Arc::clone(&fence));
        match super::blocking(move || raised.raise()).await? {
            Ok(()) => {
                let parent = self.docker.cgroup_parent(fence.name()).await;
                parent.map(Some).map_err(|fault| refused(&fault))
            }
            Err(_) if bytes == 0 => Ok(None),
            Err(error) => {
                let why = format!("the memory of this node's engines cannot be bounded: {error}");
                Err(Trouble::Refused(Order::Launch, why))
            }
        }
    }

    /// Creates and starts a container, to its end even when nobody waits for it any more:
    /// Docker would go on by itself, and an order to end it would find nothing yet.
    async fn run(&self, engine: EngineId, body: ContainerCreateBody) -> Result<(), Trouble> {
        let (turn, docker) = (self.roster.turn(engine).await, self.docker.clone());
        let name = self.name(engine);
        let started = tokio::spawn(async move {
            let _turn = turn;
            // One that a try left behind, which nobody waits for any more.
            docker.remove(&name).await?;
            docker.create(&name, body).await?;
            docker.start(&name).await
        });
        let started = started.await.map_err(|error| {
            Trouble::Refused(Order::Launch, format!("the agent failed to start it: {error}"))
        })?;
        started.map_err(|fault| refused(&fault))
    }

    /// Writes what is kept of an engine, in its turn also when nobody waits for it any more.
    async fn write(
        &self,
        engine: EngineId,
        work: impl FnOnce(&Records) -> Result<(), Trouble> + Send + 'static,
    ) -> Result<(), Trouble> {
        let (turn, records) = (self.roster.turn(engine).await, self.records.clone());
        super::blocking(move || {
            let _turn = turn;
            work(&records)
        })
        .await?
    }

    /// Where a container is on the engines' network.
    async fn address(&self, engine: EngineId, name: &str) -> Result<String, Trouble> {
        let found = self.docker.raw().inspect_container(name, None::<InspectContainerOptions>);
        let found = found.await;
        let found = found.map_err(|error| {
            refused(&crate::fault::docker("asking for an engine's address", &error))
        })?;
        let networks = found.network_settings.and_then(|settings| settings.networks);
        let network = networks.and_then(|networks| networks.into_values().next());
        let address = network.and_then(|network| network.ip_address);
        if let Some(address) = address.filter(|address| !address.is_empty()) {
            return Ok(format!("http://{address}:{PORT}"));
        }
        Err(self.cause(engine).await)
    }

    /// Removes containers of this agent that it has no record of.
    async fn sweep(&self, known: &[String]) {
        let filters = labels::filter(&self.owner, SORT);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let list = match self.docker.raw().list_containers(Some(options)).await {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(%error, "cannot look for engines without a record");
                return;
            }
        };
        let names = list.into_iter().filter_map(|summary| summary.names?.into_iter().next());
        for name in names.map(|name| name.trim_start_matches('/').to_owned()) {
            if !known.contains(&name)
                && let Err(fault) = self.docker.remove(&name).await
            {
                tracing::warn!(container = name, %fault, "cannot remove an engine without a record");
            }
        }
        if let Some(fence) = self.fence.clone() {
            // What stays is tidied with the next engine that ends.
            let _tidied = super::blocking(move || fence.tidy()).await;
        }
    }
}

/// A directory of the node at its own path.
fn bind(path: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(path.to_owned()),
        target: Some(path.to_owned()),
        read_only: Some(read_only),
        ..Default::default()
    }
}

fn refused(fault: &Fault) -> Trouble {
    Trouble::Refused(Order::Launch, fault.to_string())
}

#[async_trait]
impl Launcher for Containers {
    async fn start(
        &self,
        engine: EngineId,
        spec: Arc<EngineSpec>,
        chunk: Chunk,
    ) -> Result<Program, Trouble> {
        let refuse = |why| Trouble::Refused(Order::Launch, why);
        let Some(image) = &spec.image else { return Err(refuse("it names no image".into())) };
        self.policy.check_image(image).map_err(refuse)?;
        self.policy.check_container_env(spec.env.keys()).map_err(refuse)?;
        let ensured = self.images.ensure(image, self.policy.pull, PULL).await;
        ensured.map_err(|fault| refused(&fault))?;
        let network = self.ensure_network().await?;
        let parent = self.raise().await?;
        let name = self.name(engine);
        self.write(engine, move |records| records.make_arena(engine)).await?;
        let mut program = self.records.program(engine, spec, chunk, String::new());
        let host_config = self.host_config(&program, network, parent);
        self.run(engine, self.body(&program, host_config)).await?;
        program.url = self.address(engine, &name).await?;
        let record = Record::new(&program, Runs::Container(name.clone()));
        self.write(engine, move |records| records.write(&record)).await?;
        self.roster.add(engine, name);
        Ok(program)
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        let turn = self.roster.turn(engine).await;
        self.roster.ends(engine);
        let removed = self.docker.remove(&self.name(engine)).await;
        removed.map_err(|fault| Trouble::Refused(Order::Stop, fault.to_string()))?;
        let (records, fence) = (self.records.clone(), self.fence.clone());
        let forgotten = super::blocking(move || {
            if let Some(fence) = fence {
                fence.remove(engine);
            }
            records.remove(engine);
            turn
        });
        let _turn = forgotten.await?;
        self.roster.remove(engine);
        Ok(())
    }

    async fn pids(&self, engine: EngineId) -> Result<Vec<u32>, Trouble> {
        let name = self.name(engine);
        let unknown = |why: &dyn std::fmt::Display| {
            Trouble::Unknown(format!("Docker does not say which processes it has: {why}"))
        };
        let top = match self.docker.raw().top_processes(&name, None::<TopOptions>).await {
            Ok(top) => top,
            // One that has ended has none; Docker says that in another way in each version.
            Err(error) => {
                return match self.docker.running(&name).await {
                    Ok(None) => Ok(Vec::new()),
                    Ok(Some(_)) => Err(unknown(&error)),
                    Err(fault) => Err(unknown(&fault)),
                };
            }
        };
        let titles = top.titles.unwrap_or_default();
        let column = titles.iter().position(|title| title == "PID");
        let column = column.ok_or_else(|| unknown(&"its list has no column PID"))?;
        let rows = top.processes.unwrap_or_default();
        let pids = rows.iter().map(|row| row.get(column)?.parse().ok()).collect::<Option<_>>();
        pids.ok_or_else(|| unknown(&"its list has a row without a number"))
    }

    async fn cause(&self, engine: EngineId) -> Trouble {
        let name = self.name(engine);
        let words = self.docker.last_words(&name).await;
        let found = self.docker.raw().inspect_container(&name, None::<InspectContainerOptions>);
        let state = found.await.ok().and_then(|found| found.state);
        if state.and_then(|state| state.oom_killed).unwrap_or_default() {
            return super::outgrown(self.fence.as_ref().map_or(0, |fence| fence.bytes()), &words);
        }
        Trouble::Died(format!("its container ended: {words}"))
    }

    async fn found(&self) -> Vec<Program> {
        let (mut found, mut known) = (Vec::new(), Vec::new());
        let records = self.records.clone();
        let all = super::blocking(move || records.all()).await;
        let all = all.inspect_err(|error| {
            tracing::warn!(%error, "cannot look for engines of an earlier agent");
        });
        let Ok(all) = all else { return found };
        for record in all {
            let Runs::Container(name) = &record.runs else { continue };
            let Some(program) = self.records.recorded(&record) else { continue };
            // Where Docker does not answer it may live, and is kept.
            if matches!(self.docker.running(name).await, Ok(None)) {
                let engine = program.engine;
                let removed = move |records: &Records| {
                    records.remove(engine);
                    Ok(())
                };
                // One that stays is found dead again.
                let _stays = self.write(engine, removed).await;
                continue;
            }
            self.roster.add(program.engine, name.clone());
            known.push(name.clone());
            found.push(program);
        }
        self.sweep(&known).await;
        found
    }
}
