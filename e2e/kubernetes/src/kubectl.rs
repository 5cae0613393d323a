//! `kubectl` as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// A `kubectl` of the cluster's own version.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: Option<String>,
}

impl Kubectl {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            program: state.join("bin/kubectl"),
            kubeconfig: state.join("kubeconfig"),
            namespace: None,
        }
    }

    /// With another default namespace.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// Runs it with arguments and an input; whether it succeeded is in the output.
    pub async fn output(&self, arguments: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig).args(arguments);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().context("kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl has no input")?;
        let feed = async move {
            // It may end without reading all: what it says then is in its output.
            let _ = stdin.write_all(input.as_bytes()).await;
        };
        let ((), output) = tokio::join!(feed, child.wait_with_output());
        Ok(output?)
    }

    /// Runs it and returns what it printed; what it refused is the error.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.feed(arguments, "").await
    }

    /// Applies documents on the server's side.
    pub async fn apply(&self, documents: &str) -> anyhow::Result<String> {
        self.feed(&["apply", "--server-side", "--filename", "-"], documents).await
    }

    /// Asks the server what it would say to documents; nothing is kept.
    pub async fn apply_dry(&self, documents: &str) -> anyhow::Result<String> {
        self.feed(&["apply", "--server-side", "--dry-run=server", "--filename", "-"], documents)
            .await
    }

    async fn feed(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let output = self.output(arguments, input).await?;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
