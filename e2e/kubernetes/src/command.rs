//! Commands that must succeed.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Runs a command; what it printed is the error when it fails.
pub async fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let what = command.as_std().get_program().display().to_string();
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.with_context(|| what.clone())?;
    ensure!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
