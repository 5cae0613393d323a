//! `make bench`: the figures of one machine, each beside its baseline in the same run.

mod decision;
mod elastic;
mod idle;
mod isolation;
mod load;
mod overhead;
mod replay;
mod table;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures Rollwright on this machine, on real Docker.
#[derive(Debug, Parser)]
struct Cli {
    /// What to measure; all of it when none is named.
    #[arg(value_enum)]
    what: Vec<What>,
    /// Actions measured of each sandbox in `overhead`.
    #[arg(long, default_value_t = 400)]
    rounds: usize,
    /// Sandboxes that stand idle in `idle`.
    #[arg(long, default_value_t = 200)]
    sandboxes: usize,
    /// Python with the packages of the quickstart's agent, for `replay`: what
    /// examples/quickstart/agent/venv.sh prints.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Actions in `load`.
    #[arg(long, default_value_t = 400_000)]
    actions: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Time of one decision of the core.
    Decision,
    /// Completion times of real test suites, against every fixed degree (two minutes).
    Elastic,
    /// The quickstart's own run against the simulation of its trace (two minutes).
    Replay,
    /// Overhead of a no-op action against `docker update` + `docker exec`.
    Overhead,
    /// CPU and memory of queue and agent while sandboxes are open and idle.
    Idle,
    /// What a busy loop left in an idle sandbox costs an exclusive action elsewhere.
    Isolation,
    /// Actions per second over the wire, with simulated agents.
    Load,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if load::be_the_queue().await? {
        return Ok(());
    }
    let cli = Cli::parse();
    let wanted = |what| cli.what.is_empty() || cli.what.contains(&what);
    let mut rows = Vec::new();
    if wanted(What::Decision) {
        rows.extend(decision::measure()?);
    }
    if wanted(What::Elastic) {
        rows.extend(elastic::measure().await?);
    }
    if wanted(What::Replay) {
        rows.extend(replay::measure(cli.python.as_deref()).await?);
    }
    if wanted(What::Overhead) {
        let fewer = cli.rounds.div_ceil(16);
        rows.extend(overhead::measure(1, 1, cli.rounds).await?);
        rows.extend(overhead::measure(32, 1, fewer).await?);
        rows.extend(overhead::measure(32, 32, fewer).await?);
    }
    if wanted(What::Idle) {
        rows.extend(idle::measure(cli.sandboxes).await?);
    }
    if wanted(What::Isolation) {
        rows.extend(isolation::measure().await?);
    }
    if wanted(What::Load) {
        rows.extend(load::measure(cli.actions).await?);
    }
    table::print(&rows);
    Ok(())
}
