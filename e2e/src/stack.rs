//! A queue and an agent as processes of their own, on a real Docker engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollwright_proto::v1::StatsResponse;

use crate::client::Client;
use crate::docker;
use crate::pair::Pair;

const LIMIT: Duration = Duration::from_mins(2);

/// A queue and an agent. Dropping it without [`Stack::stop`] prints their logs.
#[derive(Debug)]
pub struct Stack {
    pair: Pair,
    manifests: PathBuf,
    docker_socket: PathBuf,
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
            pair: Pair::new(name)?,
            manifests: manifests.to_owned(),
            docker_socket: docker_socket.to_owned(),
        };
        stack.start_queue().await?;
        stack.start_agent().await?;
        Ok(stack)
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        self.pair.node()
    }

    /// Process ids of queue and agent.
    pub fn pids(&self) -> anyhow::Result<(u32, u32)> {
        self.pair.pids()
    }

    /// Where the queue takes callers.
    pub fn socket(&self) -> PathBuf {
        self.pair.socket()
    }

    /// Starts the queue and waits until it answers.
    pub async fn start_queue(&mut self) -> anyhow::Result<()> {
        self.pair.start_queue(&self.manifests).await
    }

    /// Starts the agent and waits until the queue has its node.
    pub async fn start_agent(&mut self) -> anyhow::Result<()> {
        let socket = &self.docker_socket;
        self.pair.start_agent("local", |agent| {
            agent.arg("--docker-socket").arg(socket);
        })?;
        let linked = |stats: &StatsResponse| stats.nodes.iter().any(|node| node.connected);
        self.pair.until("the node is connected", linked).await
    }

    /// A new caller.
    pub async fn client(&self) -> anyhow::Result<Client> {
        self.pair.client().await
    }

    /// SIGKILL to the queue.
    pub async fn kill_queue(&mut self) -> anyhow::Result<()> {
        self.pair.kill_queue().await
    }

    /// SIGKILL to the agent.
    pub async fn kill_agent(&mut self) -> anyhow::Result<()> {
        self.pair.kill_agent().await
    }

    /// Containers of this stack's agent.
    pub async fn sandboxes(&self) -> anyhow::Result<Vec<String>> {
        docker::sandboxes(&docker::connect(&self.docker_socket)?, self.node()).await
    }

    /// Checks that nothing is held and no container is left, then stops both.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.client().await?.wait_until_empty().await?;
        crate::wait::until("no container is left", LIMIT, async || {
            Ok(self.sandboxes().await?.is_empty())
        })
        .await?;
        self.pair.stop().await
    }
}
