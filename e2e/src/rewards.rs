//! A queue with a pool of GPUs and an agent with a **fake** of GPUs, as processes of their own;
//! engines are processes of engine-sim, a simulator.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rollwright_proto::v1::action_service_client::ActionServiceClient;
use rollwright_proto::v1::{
    CallRequest, CallResponse, CancelRequest, EngineStats, GpuPoolStats, RewardServiceStats,
    StatsRequest,
};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tonic::transport::Channel;

use crate::{client, docker, stack};

/// Environment variable of our engines.
const MARK: &str = "ROLLWRIGHT_TEST";
const READY: Duration = Duration::from_mins(2);

/// A reward service of the test: an engine-sim.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, and its model's.
    pub name: String,
    /// GPUs that its engines may have.
    pub degrees: Vec<u32>,
    /// GiB of each GPU, awake; asleep it keeps one.
    pub device: u32,
    /// Milliseconds that a token takes.
    pub step_ms: u32,
}

/// A caller.
#[derive(Debug, Clone)]
pub struct Calls(ActionServiceClient<Channel>);

/// Queue and agent. Dropped before [`Rewards::stop`], it prints their logs.
#[derive(Debug)]
pub struct Rewards {
    dir: TempDir,
    node: String,
    gpus: String,
    queue: Option<Child>,
    agent: Option<Child>,
}

impl Rewards {
    /// Starts both, with `gpus` as `--fake-gpus` takes them.
    pub async fn start(name: &str, gpus: &str, services: &[Service]) -> anyhow::Result<Self> {
        let mut rewards = Self {
            // Short, so that the sockets below it fit in 108 bytes.
            dir: tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp")?,
            node: format!("{name}-{}", std::process::id()),
            gpus: gpus.to_owned(),
            queue: None,
            agent: None,
        };
        let manifests = rewards.dir.path().join("manifests");
        std::fs::create_dir(&manifests)?;
        std::fs::write(manifests.join("all.yaml"), manifest(services, rewards.dir.path())?)?;
        let policy = "engines: {programs: [\"*\"]}\n";
        std::fs::write(rewards.dir.path().join("policy.yaml"), policy)?;
        rewards.start_queue().await?;
        rewards.start_agent()?;
        Ok(rewards)
    }

    /// Starts the queue and waits until it answers.
    pub async fn start_queue(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("rollwright", "queue.log")?;
        let path = |name: &str| self.dir.path().join(name);
        command
            .arg("queue")
            .arg("--filename")
            .arg(path("manifests"))
            .arg("--listen")
            .arg(format!("unix:{}", self.socket().display()))
            .arg("--link")
            .arg(format!("unix:{}", path("link.sock").display()))
            .arg("--state-dir")
            .arg(path("queue"))
            .args(["--metrics-addr", "127.0.0.1:0"]);
        self.queue = Some(command.spawn().context("the queue does not start")?);
        let socket = self.socket();
        let queue = self.queue.as_mut().context("just started")?;
        crate::wait::until("the queue answers", READY, async || {
            if let Some(status) = queue.try_wait()? {
                bail!("the queue ended: {status}");
            }
            match Calls::connect(&socket).await {
                Ok(calls) => Ok(calls.pool().await.is_ok()),
                Err(_) => Ok(false),
            }
        })
        .await
    }

    /// Starts the agent.
    pub fn start_agent(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("rollwright-agent", "agent.log")?;
        let path = |name: &str| self.dir.path().join(name);
        command
            .arg("--queue")
            .arg(format!("unix:{}", path("link.sock").display()))
            .args(["--node", &self.node, "--pool", "judges"])
            .args(["--fake-gpus", &self.gpus, "--fake-bandwidth", "1000000000000"])
            .args(["--engine-memory-mib", "1048576"])
            .arg("--state-dir")
            .arg(path("agent"))
            .arg("--policy")
            .arg(path("policy.yaml"))
            .args(["--docker-socket", docker::SOCKET, "--remove-on-exit"])
            .arg("--init")
            .arg(stack::init()?)
            .args(["--metrics-addr", "127.0.0.1:0"]);
        self.agent = Some(command.spawn().context("the agent does not start")?);
        Ok(())
    }

    /// Waits until the queue has the node's GPUs.
    pub async fn linked(&mut self) -> anyhow::Result<()> {
        let calls = self.calls().await?;
        let agent = self.agent.as_mut().context("the agent is not running")?;
        crate::wait::until("the GPUs are linked", READY, async || {
            if let Some(status) = agent.try_wait()? {
                bail!("the agent ended: {status}");
            }
            Ok(calls.pool().await?.nodes == 1)
        })
        .await
    }

    fn command(&self, program: &str, log: &str) -> anyhow::Result<Command> {
        let path = stack::binaries()?.join(program);
        ensure!(path.exists(), "`{}` is not built: run `make build`", path.display());
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join(log))?;
        let mut command = Command::new(path);
        command
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Where the queue takes callers.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("queue.sock")
    }

    /// A new caller.
    pub async fn calls(&self) -> anyhow::Result<Calls> {
        Calls::connect(&self.socket()).await
    }

    /// Orders a failure of the fake: see `rollwright_agent::gpu::fake::FakeFailure`.
    pub fn fail(&self, failure: &str) -> anyhow::Result<()> {
        let dir = self.dir.path().join("agent/fake-gpus");
        std::fs::create_dir_all(&dir)?;
        Ok(std::fs::write(dir.join(failure), "")?)
    }

    /// Takes a file of [`Self::fail`] away, such as that of a lost GPU.
    pub fn heal(&self, failure: &str) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(self.dir.path().join("agent/fake-gpus").join(failure))?)
    }

    /// SIGKILL to the queue.
    pub async fn kill_queue(&mut self) -> anyhow::Result<()> {
        self.queue.take().context("the queue is not running")?.kill().await?;
        Ok(())
    }

    /// SIGKILL to the agent. Its engines live on.
    pub async fn kill_agent(&mut self) -> anyhow::Result<()> {
        self.agent.take().context("the agent is not running")?.kill().await?;
        Ok(())
    }

    /// SIGTERM to the agent; returns when it has ended. Its engines end with it.
    pub async fn end_agent(&mut self) -> anyhow::Result<()> {
        stack::terminate(self.agent.take().context("the agent is not running")?).await
    }

    /// Ends all, engines too.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for child in [self.agent.take(), self.queue.take()].into_iter().flatten() {
            stack::terminate(child).await?;
        }
        self.end_engines();
        Ok(())
    }

    /// Engines outlive their agent: ours have a mark in their environment.
    fn end_engines(&self) {
        for pid in engines_below(self.dir.path()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    fn print_logs(&self) {
        for log in ["queue.log", "agent.log"] {
            let text = std::fs::read_to_string(self.dir.path().join(log)).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(80).collect();
            eprintln!("--- {log} of node {}", self.node);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Drop for Rewards {
    fn drop(&mut self) {
        if self.queue.is_some() || self.agent.is_some() {
            self.print_logs();
            self.end_engines();
        }
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
        let client = ActionServiceClient::new(client::channel(socket).await?);
        Ok(Self(client.max_decoding_message_size(16 << 20)))
    }

    /// One call as it is.
    pub async fn call(&self, request: CallRequest) -> Result<CallResponse, tonic::Status> {
        Ok(self.0.clone().call(request).await?.into_inner())
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
        let request = CancelRequest { action_id: id.to_owned(), job: String::new() };
        Ok(self.0.clone().cancel(request).await?.into_inner().cancelled)
    }

    /// The pool as the queue sees it.
    pub async fn pool(&self) -> anyhow::Result<GpuPoolStats> {
        let stats = self.0.clone().stats(StatsRequest {}).await?.into_inner();
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
    let body = serde_json::json!({
        "model": service, "prompt": format!("rate this: {id}"), "max_tokens": tokens
    });
    let header = |name: &str, value: &str| rollwright_proto::v1::CallHeader {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    CallRequest {
        action_id: id.to_owned(),
        service: service.to_owned(),
        path: "/v1/completions".to_owned(),
        headers: vec![header("content-type", "application/json")],
        body: body.to_string().into(),
        ..CallRequest::default()
    }
}

fn manifest(services: &[Service], dir: &Path) -> anyhow::Result<String> {
    let queue = "apiVersion: rollwright.dev/v1alpha1
kind: ActionQueue
metadata: {name: rewards}
spec:
  pools: [judges]
";
    Ok(format!("{queue}---\n{}", documents("rewards", services, dir)?))
}

/// The pool `judges` and the services of a queue, whose engines are known by `dir`.
pub fn documents(queue: &str, services: &[Service], dir: &Path) -> anyhow::Result<String> {
    let mut text = String::from(
        "apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: judges}
spec:
  gpu:
    class: fake
    profile: {tflops: 1, hbm: 80Gi, hbmTbps: 1}
    gpusPerNode: 8
    hosts: [Reward]
",
    );
    let program = stack::binaries()?.join("engine-sim");
    ensure!(program.exists(), "`{}` is not built: run `make build`", program.display());
    for Service { name, degrees, device, step_ms } in services {
        let (program, dir) = (program.display(), dir.display());
        write!(
            text,
            "---
apiVersion: rollwright.dev/v1alpha1
kind: RewardService
metadata: {{name: {name}}}
spec:
  gpu:
    queue: {queue}
    pool: judges
    model: {{path: {name}}}
    engine:
      type: OpenAI
      image: process
      args: [\"{program}\", --host, \"{{host}}\", --port, \"{{port}}\", --model, {name},
        --mean-tokens, \"0\", --step-ms, \"{step_ms}\"]
      env: {{{MARK}: \"{dir}\"}}
    degrees: {degrees:?}
    footprints:
"
        )?;
        for degree in degrees {
            writeln!(
                text,
                "      - {{degree: {degree}, device: {device}Gi, residue: 1Gi, host: 1Gi}}"
            )?;
        }
        text.push_str("    limits: {launch: 2m, wake: 1m, evict: 1m, stop: 1m}\n");
    }
    Ok(text)
}
