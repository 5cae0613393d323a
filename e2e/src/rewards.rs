//! A queue with a pool of GPUs and an agent with a **fake** of GPUs, as processes of their own;
//! engines are processes of engine-sim, a simulator, or of a test server.

pub mod own;
mod service;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rollwright_proto::v1::{
    CallHeader, CallRequest, CallResponse, EngineStats, GpuPoolStats, RewardServiceStats,
    StatsResponse,
};

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::docker;
use crate::pair::Pair;
use crate::program::terminate;
use crate::wait;
pub use service::{Engine, Service, documents};
use service::{MARK, manifest, pretend_sglang};

/// Never reached by a test that passes.
const LIMIT: Duration = Duration::from_mins(2);

/// A caller.
#[derive(Debug, Clone)]
pub struct Calls(Client);

/// Queue and agent. Dropped before [`Rewards::stop`], it prints their logs.
#[derive(Debug)]
pub struct Rewards {
    pair: Pair,
    node: Node,
}

/// What the agent's node offers.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// GPUs.
    pub gpus: u32,
    /// GiB of each.
    pub device: u32,
    /// GiB of its memory for engines.
    pub host: u32,
    /// Engines outlive an agent that is told to end; else they end with it.
    pub keeps: bool,
}

impl Node {
    fn offer(self, agent: &mut Command, dir: &Path) {
        let Self { gpus, device, host, keeps } = self;
        agent
            .args(["--fake-gpus", &format!("{gpus}:{device}Gi")])
            .args(["--fake-bandwidth", "1000000000000"])
            .args(["--engine-memory-mib", &(u64::from(host) << 10).to_string()])
            .arg("--policy")
            .arg(policy_in(dir))
            .args(["--docker-socket", docker::SOCKET])
            .env("PATH", path_in(dir));
        if !keeps {
            agent.arg("--remove-on-exit");
        }
    }

    /// GPUs of 80 GiB, and memory for all engines.
    pub fn of(gpus: u32) -> Self {
        Self { gpus, device: 80, host: 1024, keeps: false }
    }
}

impl Rewards {
    /// Starts both.
    pub async fn start(name: &str, node: Node, services: &[Service]) -> anyhow::Result<Self> {
        let mut rewards = Self { pair: Pair::new(name)?, node };
        let manifests = rewards.manifests();
        std::fs::create_dir(&manifests)?;
        let services = manifest(services, rewards.pair.dir())?;
        std::fs::write(manifests.join("all.yaml"), services)?;
        let policy = "engines: {programs: [\"*\"], env: [ROLLWRIGHT_TEST]}\n";
        std::fs::write(policy_in(rewards.pair.dir()), policy)?;
        std::fs::create_dir(programs_in(rewards.pair.dir()))?;
        pretend_sglang(&programs_in(rewards.pair.dir()))?;
        rewards.start_queue().await?;
        rewards.start_agent()?;
        Ok(rewards)
    }

    /// The directory of the queue's manifests: the queue `rewards`, its pool and services.
    pub fn manifests(&self) -> PathBuf {
        self.pair.dir().join("manifests")
    }

    /// Starts the queue and waits until it answers.
    pub async fn start_queue(&mut self) -> anyhow::Result<()> {
        self.pair.start_queue(&self.manifests()).await
    }

    /// Starts the agent.
    pub fn start_agent(&mut self) -> anyhow::Result<()> {
        let (node, dir) = (self.node, self.pair.dir().to_owned());
        self.pair.start_agent("judges", |agent| node.offer(agent, &dir))
    }

    /// Starts an agent of another node like the first, and waits until it is linked. It is
    /// killed when it is dropped.
    pub async fn start_second(&mut self) -> anyhow::Result<Second> {
        let mut command = self.pair.agent("judges", "second")?;
        self.node.offer(&mut command, self.pair.dir());
        let process = command.spawn().context("the second agent does not start")?;
        self.two_linked().await?;
        Ok(Second { process, failures: Failures(self.pair.dir().join("second/fake-gpus")) })
    }

    async fn two_linked(&mut self) -> anyhow::Result<()> {
        let linked = |stats: &StatsResponse| stats.gpu_pools.iter().any(|pool| pool.nodes == 2);
        self.pair.until("both nodes are linked", linked).await
    }

    /// Starts an agent of another node that takes the first one's engines to be its own, and
    /// waits until it is linked. It is killed when it is dropped.
    pub async fn start_impostor(&mut self) -> anyhow::Result<Child> {
        let state = self.pair.dir().join("impostor");
        let engines = state.join("engines");
        std::fs::create_dir_all(&engines)?;
        for record in std::fs::read_dir(self.pair.dir().join("agent/engines"))? {
            let record = record?;
            if record.file_type()?.is_file() {
                std::fs::copy(record.path(), engines.join(record.file_name()))?;
            }
        }
        let mut command = self.pair.agent("judges", "impostor")?;
        self.node.offer(&mut command, self.pair.dir());
        let impostor = command.spawn().context("the impostor does not start")?;
        self.two_linked().await?;
        Ok(impostor)
    }

    /// Waits until the queue has the node's GPUs.
    pub async fn linked(&mut self) -> anyhow::Result<()> {
        let linked = |stats: &StatsResponse| stats.gpu_pools.iter().any(|pool| pool.nodes == 1);
        self.pair.until("the GPUs are linked", linked).await
    }

    /// Where the queue takes callers.
    pub fn socket(&self) -> PathBuf {
        self.pair.socket()
    }

    /// A new caller.
    pub async fn calls(&self) -> anyhow::Result<Calls> {
        Ok(Calls(self.pair.client().await?))
    }

    /// Ids of the requests that the engines have, or had, by their own account.
    pub async fn asked(&self) -> anyhow::Result<Vec<String>> {
        let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
        let mut asked = Vec::new();
        for pid in engines_below(self.pair.dir()) {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
            let port = line.split('\0').skip_while(|part| *part != "--port").nth(1);
            let port = port.context("an engine without a port")?;
            let url = format!("http://127.0.0.1:{port}/sim/requests");
            let said: Value = http.get(url).send().await?.json().await?;
            let requests = said["requests"].as_array().context("no requests")?;
            asked.extend(requests.iter().filter_map(|of| of["rid"].as_str()).map(str::to_owned));
        }
        Ok(asked)
    }

    /// What goes wrong on the fake of the first agent's node.
    pub fn failures(&self) -> Failures {
        Failures(self.pair.dir().join("agent/fake-gpus"))
    }

    /// [`Failures::order`] at the first agent's node.
    pub fn fail(&self, failure: &str) -> anyhow::Result<()> {
        self.failures().order(failure)
    }

    /// [`Failures::heal`] at the first agent's node.
    pub fn heal(&self, failure: &str) -> anyhow::Result<()> {
        self.failures().heal(failure)
    }

    /// SIGKILL to the engines.
    pub fn kill_engines(&self) {
        for pid in engines_below(self.pair.dir()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// SIGKILL to the queue.
    pub async fn kill_queue(&mut self) -> anyhow::Result<()> {
        self.pair.kill_queue().await
    }

    /// SIGKILL to the agent. Its engines live on.
    pub async fn kill_agent(&mut self) -> anyhow::Result<()> {
        self.pair.kill_agent().await
    }

    /// SIGTERM to the agent; returns when it has ended. Its engines end with it, unless its
    /// node [keeps](Node::keeps) them.
    pub async fn end_agent(&mut self) -> anyhow::Result<()> {
        self.pair.end_agent().await
    }

    /// Ends all, engines too.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.pair.stop().await
    }
}

fn policy_in(dir: &Path) -> PathBuf {
    dir.join("policy.yaml")
}

/// What agents find before all else in their `PATH`.
fn programs_in(dir: &Path) -> PathBuf {
    dir.join("programs")
}

fn path_in(dir: &Path) -> OsString {
    let mut path = programs_in(dir).into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// An agent beside the first.
#[derive(Debug)]
pub struct Second {
    process: Child,
    /// What goes wrong on its node.
    pub failures: Failures,
}

impl Second {
    /// SIGTERM; returns when it has ended well.
    pub async fn end(self) -> anyhow::Result<()> {
        terminate(self.process).await
    }
}

/// What goes wrong on a fake of GPUs, on order.
#[derive(Debug)]
pub struct Failures(PathBuf);

impl Failures {
    /// Orders a failure: see `rollwright_agent::gpu::fake::FakeFailure`.
    pub fn order(&self, failure: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        Ok(std::fs::write(self.0.join(failure), "")?)
    }

    /// Waits until what was ordered happens.
    pub async fn happened(&self, failure: &str) -> anyhow::Result<()> {
        let order = self.0.join(failure);
        wait::until(failure, LIMIT, async || Ok(!order.exists())).await
    }

    /// Takes back what was ordered, if it has not happened yet; a lost GPU is back.
    pub fn heal(&self, failure: &str) -> anyhow::Result<()> {
        match std::fs::remove_file(self.0.join(failure)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Rewards {
    fn drop(&mut self) {
        self.pair.abandon();
        // They outlive their agent.
        self.kill_engines();
    }
}

/// Processes whose environment has the mark of `dir`.
pub fn engines_below(dir: &Path) -> Vec<i32> {
    let mark = format!("{MARK}={}", dir.display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.split('\0').any(|variable| variable == mark)
    })
    .collect()
}

impl Calls {
    /// Of the queue behind a socket.
    pub async fn connect(socket: &Path) -> anyhow::Result<Self> {
        Ok(Self(Client::connect(socket).await?))
    }

    /// One call as it is.
    pub async fn call(&self, request: CallRequest) -> Result<CallResponse, tonic::Status> {
        self.0.clone().call(request).await
    }

    /// A completion of `tokens` tokens by a service.
    pub async fn complete(
        &self,
        id: &str,
        service: &str,
        tokens: u32,
    ) -> Result<CallResponse, tonic::Status> {
        self.call(completion(id, service, tokens)).await
    }

    /// Cancels a call.
    pub async fn cancel(&self, id: &str) -> anyhow::Result<bool> {
        Ok(self.0.clone().cancel(id).await?)
    }

    /// The pool as the queue sees it.
    pub async fn pool(&self) -> anyhow::Result<GpuPoolStats> {
        let stats = self.0.clone().stats().await?;
        stats.gpu_pools.into_iter().next().context("the queue has no GPU pool")
    }

    /// One service of it.
    pub async fn service(&self, name: &str) -> anyhow::Result<RewardServiceStats> {
        let services = self.pool().await?.services;
        services.into_iter().find(|of| of.service == name).context("no such service")
    }

    /// Its engines.
    pub async fn engines(&self) -> anyhow::Result<Vec<EngineStats>> {
        Ok(self.pool().await?.engines)
    }
}

/// A request for `tokens` tokens.
pub fn completion(id: &str, service: &str, tokens: u32) -> CallRequest {
    let body = json!({
        "model": service, "prompt": format!("rate this: {id}"), "max_tokens": tokens
    });
    post(id, service, "/v1/completions", &body)
}

/// A `POST` of JSON to a path of a service. Its engine records the id.
pub fn post(id: &str, service: &str, path: &str, body: &Value) -> CallRequest {
    let header = |name: &str, value: &str| CallHeader { name: name.into(), value: value.into() };
    CallRequest {
        action_id: id.to_owned(),
        service: service.to_owned(),
        path: path.to_owned(),
        headers: vec![header("content-type", "application/json"), header("x-request-id", id)],
        body: body.to_string().into(),
        ..CallRequest::default()
    }
}
