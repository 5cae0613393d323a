//! A queue and an agent that dials it, as processes of their own in one directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rollwright_proto::v1::StatsResponse;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::program::{child, init, terminate};
use crate::wait;

const READY: Duration = Duration::from_mins(2);

/// Both, each running or not. Dropped before [`Pair::stop`], it prints their logs.
#[derive(Debug)]
pub(crate) struct Pair {
    dir: TempDir,
    node: String,
    queue: Option<Child>,
    agent: Option<Child>,
}

impl Pair {
    /// A directory for both. `name` becomes the node's, and must be unique among the tests of a
    /// program.
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        Ok(Self {
            // Short, so that the sockets below it fit in 108 bytes.
            dir: tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp")?,
            // Two runs of the tests at once do not meet.
            node: format!("{name}-{}", std::process::id()),
            queue: None,
            agent: None,
        })
    }

    /// The node's name.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Their directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the queue takes callers.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join("queue.sock")
    }

    /// Process ids of queue and agent.
    pub(crate) fn pids(&self) -> anyhow::Result<(u32, u32)> {
        let pid = |child: &Option<Child>| child.as_ref().and_then(Child::id);
        pid(&self.queue).zip(pid(&self.agent)).context("queue and agent are not both running")
    }

    /// A new caller.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.socket()).await
    }

    /// Starts the queue on a directory of manifests and waits until it answers.
    pub(crate) async fn start_queue(&mut self, manifests: &Path) -> anyhow::Result<()> {
        let mut command = child("rollwright", &self.dir().join("queue.log"))?;
        command
            .arg("queue")
            .arg("--filename")
            .arg(manifests)
            .arg("--listen")
            .arg(format!("unix:{}", self.socket().display()))
            .arg("--link")
            .arg(self.link())
            .arg("--state-dir")
            .arg(self.dir().join("queue"))
            .args(["--metrics-addr", "127.0.0.1:0"]);
        let queue = self.queue.insert(command.spawn().context("the queue does not start")?);
        let socket = self.dir.path().join("queue.sock");
        wait::until("the queue answers", READY, async || {
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

    /// Starts the agent of a pool, with more `options`.
    pub(crate) fn start_agent(
        &mut self,
        pool: &str,
        options: impl FnOnce(&mut Command),
    ) -> anyhow::Result<()> {
        let mut command = self.agent(pool, "agent")?;
        options(&mut command);
        self.agent = Some(command.spawn().context("the agent does not start")?);
        Ok(())
    }

    /// An agent whose state is below `name`; of a node of its own, unless that is `agent`.
    pub(crate) fn agent(&self, pool: &str, name: &str) -> anyhow::Result<Command> {
        let node =
            if name == "agent" { self.node.clone() } else { format!("{}-{name}", self.node) };
        let mut command = child("rollwright-agent", &self.dir().join(format!("{name}.log")))?;
        command
            .arg("--queue")
            .arg(self.link())
            .args(["--node", &node, "--pool", pool])
            .arg("--state-dir")
            .arg(self.dir().join(name))
            .arg("--init")
            .arg(init()?)
            .args(["--metrics-addr", "127.0.0.1:0"]);
        Ok(command)
    }

    /// Waits until the queue has of the agent what `linked` asks.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        linked: impl Fn(&StatsResponse) -> bool,
    ) -> anyhow::Result<()> {
        let mut client = self.client().await?;
        let agent = self.agent.as_mut().context("the agent is not running")?;
        wait::until(what, READY, async || {
            if let Some(status) = agent.try_wait()? {
                bail!("the agent ended: {status}");
            }
            Ok(linked(&client.stats().await?))
        })
        .await
    }

    /// SIGKILL to the queue.
    pub(crate) async fn kill_queue(&mut self) -> anyhow::Result<()> {
        self.queue.take().context("the queue is not running")?.kill().await?;
        Ok(())
    }

    /// SIGKILL to the agent.
    pub(crate) async fn kill_agent(&mut self) -> anyhow::Result<()> {
        self.agent.take().context("the agent is not running")?.kill().await?;
        Ok(())
    }

    /// SIGTERM to the agent; returns when it has ended well.
    pub(crate) async fn end_agent(&mut self) -> anyhow::Result<()> {
        terminate(self.agent.take().context("the agent is not running")?).await
    }

    /// Tells those that run to end, and waits until they have ended well.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        for child in [self.agent.take(), self.queue.take()].into_iter().flatten() {
            terminate(child).await?;
        }
        Ok(())
    }

    /// Kills those that run, and prints what they said.
    pub(crate) fn abandon(&mut self) {
        let running = [self.agent.take(), self.queue.take()];
        if running.iter().all(Option::is_none) {
            return;
        }
        // Killed by being dropped.
        drop(running);
        for log in ["queue.log", "agent.log"] {
            let text = std::fs::read_to_string(self.dir().join(log)).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(80).collect();
            eprintln!("--- {log} of node {}", self.node);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }

    fn link(&self) -> String {
        format!("unix:{}", self.dir().join("link.sock").display())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.abandon();
    }
}
