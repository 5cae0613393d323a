//! The simulator as a program.

use clap::Parser;
use rollwright_engine_sim::{Config, EngineSim};

/// A SIMULATOR of the HTTP interfaces of vLLM and SGLang; no model, no GPU.
#[derive(Debug, Parser)]
#[command(name = "engine-sim")]
struct Args {
    /// Port on 127.0.0.1; 0 = any free one (printed on the first line)
    #[arg(long, default_value_t = 0)]
    port: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let engine = EngineSim::start(Config { port: args.port, ..Config::default() }).await?;
    println!("engine-sim (simulator) listening on {}", engine.url());
    tokio::signal::ctrl_c().await?;
    engine.stop().await;
    Ok(())
}
