//! What pinned memory and the GPU can move at best, by another program than ours.

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::settings::Args;

/// Most bytes of a copy that is measured.
const MOST: u64 = 4_000_000_000;

/// The GPU, as a program beside ours sees it.
#[derive(Debug)]
pub(crate) struct Card {
    /// As its driver calls it.
    pub(crate) name: String,
    /// Bytes a second from pinned memory of the node.
    pub(crate) pinned: f64,
}

/// Measures the GPU; of the FAKE, what it was told.
pub(crate) async fn measure(args: &Args) -> anyhow::Result<Card> {
    if args.fake {
        return Ok(Card { name: "FAKE".into(), pinned: args.fake_bandwidth as f64 });
    }
    let program = args.reward_server.join("../gpu/bandwidth.py");
    let bytes = args.large().min(MOST).to_string();
    let output = Command::new(&args.python).arg(program).arg(bytes).output().await;
    let output = output.with_context(|| format!("cannot run {}", args.python))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the bandwidth cannot be measured: {errors}");
    let text = String::from_utf8(output.stdout)?;
    let (name, pinned) = text.trim().split_once('\n').context("a name and a bandwidth")?;
    let pinned = pinned.trim().parse().context("the bandwidth is no number")?;
    Ok(Card { name: name.to_owned(), pinned })
}
