//! The Docker engine that the tests run on, and what of ours is on it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bollard::Docker;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};
use tokio::process::{Child, Command};

/// Where the machine's engine listens.
pub const SOCKET: &str = "/var/run/docker.sock";
/// The sandbox image of the tests: `make image` builds it.
pub const IMAGE: &str = "rollwright/busybox:local";

/// A client of an engine.
pub fn connect(socket: &Path) -> anyhow::Result<Docker> {
    let path = socket.to_str().context("the socket's path is not UTF-8")?;
    let version = bollard::ClientVersion { major_version: 1, minor_version: 41 };
    Docker::connect_with_unix(path, 120, &version)
        .with_context(|| format!("no Docker engine at `{path}`: run `make docker`"))
}

/// Names of the containers that a node's agent owns, running or not.
pub async fn sandboxes(docker: &Docker, node: &str) -> anyhow::Result<Vec<String>> {
    let label = format!("rollwright.dev/agent={node}");
    let filters = HashMap::from([("label".to_owned(), vec![label])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let found = docker.list_containers(Some(options)).await?;
    Ok(found.into_iter().filter_map(|container| container.id).collect())
}

/// `docker rm -f`.
pub async fn remove(docker: &Docker, container: &str) -> anyhow::Result<()> {
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    docker.remove_container(container, Some(options)).await?;
    Ok(())
}

/// An engine of a test's own, which it may stop and start.
#[derive(Debug)]
pub struct PrivateEngine {
    dir: PathBuf,
    daemon: Child,
}

impl PrivateEngine {
    /// Starts an engine below `dir`, without networks, with the test image.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let daemon = Self::spawn(dir)?;
        let engine = Self { dir: dir.to_owned(), daemon };
        engine.wait_until_ready().await?;
        engine.copy_image().await?;
        Ok(engine)
    }

    fn spawn(dir: &Path) -> anyhow::Result<Child> {
        let log =
            std::fs::File::options().create(true).append(true).open(dir.join("dockerd.log"))?;
        Command::new("dockerd")
            .arg("--data-root")
            .arg(dir.join("data"))
            .arg("--exec-root")
            .arg(dir.join("exec"))
            .arg("--pidfile")
            .arg(dir.join("pid"))
            .arg("--host")
            .arg(format!("unix://{}", dir.join("docker.sock").display()))
            .args(["--storage-driver=overlay2", "--bridge=none", "--iptables=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("dockerd does not start: run `make docker`")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let socket = self.socket();
        crate::wait::until("the private engine answers", Duration::from_mins(1), async || {
            Ok(match connect(&socket) {
                Ok(docker) => docker.ping().await.is_ok(),
                Err(_) => false,
            })
        })
        .await
    }

    async fn copy_image(&self) -> anyhow::Result<()> {
        let line = format!(
            "docker -H unix://{SOCKET} save {IMAGE} | docker -H unix://{} load",
            self.socket().display()
        );
        let status = Command::new("sh")
            .args(["-c", &line])
            .env("DOCKER_API_VERSION", "1.41")
            .stdout(Stdio::null())
            .status()
            .await?;
        ensure!(status.success(), "the image {IMAGE} could not be copied: run `make image`");
        Ok(())
    }

    /// Stops the engine, and with it every container.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self.daemon.id().context("the engine is not running")?;
        let status = Command::new("kill").arg(pid.to_string()).status().await?;
        ensure!(status.success(), "the engine could not be told to stop");
        self.daemon.wait().await?;
        Ok(())
    }

    /// Starts it again.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.daemon = Self::spawn(&self.dir)?;
        self.wait_until_ready().await
    }
}
