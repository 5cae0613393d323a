//! What queue and agent cost while sandboxes are open and nothing happens.

use std::time::Duration;

use anyhow::Context as _;
use rollwright_e2e::load::cpu_seconds;
use rollwright_e2e::stack::Stack;
use tokio::task::JoinSet;

use crate::table::Row;

/// How long CPU time is summed up.
const WINDOW: Duration = Duration::from_secs(20);

pub(crate) async fn measure(sandboxes: usize) -> anyhow::Result<Vec<Row>> {
    eprintln!("idle: opening {sandboxes} sandboxes ...");
    let stack = Stack::start("bench-idle").await?;
    let client = stack.client().await?;
    let mut opens = JoinSet::new();
    for n in 0..sandboxes {
        let mut client = client.clone();
        opens.spawn(async move { client.open(&format!("t{n}"), "small").await });
    }
    while let Some(opened) = opens.join_next().await {
        opened??;
    }
    let (queue, agent) = stack.pids()?;
    // What opening them left to do is done when a second passes almost without CPU.
    let mut before = cpu_seconds(queue)? + cpu_seconds(agent)?;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu_seconds(queue)? + cpu_seconds(agent)?;
        if now - before <= 0.01 {
            break;
        }
        before = now;
    }
    let before = cpu_seconds(queue)? + cpu_seconds(agent)?;
    tokio::time::sleep(WINDOW).await;
    let used = (cpu_seconds(queue)? + cpu_seconds(agent)? - before) / WINDOW.as_secs_f64();
    let rss = resident_mib(agent)?;
    let mut closes = JoinSet::new();
    for n in 0..sandboxes {
        let mut client = client.clone();
        closes.spawn(async move { client.close(&format!("t{n}")).await });
    }
    while let Some(closed) = closes.join_next().await {
        closed??;
    }
    stack.stop().await?;
    let row = |figure: &str, ours: String, target: &str, reached| Row {
        figure: format!("{sandboxes} idle sandboxes: {figure}"),
        ours,
        baseline: "-".to_owned(),
        ratio: "-".to_owned(),
        target: target.to_owned(),
        reached,
    };
    Ok(vec![
        row("queue + agent CPU", format!("{used:.4} cores"), "< 0.02 cores", used < 0.02),
        row("agent memory", format!("{rss:.1} MiB"), "< 64 MiB", rss < 64.0),
    ])
}

fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib / 1024.0)
}
