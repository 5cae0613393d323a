//! The **test server** in the place of a reward program of one's own, as a program.

use std::net::SocketAddr;

use clap::Parser;
use rollwright_e2e::rewards::own;
use tokio::net::TcpListener;

/// A TEST SERVER that answers `POST /reward` by arithmetic: no model, no GPU.
#[derive(Debug, Parser)]
struct Args {
    /// Where it listens; anybody who reaches it may do everything
    #[arg(long)]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    own::serve(TcpListener::bind(Args::parse().listen).await?).await?;
    Ok(())
}
