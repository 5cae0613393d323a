//! What pinned memory and the GPU can move at best, by another program than ours.

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::settings::Args;

/// Bytes a second from pinned memory of the node to the GPU; of the FAKE, what it was told.
pub(crate) async fn measure(args: &Args) -> anyhow::Result<f64> {
    if args.fake {
        return Ok(args.fake_bandwidth as f64);
    }
    let program = args.reward_server.join("../gpu/bandwidth.py");
    let output = Command::new(&args.python).arg(program).output().await;
    let output = output.with_context(|| format!("cannot run {}", args.python))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the bandwidth cannot be measured: {errors}");
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().context("the bandwidth is no number")
}
