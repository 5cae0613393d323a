//! The services of a run as children: started, stopped, and looked after.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Longest wait for a first word, and for a clean end.
const PATIENCE: Duration = Duration::from_mins(2);
/// Generations that an engine is given at once.
const SLOTS: u32 = 64;

/// A running process.
#[derive(Debug)]
pub(crate) struct Service {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// Where a standalone is, and what it runs.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) binary: &'a Path,
    /// The static helper of sandboxes.
    pub(crate) init: &'a Path,
    pub(crate) manifests: &'a Path,
    /// For sockets, state and keys. Its path must be short: a socket's name holds 107 bytes.
    pub(crate) scratch: &'a Path,
    pub(crate) log: &'a Path,
    /// The engine's address.
    pub(crate) engine: &'a str,
    /// The gateway's key.
    pub(crate) key: &'a str,
}

impl Place<'_> {
    /// The queue's socket.
    pub(crate) fn queue(&self) -> PathBuf {
        self.scratch.join("queue.sock")
    }
}

impl Service {
    fn spawn(name: &'static str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let errors = File::create(log).with_context(|| format!("{}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stderr(errors)
            // Ctrl-C is for us: we stop it. A killed one would leave its sandboxes.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Starts the engine simulator with a script; returns its address too.
    pub(crate) async fn engine_sim(
        binary: &Path,
        script: &Path,
        step_ms: f64,
        log: &Path,
    ) -> anyhow::Result<(Self, String)> {
        let mut command = Command::new(binary);
        command
            .arg("--script")
            .arg(script)
            .args(["--step-ms", &step_ms.to_string(), "--max-model-len", "131072"])
            .stdout(Stdio::piped());
        let mut service = Self::spawn("engine-sim", command, log)?;
        let stdout = service.child.stdout.take().context("engine-sim has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.context("engine-sim is silent")??;
        let line = line.unwrap_or_default();
        match line.split_whitespace().find(|word| word.starts_with("http://")) {
            Some(url) => Ok((service, url.to_owned())),
            None => bail!("engine-sim did not say where it is: {line}\n{}", log_tail(log)),
        }
    }

    /// Starts `rollwright standalone` with the gateway before an engine; returns the
    /// gateway's address too. Neither answers yet.
    pub(crate) fn standalone(place: &Place<'_>) -> anyhow::Result<(Self, String)> {
        let keys = place.scratch.join("keys");
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&keys)?;
        writeln!(file, "quickstart:{}", place.key)?;
        // Free at this moment; who takes it meanwhile makes the start fail.
        let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.to_string();
        let mut command = Command::new(place.binary);
        command
            .arg("standalone")
            .arg("-f")
            .arg(place.manifests)
            .arg("--socket")
            .arg(place.queue())
            .arg("--state-dir")
            .arg(place.scratch.join("state"))
            .arg("--init")
            .arg(place.init)
            .args(["--engine", &format!("{},slots={SLOTS}", place.engine)])
            .args(["--gateway-listen", &gateway])
            .arg("--api-keys")
            .arg(keys)
            // Any free ports: nobody scrapes this run.
            .args(["--metrics-addr", "127.0.0.1:0", "--agent-metrics-addr", "127.0.0.1:0"])
            .args(["--gateway-metrics-addr", "127.0.0.1:0"])
            .stdout(Stdio::null());
        let service = Self::spawn("rollwright standalone", command, place.log)?;
        Ok((service, format!("http://{gateway}")))
    }

    /// Waits for an end that nobody asked for.
    pub(crate) async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => {
                anyhow::anyhow!("{} ended with {status}:\n{}", self.name, log_tail(&self.log))
            }
            Err(error) => error.into(),
        }
    }

    /// Asks it to stop as Ctrl-C does, and waits for its end.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(id) = self.child.id() else { return Ok(()) };
        if let Some(pid) = Pid::from_raw(id.cast_signed()) {
            kill_process(pid, Signal::INT)
                .with_context(|| format!("{} could not be signalled", self.name))?;
        }
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            self.child.kill().await?;
            let tail = log_tail(&self.log);
            bail!("{} did not stop within {PATIENCE:?}:\n{tail}", self.name);
        };
        let status = status?;
        let tail = || log_tail(&self.log);
        ensure!(status.success(), "{} ended with {status}:\n{}", self.name, tail());
        Ok(())
    }
}

/// The last lines of a log, and where it is.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(20)..].join("\n");
    format!("{tail}\n(log: {})", log.display())
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
