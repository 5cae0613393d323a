//! A queue and an agent as processes of their own, on a real Docker engine.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::docker;

const READY: Duration = Duration::from_mins(1);

/// A queue and an agent. Dropping it without [`Stack::stop`] prints their logs.
#[derive(Debug)]
pub struct Stack {
    dir: TempDir,
    node: String,
    manifests: PathBuf,
    docker_socket: PathBuf,
    queue: Option<Child>,
    agent: Option<Child>,
}

impl Stack {
    /// Starts both on the machine's engine, with the manifests of the tests. `name`
    /// becomes the node's, and must be unique among the tests of a program.
    pub async fn start(name: &str) -> anyhow::Result<Self> {
        Self::start_on(name, Path::new(docker::SOCKET)).await
    }

    /// Starts both on the engine behind `docker_socket`.
    pub async fn start_on(name: &str, docker_socket: &Path) -> anyhow::Result<Self> {
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
        Self::start_with(name, docker_socket, &manifests).await
    }

    /// Starts both with other manifests.
    pub async fn start_with(
        name: &str,
        docker_socket: &Path,
        manifests: &Path,
    ) -> anyhow::Result<Self> {
        let mut stack = Self {
            // Short, so that the sockets below it fit in 108 bytes.
            dir: tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp")?,
            // Two runs of the tests at once do not meet.
            node: format!("{name}-{}", std::process::id()),
            manifests: manifests.to_owned(),
            docker_socket: docker_socket.to_owned(),
            queue: None,
            agent: None,
        };
        stack.start_queue().await?;
        stack.start_agent().await?;
        Ok(stack)
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Process ids of queue and agent.
    pub fn pids(&self) -> anyhow::Result<(u32, u32)> {
        let pid = |child: &Option<Child>| child.as_ref().and_then(Child::id);
        pid(&self.queue).zip(pid(&self.agent)).context("queue and agent are not both running")
    }

    /// Where the queue takes callers.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("queue.sock")
    }

    /// Starts the queue and waits until it answers.
    pub async fn start_queue(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("rollwright", "queue.log")?;
        command
            .arg("queue")
            .arg("--filename")
            .arg(&self.manifests)
            .arg("--listen")
            .arg(format!("unix:{}", self.socket().display()))
            .arg("--link")
            .arg(format!("unix:{}", self.dir.path().join("link.sock").display()))
            .arg("--state-dir")
            .arg(self.dir.path().join("queue"))
            .args(["--metrics-addr", "127.0.0.1:0"]);
        self.queue = Some(command.spawn().context("the queue does not start")?);
        let socket = self.socket();
        let queue = self.queue.as_mut().context("just started")?;
        crate::wait::until("the queue answers", READY, async || {
            if let Some(status) = queue.try_wait()? {
                bail!("the queue ended: {status}");
            }
            match Client::connect(&socket).await {
                Ok(mut client) => Ok(client.stats().await.is_ok()),
                Err(_) => Ok(false),
            }
        })
        .await
    }

    /// Starts the agent and waits until the queue has its node.
    pub async fn start_agent(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("rollwright-agent", "agent.log")?;
        command
            .arg("--queue")
            .arg(format!("unix:{}", self.dir.path().join("link.sock").display()))
            .args(["--node", &self.node, "--pool", "local"])
            .arg("--state-dir")
            .arg(self.dir.path().join("agent"))
            .arg("--docker-socket")
            .arg(&self.docker_socket)
            .arg("--init")
            .arg(init()?)
            .args(["--metrics-addr", "127.0.0.1:0"]);
        self.agent = Some(command.spawn().context("the agent does not start")?);
        let mut client = self.client().await?;
        let agent = self.agent.as_mut().context("just started")?;
        crate::wait::until("the node is connected", READY, async || {
            if let Some(status) = agent.try_wait()? {
                bail!("the agent ended: {status}");
            }
            let stats = client.stats().await?;
            Ok(stats.nodes.iter().any(|node| node.connected))
        })
        .await
    }

    fn command(&self, program: &str, log: &str) -> anyhow::Result<Command> {
        let path = binaries()?.join(program);
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

    /// A new caller.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.socket()).await
    }

    /// SIGKILL to the queue.
    pub async fn kill_queue(&mut self) -> anyhow::Result<()> {
        self.queue.take().context("the queue is not running")?.kill().await?;
        Ok(())
    }

    /// SIGKILL to the agent.
    pub async fn kill_agent(&mut self) -> anyhow::Result<()> {
        self.agent.take().context("the agent is not running")?.kill().await?;
        Ok(())
    }

    /// Containers of this stack's agent.
    pub async fn sandboxes(&self) -> anyhow::Result<Vec<String>> {
        docker::sandboxes(&docker::connect(&self.docker_socket)?, &self.node).await
    }

    /// Checks that nothing is held and no container is left, then stops both.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.client().await?.wait_until_empty().await?;
        crate::wait::until("no container is left", READY, async || {
            Ok(self.sandboxes().await?.is_empty())
        })
        .await?;
        for child in [self.agent.take(), self.queue.take()].into_iter().flatten() {
            terminate(child).await?;
        }
        Ok(())
    }

    fn print_logs(&self) {
        for log in ["queue.log", "agent.log"] {
            let text = std::fs::read_to_string(self.dir.path().join(log)).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(60).collect();
            eprintln!("--- {log} of node {}", self.node);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if self.queue.is_some() || self.agent.is_some() {
            self.print_logs();
        }
    }
}

/// Tells a process to end, and waits until it has ended well.
pub(crate) async fn terminate(mut child: Child) -> anyhow::Result<()> {
    let pid = child.id().context("it has ended already")?;
    let told = Command::new("kill").arg(pid.to_string()).status().await?;
    ensure!(told.success(), "it could not be told to stop");
    let status = tokio::time::timeout(READY, child.wait()).await.context("it does not stop")??;
    ensure!(status.success(), "it stopped with {status}");
    Ok(())
}

/// Where cargo put the binaries: beside this one, or one level up for a test.
pub fn binaries() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let dir = this.parent().context("no directory")?;
    let dir = if dir.ends_with("deps") { dir.parent().context("no directory")? } else { dir };
    Ok(dir.to_owned())
}

/// The static helper, which is linked apart from the rest.
pub fn init() -> anyhow::Result<PathBuf> {
    let init = match std::env::var_os("ROLLWRIGHT_INIT") {
        Some(path) => PathBuf::from(path),
        None => binaries()?.join("../quick/rollwright-init"),
    };
    init.canonicalize()
        .with_context(|| format!("no static helper at `{}`: run `make build`", init.display()))
}
