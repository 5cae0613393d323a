//! Actions per second of the queue over the wire. The queue runs in a process of its
//! own with its store on disk; the agents are simulated, in this one.

use std::path::{Path, PathBuf};
use std::process::Command;

use rollwright_e2e::load::{self, Load, TEMPLATE};
use rollwright_queue::{
    AgentListen, CancellationToken, Listen, Listeners, QueueConfig, QueueServer, Template,
};

use crate::table::Row;

/// Names the directory of the queue's own process, which is this program again.
const QUEUE_DIR: &str = "ROLLWRIGHT_BENCH_QUEUE_DIR";

/// Runs the queue where this process was started to be it.
pub(crate) async fn be_the_queue() -> anyhow::Result<bool> {
    let Some(dir) = std::env::var_os(QUEUE_DIR).map(PathBuf::from) else { return Ok(false) };
    let mut config = QueueConfig::new("load", dir.join("store"));
    config.templates.insert(TEMPLATE.to_owned(), Template::default());
    let listeners = Listeners {
        callers: Listen::Unix(dir.join("queue.sock")),
        agents: AgentListen::Unix(dir.join("agents.sock")),
        metrics: None,
    };
    QueueServer::start(config, listeners).await?.serve(CancellationToken::new()).await?;
    Ok(true)
}

/// `actions` no-ops over batched streams of four callers and four simulated agents.
pub(crate) async fn measure(actions: usize) -> anyhow::Result<Vec<Row>> {
    eprintln!("load: {actions} actions with 4 simulated agents ...");
    let shape = Load {
        agents: 4,
        cores: 512,
        trajectories: 64,
        callers: 4,
        window: 512,
        actions: actions / 4,
    };
    let dir = tempfile::Builder::new().prefix("rollwright-load-").tempdir()?;
    let figures = run_queue(dir.path(), shape).await?;
    let row = |figure: &str, ours: String, target: &str, reached| Row {
        figure: format!("queue over the wire, simulated agents, durable: {figure}"),
        ours,
        baseline: "-".to_owned(),
        ratio: "-".to_owned(),
        target: target.to_owned(),
        reached,
    };
    let (rate, cpu) = (figures.per_second, figures.cpu_us);
    Ok(vec![
        row("throughput", format!("{rate:.0} actions/s"), ">= 20000 actions/s", rate >= 20_000.0),
        row("queue CPU an action", format!("{cpu:.1} us"), "<= 25 us", cpu <= 25.0),
    ])
}

async fn run_queue(dir: &Path, shape: Load) -> anyhow::Result<load::Figures> {
    let mut queue = Command::new(std::env::current_exe()?).env(QUEUE_DIR, dir).spawn()?;
    let figures = load::run(dir, &mut queue, shape).await;
    queue.kill()?;
    queue.wait()?;
    figures
}
