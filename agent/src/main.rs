//! The node agent's program; see the library.

use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    rollwright_agent::cli::Cli::parse().run().await
}
