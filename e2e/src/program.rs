//! The programs of the build, as children.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::{Child, Command};

const END: Duration = Duration::from_mins(2);

/// A program of the build by its file name.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = binaries()?.join(name);
    ensure!(path.exists(), "`{}` is not built: run `make build`", path.display());
    Ok(path)
}

/// A program of the build that is killed when it is dropped, and writes at the end of `log`.
pub(crate) fn child(name: &str, log: &Path) -> anyhow::Result<Command> {
    let log = std::fs::File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(program(name)?);
    command
        .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    Ok(command)
}

/// SIGTERM to a process, after which it ends well.
pub(crate) async fn terminate(mut child: Child) -> anyhow::Result<()> {
    let pid = child.id().context("it has ended already")?;
    let told = Command::new("kill").arg(pid.to_string()).status().await?;
    ensure!(told.success(), "it could not be told to stop");
    let status = tokio::time::timeout(END, child.wait()).await.context("it does not stop")??;
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
