//! Load benchmark of the queue: `queue_load [ACTIONS]`. The queue runs in a process
//! of its own with its store on disk; the agents are simulated, in this one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rollwright_e2e::load::{self, Load, TEMPLATE};
use rollwright_queue::{
    AgentListen, CancellationToken, Listen, Listeners, QueueConfig, QueueServer, Template,
};

/// Names the directory of the queue's own process.
const QUEUE_DIR: &str = "ROLLWRIGHT_LOAD_QUEUE_DIR";

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(dir) = std::env::var_os(QUEUE_DIR) {
        return queue(&PathBuf::from(dir)).await;
    }
    let actions: usize = match std::env::args().nth(1) {
        Some(actions) => actions.parse().context("usage: queue_load [ACTIONS]")?,
        None => 200_000,
    };
    let callers = 4;
    for (name, window) in [("batched", 512), ("one at a time", 1)] {
        let actions = if window == 1 { actions / 100 } else { actions } / callers;
        let load = Load { agents: 4, cores: 512, trajectories: 64, callers, window, actions };
        let dir = tempfile::Builder::new().prefix("rollwright-load-").tempdir()?;
        let mut child =
            Command::new(std::env::current_exe()?).env(QUEUE_DIR, dir.path()).spawn()?;
        let figures = load::run(dir.path(), &mut child, load).await;
        child.kill()?;
        child.wait()?;
        println!("{}", figures?.row(&format!("queue, 4 simulated agents, durable, {name}")));
    }
    Ok(())
}

async fn queue(dir: &Path) -> Result<()> {
    let mut config = QueueConfig::new("load", dir.join("store"));
    config.templates.insert(TEMPLATE.to_owned(), Template::default());
    let listeners = Listeners {
        callers: Listen::Unix(dir.join("queue.sock")),
        agents: AgentListen::Unix(dir.join("agents.sock")),
        metrics: None,
    };
    let server = QueueServer::start(config, listeners).await?;
    server.serve(CancellationToken::new()).await?;
    Ok(())
}
