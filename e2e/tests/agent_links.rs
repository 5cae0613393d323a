//! An agent that is assigned to queues by files, as the controllers write them: real queues
//! with mutual TLS, real sandboxes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rollwright_agent::AgentConfig;
use rollwright_e2e::client::{Client, finish, shell};
use rollwright_e2e::program::init;
use rollwright_e2e::{docker, wait};
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::{NodeStats, SandboxSpec};
use rollwright_queue::{
    AgentListen, CancellationToken, Listen, Listeners, QueueConfig, QueueServer, Template, TlsFiles,
};
use serde_json::json;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_mins(2);

/// Puts a file in place whole.
fn place(path: &Path, text: &str) -> anyhow::Result<()> {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text)?;
    Ok(std::fs::rename(&fresh, path)?)
}

/// A queue with an authority of its own.
struct Queue {
    name: &'static str,
    dir: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
    link: std::net::SocketAddr,
    task: JoinHandle<Result<(), rollwright_queue::QueueError>>,
}

impl Queue {
    /// `grace`: how long its node may be away.
    async fn start(root: &Path, name: &'static str, grace: Duration) -> anyhow::Result<Self> {
        let dir = root.join(name);
        std::fs::create_dir(&dir)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let mut config = QueueConfig::new(name, dir.join("store"));
        config.core.node_grace = grace;
        let spec = SandboxSpec {
            image: docker::IMAGE.to_owned(),
            memory_bytes: 64 << 20,
            pids: 64,
            ..SandboxSpec::default()
        };
        config.templates.insert("box".to_owned(), Template { spec, warm: 0 });
        let tls = TlsFiles {
            cert: dir.join("tls.crt"),
            key: dir.join("tls.key"),
            client_ca: dir.join("ca.crt"),
        };
        let (cert, key) = leaf(&authority, "localhost")?;
        place(&tls.cert, &cert)?;
        place(&tls.key, &key)?;
        place(&tls.client_ca, &authority.pem())?;
        let listeners = Listeners {
            callers: Listen::Unix(dir.join("queue.sock")),
            agents: AgentListen::Tcp {
                addr: ([127, 0, 0, 1], 0).into(),
                tls: Some(tls),
                agent_name: Some(format!("agent.team.{name}")),
            },
            metrics: None,
        };
        let server = QueueServer::start(config, listeners).await?;
        let link = server.agents_addr().context("it listens on TCP")?;
        let task = tokio::spawn(server.serve(CancellationToken::new()));
        Ok(Self { name, dir, authority, link, task })
    }

    /// What the controllers write for the agents of this queue.
    fn credentials(&self, links: &Path) -> anyhow::Result<()> {
        let (cert, key) = leaf(&self.authority, &format!("agent.team.{}", self.name))?;
        for (end, text) in [("ca.crt", self.authority.pem()), ("crt", cert), ("key", key)] {
            place(&links.join(format!("team.{}.{end}", self.name)), &text)?;
        }
        Ok(())
    }

    fn assignment(&self, reserved_memory: u64) -> String {
        json!({
            "pool": "local",
            "queue": format!("https://localhost:{}", self.link.port()),
            "tls": format!("team.{}", self.name),
            "reservation": null,
            "reservedCores": "",
            "reservedMemoryBytes": reserved_memory,
        })
        .to_string()
    }

    async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.dir.join("queue.sock")).await
    }

    async fn node(&self) -> anyhow::Result<Option<NodeStats>> {
        let nodes = self.client().await?.stats().await?.nodes;
        Ok(nodes.into_iter().find(|node| node.connected))
    }

    async fn has_the_node(&self) -> anyhow::Result<()> {
        let what = format!("the node is linked to {}", self.name);
        wait::until(&what, LIMIT, async || Ok(self.node().await?.is_some())).await
    }

    async fn has_no_node(&self) -> anyhow::Result<()> {
        let what = format!("the node has left {}", self.name);
        wait::until(&what, LIMIT, async || Ok(self.node().await?.is_none())).await
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Certificate and key.
fn leaf(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
) -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(vec![name.to_owned()])?;
    Ok((params.signed_by(&key, authority)?.pem(), key.serialize_pem()))
}

/// The agent, and the directory that its assignments are mounted at.
struct Agent {
    config: AgentConfig,
    links: PathBuf,
    running: Option<(CancellationToken, JoinHandle<Result<(), rollwright_agent::AgentError>>)>,
}

impl Agent {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let links = root.join("links");
        std::fs::create_dir(&links)?;
        let mut config = AgentConfig::new(format!("links-{}", std::process::id()));
        config.state_dir = root.join("agent");
        config.init = init()?;
        Ok(Self { config, links, running: None })
    }

    fn start(&mut self) {
        let stop = CancellationToken::new();
        let (config, links) = (self.config.clone(), self.links.clone());
        let task = tokio::spawn(rollwright_agent::links::run(config, links, stop.clone()));
        self.running = Some((stop, task));
    }

    /// Ends it as a roll-out of the agents does: sandboxes stay.
    async fn stop(&mut self) -> anyhow::Result<()> {
        let (stop, task) = self.running.take().context("it runs")?;
        stop.cancel();
        Ok(task.await??)
    }

    fn assign(&self, assignment: Option<&str>) -> anyhow::Result<()> {
        let file = self.links.join(format!("{}.json", self.config.node));
        match assignment {
            Some(text) => place(&file, text),
            None => Ok(std::fs::remove_file(file)?),
        }
    }

    async fn sandboxes(&self) -> anyhow::Result<Vec<String>> {
        let engine = docker::connect(Path::new(docker::SOCKET))?;
        docker::sandboxes(&engine, &self.config.node).await
    }

    async fn is_empty(&self) -> anyhow::Result<()> {
        let empty = async || Ok(self.sandboxes().await?.is_empty());
        wait::until("no container is left", LIMIT, empty).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_follows_its_assignment() -> anyhow::Result<()> {
    // Short, so that the sockets below it fit in 108 bytes.
    let root = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp")?;
    let a = Queue::start(root.path(), "a", LIMIT).await?;
    let b = Queue::start(root.path(), "b", Duration::from_millis(100)).await?;
    let mut agent = Agent::new(root.path())?;
    agent.start();
    // It waits without an entry, and without certificates.
    agent.assign(Some(&a.assignment(1 << 30)))?;
    a.credentials(&agent.links)?;
    a.has_the_node().await?;
    let mut caller = a.client().await?;
    caller.open("t", "box").await?;
    caller.run(shell("write", "t", "echo kept > /tmp/file")).await?.finished()?;
    let first = agent.sandboxes().await?;
    ensure!(first.len() == 1, "{first:?}");

    // Other certificates and another reservation: the sandbox stays.
    let before = a.node().await?.context("linked")?.memory_bytes;
    a.credentials(&agent.links)?;
    agent.assign(Some(&a.assignment(2 << 30)))?;
    wait::until("the node keeps more memory back", LIMIT, async || {
        let node = a.node().await?;
        Ok(node.is_some_and(|node| node.memory_bytes + (1 << 30) == before))
    })
    .await?;
    let read = caller.run(shell("read", "t", "cat /tmp/file")).await?;
    ensure!(read.text() == "kept\n", "{read:?}");
    ensure!(agent.sandboxes().await? == first);

    // Another queue: the sandbox goes before the other queue has the node.
    b.credentials(&agent.links)?;
    agent.assign(Some(&b.assignment(1 << 30)))?;
    b.has_the_node().await?;
    ensure!(agent.sandboxes().await?.is_empty());
    a.has_no_node().await?;

    // What runs meanwhile for a queue that loses the node ends with a typed fault.
    let mut caller = b.client().await?;
    caller.open("u", "box").await?;
    let mut held = caller.submit(shell("held", "u", "echo on; sleep 600")).await?;
    rollwright_e2e::client::until_output(&mut held, "on").await?;
    agent.assign(Some(&a.assignment(1 << 30)))?;
    a.has_the_node().await?;
    let run = finish(held).await?;
    ensure!(run.fault()?.kind() == Kind::Infrastructure, "{run:?}");

    // Another queue while the agent is away: the record says whose the sandboxes are.
    a.client().await?.open("w", "box").await?;
    agent.stop().await?;
    let left = agent.sandboxes().await?;
    ensure!(left.len() == 1 && left != first, "{left:?}");
    agent.assign(Some(&b.assignment(1 << 30)))?;
    agent.start();
    b.has_the_node().await?;
    ensure!(agent.sandboxes().await?.is_empty());

    // Withdrawn: nothing is left, and it waits for the next.
    b.client().await?.open("v", "box").await?;
    agent.assign(None)?;
    b.has_no_node().await?;
    agent.is_empty().await?;
    agent.assign(Some(&a.assignment(1 << 30)))?;
    a.has_the_node().await?;
    agent.stop().await
}
