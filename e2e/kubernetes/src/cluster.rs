//! The cluster as a test sees it.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::process::Command;
use tokio::runtime::{Builder, Runtime};

use crate::lease::Lease;
use crate::namespace::Namespace;
use crate::{dump, kubectl::Kubectl};

/// The one cluster of this test run.
#[derive(Debug)]
pub struct Cluster {
    lease: Lease,
    network: File,
    /// The machine's own network.
    outside: File,
}

impl Cluster {
    /// The cluster, started by whoever asks first; it stays up while this process lives.
    pub fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::acquire().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    fn acquire() -> anyhow::Result<Self> {
        let outside = File::open("/proc/thread-self/ns/net")?;
        let lease = Lease::acquire()?;
        let network = File::open(format!("/proc/{}/ns/net", lease.pid()))?;
        Ok(Self { lease, network, outside })
    }

    /// The hold on its daemons, to stop and start them.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Moves this thread, and the processes that it starts, into the cluster's network: nodes,
    /// pods and services answer there.
    pub fn enter(&self) -> anyhow::Result<()> {
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))
            .context("could not enter the cluster's network namespace")
    }

    /// A runtime whose threads are in the cluster's network, as this thread is from now on.
    pub fn runtime(&'static self) -> anyhow::Result<Runtime> {
        self.enter()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(move || {
                // As the first thread did. One outside would find no cluster at its address.
                if let Err(error) = self.enter() {
                    eprintln!("{error:#}");
                }
            })
            .enable_all()
            .build()?;
        Ok(runtime)
    }

    /// A client with all rights.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        let file = Kubeconfig::read_from(self.lease.state().join("kubeconfig"))?;
        let config =
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// A program of this checkout, such as a script, with the cluster's `kubectl` and `helm`
    /// first on its `PATH` and with all rights.
    pub fn program(&self, path: &str) -> Command {
        let state = self.lease.state();
        let search = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(root().join(path));
        command
            .current_dir(root())
            .env("PATH", format!("{}/bin:{search}", state.display()))
            .env("KUBECONFIG", state.join("kubeconfig"))
            .kill_on_drop(true);
        command
    }

    /// A program of this checkout in the machine's own network: it may fetch something.
    pub fn outside(&self, path: &str) -> Command {
        let (process, file) = (std::process::id(), self.outside.as_raw_fd());
        let mut command = Command::new("nsenter");
        command.args([&format!("--net=/proc/{process}/fd/{file}"), "--"]).arg(root().join(path));
        command.current_dir(root()).kill_on_drop(true);
        command
    }

    /// The address of a name, as the cluster's DNS says it.
    pub async fn resolve(&self, name: &str) -> anyhow::Result<String> {
        let mut getent = Command::from(self.lease.command("getent"));
        let output = getent.args(["ahostsv4", name]).output().await?;
        let text = String::from_utf8(output.stdout)?;
        let address = text.split_whitespace().next();
        Ok(address.with_context(|| format!("no address of {name}"))?.to_owned())
    }

    /// `kubectl` with all rights.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.lease.state())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a test in a namespace of its own on the shared cluster. Where it fails, objects, events
/// and logs are in `target/e2e-kubernetes/NAME`; either way the namespace is deleted.
pub fn test(
    name: &str,
    body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cluster = Cluster::shared()?;
    let runtime = cluster.runtime()?;
    let namespace = runtime.block_on(Namespace::create(cluster, name))?;
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(body(&namespace))));
    if !matches!(outcome, Ok(Ok(()))) {
        match runtime.block_on(dump::write(&namespace, name)) {
            Ok(dir) => eprintln!("objects, events and logs of {name}: {}", dir.display()),
            Err(error) => eprintln!("no dump of {name}: {error:#}"),
        }
        match runtime.block_on(dump::summary(&namespace)) {
            Ok(summary) => eprintln!("{summary}"),
            Err(error) => eprintln!("no summary of {name}: {error:#}"),
        }
    }
    let deleted = runtime.block_on(namespace.delete());
    outcome.unwrap_or_else(|panic| resume_unwind(panic)).and(deleted)
}
