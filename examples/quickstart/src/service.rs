//! `rollwright standalone` as a child: started, waited for, stopped, and looked after.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;

/// Longest wait for the socket, and for a clean end.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running standalone process.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Starts it with a directory of manifests, and connects when it answers with a node.
    /// Its socket and state go below `scratch`, whose path must be short (a socket's name
    /// holds 107 bytes).
    pub(crate) async fn start(
        binary: &Path,
        init: &Path,
        manifests: &Path,
        scratch: &Path,
        log: &Path,
    ) -> anyhow::Result<(Self, Client)> {
        let socket = scratch.join("queue.sock");
        let output = File::create(log).with_context(|| format!("{}", log.display()))?;
        let child = Command::new(binary)
            .arg("standalone")
            .arg("-f")
            .arg(manifests)
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(scratch.join("state"))
            .arg("--init")
            .arg(init)
            // Any free ports: nobody scrapes this run.
            .args(["--metrics-addr", "127.0.0.1:0", "--agent-metrics-addr", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for us: we stop it, and it removes its sandboxes.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} cannot be started", binary.display()))?;
        let mut service = Self { child, log: log.to_owned() };
        match service.wait_until_ready(&socket).await {
            Ok(client) => Ok((service, client)),
            Err(error) => {
                service.stop().await?;
                Err(error)
            }
        }
    }

    async fn wait_until_ready(&mut self, socket: &Path) -> anyhow::Result<Client> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("rollwright standalone ended with {status}:\n{}", self.log_tail());
            }
            if let Ok(client) = Client::connect(socket).await
                && let Ok(stats) = client.stats().await
                && stats.nodes.iter().any(|node| node.connected)
            {
                return Ok(client);
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("rollwright standalone did not answer within {PATIENCE:?}:\n{}", self.log_tail());
    }

    /// Asks it to stop as Ctrl-C does, and waits for its end.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(id) = self.child.id() else { return Ok(()) };
        if let Some(pid) = Pid::from_raw(id.cast_signed()) {
            kill_process(pid, Signal::INT).context("standalone could not be signalled")?;
        }
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            self.child.kill().await?;
            bail!("rollwright standalone did not stop within {PATIENCE:?}:\n{}", self.log_tail());
        };
        let status = status?;
        ensure!(
            status.success(),
            "rollwright standalone ended with {status}:\n{}",
            self.log_tail()
        );
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        format!("{tail}\n(log: {})", self.log.display())
    }
}

/// The sandboxes of a run that are still there, by trajectory.
pub(crate) async fn left_over(prefix: &str) -> anyhow::Result<Vec<String>> {
    let output = Command::new("docker")
        .args(["ps", "-a", "--filter", "label=rollwright.dev/managed=sandbox"])
        .args(["--format", "{{.Label \"rollwright.dev/trajectory\"}}"])
        .output()
        .await
        .context("docker cannot be started")?;
    ensure!(output.status.success(), "docker ps: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect())
}
