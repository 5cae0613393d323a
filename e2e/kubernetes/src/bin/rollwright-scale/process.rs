//! The processes that the benchmark starts: KWOK and the controllers. They are in the cluster's
//! network, and end with the benchmark however that ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rollwright_e2e_kubernetes::{Cluster, RELEASE};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::documents::IMAGE;
use super::samples::Samples;

/// Where the controllers show their metrics, in the cluster's network.
const METRICS: &str = "127.0.0.1:9467";

/// A process and its log.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(
        program: &Path,
        logs: &Path,
        set_up: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let name = program.file_name().context("a program has a name")?;
        let log = logs.join(name).with_extension("log");
        let out = File::create(&log)?;
        // Killed with the thread that starts it: a killed benchmark leaves nothing behind.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        set_up(&mut command);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).kill_on_drop(true);
        let child = command.spawn().with_context(|| program.display().to_string())?;
        Ok(Self { child, log })
    }

    /// An error once it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("a process ended ({status}): see {}", self.log.display()),
            None => Ok(()),
        }
    }

    fn of_proc(&self, file: &str) -> anyhow::Result<String> {
        let pid = self.child.id().with_context(|| format!("it ended: {}", self.log.display()))?;
        Ok(std::fs::read_to_string(format!("/proc/{pid}/{file}"))?)
    }

    /// The most memory that it ever had resident, in bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        let status = self.of_proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.of_proc("stat")?;
        // The name, in brackets, may hold anything.
        let (_, fields) = stat.rsplit_once(')').context("a name in brackets")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = ticks.sum::<Result<u64, _>>()? as f64;
        Ok(Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// Starts KWOK, which plays the fake nodes.
pub(crate) fn kwok(cluster: &Cluster, program: &Path, logs: &Path) -> anyhow::Result<Process> {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/kwok.yaml");
    let kubeconfig = cluster.lease().state().join("kubeconfig");
    Process::start(program, logs, |command| {
        command.arg(format!("--config={config}")).arg("--kubeconfig").arg(kubeconfig);
    })
}

/// The controllers, with the rights of the chart's account.
#[derive(Debug)]
pub(crate) struct Controllers {
    pub(crate) process: Process,
    metrics: reqwest::Client,
    /// Holds their token.
    _secrets: TempDir,
}

impl Controllers {
    /// Starts them on an installed chart.
    pub(crate) async fn start(
        cluster: &Cluster,
        program: &Path,
        logs: &Path,
    ) -> anyhow::Result<Self> {
        let secrets = tempfile::tempdir()?;
        let create = ["create", "token", "rollwright-controllers", "--duration=8h"];
        let token = cluster.kubectl().namespace(RELEASE).run(&create).await?;
        let admin = std::fs::read_to_string(cluster.lease().state().join("kubeconfig"))?;
        let mut config: serde_json::Value = serde_yaml::from_str(&admin)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        let kubeconfig = secrets.path().join("kubeconfig");
        std::fs::write(&kubeconfig, config.to_string())?;
        let process = Process::start(program, logs, |command| {
            command
                .arg("controllers")
                .args(["--namespace", RELEASE, "--identity=scale", "--image", IMAGE])
                .args(["--storage=ephemeral", "--metrics-addr", METRICS])
                .env("KUBECONFIG", kubeconfig);
        })?;
        let metrics = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        Ok(Self { process, metrics: metrics.build()?, _secrets: secrets })
    }

    /// What they count.
    pub(crate) async fn samples(&self) -> anyhow::Result<Samples> {
        let answer = self.metrics.get(format!("http://{METRICS}/metrics")).send().await?;
        Ok(Samples::parse(&answer.error_for_status()?.text().await?))
    }
}
