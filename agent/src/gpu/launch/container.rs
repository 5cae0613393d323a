//! Engines as Docker containers: without privileges, on a network that nothing else is on.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountType,
    NetworkCreateRequest, ResourcesUlimits,
};
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptionsBuilder, ListNetworksOptionsBuilder, TopOptions,
};
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Chunk, EngineId, Order, Trouble};
use tokio::sync::mpsc;

use super::line::{CommandLine, Place, command_line};
use super::record::{Record, Records, Runs};
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
/// Between two looks whether engines live.
const CARE: Duration = Duration::from_secs(1);
/// Bytes of shared memory: engines of several GPUs talk through it.
const SHARED: i64 = 8 << 30;
/// Processes and threads of one engine: frameworks start hundreds for each GPU.
const MAX_THREADS: i64 = 16_384;

/// Starts containers.
pub struct Containers {
    docker: Engine,
    images: Images,
    owner: Owner,
    records: Records,
    policy: EnginePolicy,
    /// Real GPUs are given to containers.
    gpus: bool,
    incidents: mpsc::Sender<Incident>,
    running: Arc<Mutex<BTreeMap<EngineId, String>>>,
    /// Held while the network is made.
    making: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Containers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Containers").field("running", &*self.running()).finish_non_exhaustive()
    }
}

impl Containers {
    /// With the records of what an earlier agent started. [`Self::care`] must run beside it.
    pub fn new(
        docker: Engine,
        images: Images,
        owner: Owner,
        records: Records,
        policy: EnginePolicy,
        gpus: bool,
        incidents: mpsc::Sender<Incident>,
    ) -> Self {
        let (running, making) = (Arc::default(), tokio::sync::Mutex::default());
        Self { docker, images, owner, records, policy, gpus, incidents, running, making }
    }

    /// Reports engines that die by themselves, without end.
    pub async fn care(&self) {
        loop {
            let running = self.running().clone();
            for (engine, name) in running {
                // Where Docker does not answer, nothing is known.
                let ended = matches!(self.docker.running(&name).await, Ok(None));
                if ended && self.running().remove(&engine).is_some() {
                    let words = self.docker.last_words(&name).await;
                    let died = Trouble::Died(format!("its container ended: {words}"));
                    if self.incidents.send(Incident::Broke(engine, died)).await.is_err() {
                        return;
                    }
                }
            }
            tokio::time::sleep(CARE).await;
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<EngineId, String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it started, or tried to start, an engine.
    pub(super) fn has(&self, engine: EngineId) -> bool {
        self.running().contains_key(&engine)
    }

    /// A name that no other agent of this machine uses.
    fn name(&self, engine: EngineId) -> String {
        let id: String = self.owner.id.chars().take(8).collect();
        format!("rollwright-engine-{id}-{}", engine.0)
    }

    fn network(&self) -> String {
        let id: String = self.owner.id.chars().take(8).collect();
        format!("rwgpu-{id}")
    }

    /// Id of the engines' network, which is there from the first engine on.
    async fn ensure_network(&self) -> Result<String, Trouble> {
        let name = self.network();
        // Docker lets two networks have one name.
        let _one = self.making.lock().await;
        let filters = HashMap::from([("name".to_owned(), vec![name.clone()])]);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let list = self.docker.raw().list_networks(Some(options)).await;
        let list = list.map_err(|error| {
            refused(&crate::fault::docker("looking for the engines' network", &error))
        })?;
        // The filter takes parts of names.
        let found = list.into_iter().find(|network| network.name.as_ref() == Some(&name));
        if let Some(id) = found.and_then(|network| network.id) {
            return Ok(id);
        }
        let options = HashMap::from([
            ("com.docker.network.bridge.name".into(), name.clone()),
            ("com.docker.network.bridge.enable_icc".into(), "false".into()),
        ]);
        let request = NetworkCreateRequest {
            name,
            driver: Some("bridge".into()),
            internal: Some(!self.policy.network),
            enable_ipv6: Some(false),
            options: Some(options),
            // Not a sandbox's network, which goes with the sandboxes.
            labels: Some(labels::of(&self.owner, SORT)),
            ..Default::default()
        };
        match self.docker.raw().create_network(request).await {
            Ok(made) => Ok(made.id),
            Err(error) => {
                Err(refused(&crate::fault::docker("making the engines' network", &error)))
            }
        }
    }

    fn body(&self, program: &Program, network: String) -> ContainerCreateBody {
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
            host_config: Some(self.host_config(program, network)),
            ..Default::default()
        }
    }

    fn host_config(&self, program: &Program, network: String) -> HostConfig {
        let Program { engine, spec, chunk, .. } = program;
        let pinned = spec.evict == EvictBy::HostPinned;
        let arena = self.records.arena_dir(*engine).display().to_string();
        let arena = pinned.then(|| bind(&arena, false));
        let ours = self.policy.may_read(&spec.model) && Path::new(&spec.model).exists();
        let model = ours.then(|| bind(&spec.model, true));
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

    /// Where a container is on the engines' network.
    async fn address(&self, name: &str) -> Result<String, Trouble> {
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
        let words = self.docker.last_words(name).await;
        Err(Trouble::Died(format!("its container ended at once: {words}")))
    }

    /// Removes containers of this agent that it has no record of.
    async fn sweep(&self, known: &[String]) {
        let filters = labels::filter(&self.owner, SORT);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let Ok(list) = self.docker.raw().list_containers(Some(options)).await else { return };
        let names = list.into_iter().filter_map(|summary| summary.names?.into_iter().next());
        for name in names.map(|name| name.trim_start_matches('/').to_owned()) {
            if !known.contains(&name)
                && let Err(fault) = self.docker.remove(&name).await
            {
                tracing::warn!(container = name, %fault, "cannot remove an engine without a record");
            }
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
        let ensured = self.images.ensure(image, self.policy.pull, PULL).await;
        ensured.map_err(|fault| refused(&fault))?;
        let network = self.ensure_network().await?;
        let name = self.name(engine);
        // One that a try left behind, which nobody waits for any more.
        self.docker.remove(&name).await.map_err(|fault| refused(&fault))?;
        self.records.make_arena(engine)?;
        let mut program = self.records.program(engine, spec, chunk, String::new());
        let body = self.body(&program, network);
        self.docker.create(&name, body).await.map_err(|fault| refused(&fault))?;
        self.docker.start(&name).await.map_err(|fault| refused(&fault))?;
        program.url = self.address(&name).await?;
        self.records.write(&Record::new(&program, Runs::Container(name.clone())))?;
        self.running().insert(engine, name);
        Ok(program)
    }

    async fn end(&self, engine: EngineId) -> Result<(), Trouble> {
        self.running().remove(&engine);
        let removed = self.docker.remove(&self.name(engine)).await;
        removed.map_err(|fault| Trouble::Refused(Order::Stop, fault.to_string()))?;
        self.records.remove(engine);
        Ok(())
    }

    async fn pids(&self, engine: EngineId) -> Vec<u32> {
        let Some(name) = self.running().get(&engine).cloned() else { return Vec::new() };
        let top = self.docker.raw().top_processes(&name, None::<TopOptions>).await;
        let Ok(top) = top else { return Vec::new() };
        let titles = top.titles.unwrap_or_default();
        let Some(column) = titles.iter().position(|title| title == "PID") else {
            return Vec::new();
        };
        let rows = top.processes.unwrap_or_default();
        rows.iter().filter_map(|row| row.get(column)?.parse().ok()).collect()
    }

    async fn last_words(&self, engine: EngineId) -> String {
        self.docker.last_words(&self.name(engine)).await
    }

    async fn found(&self) -> Vec<Program> {
        let (mut found, mut known) = (Vec::new(), Vec::new());
        for record in self.records.all() {
            let Runs::Container(name) = &record.runs else { continue };
            let Some(program) = self.records.recorded(&record) else { continue };
            // Where Docker does not answer it may live, and is kept.
            if matches!(self.docker.running(name).await, Ok(None)) {
                self.records.remove(program.engine);
                continue;
            }
            self.running().insert(program.engine, name.clone());
            known.push(name.clone());
            found.push(program);
        }
        self.sweep(&known).await;
        found
    }
}
