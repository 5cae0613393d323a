//! The agent as a child: a Python program that plays all trajectories and tells of them in
//! lines of JSON.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::progress::{Live, Progress};
use crate::record::{BatchRecord, TrajectoryRecord};
use crate::service::log_tail;

/// What a run of the agent needs.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// Python with the packages of `agent/requirements.txt`.
    pub(crate) python: &'a Path,
    /// Directory of the agent.
    pub(crate) agent: &'a Path,
    /// Directory of the Rollwright client for Python.
    pub(crate) client: &'a Path,
    /// The gateway's address and key.
    pub(crate) gateway: &'a str,
    pub(crate) key: &'a str,
    /// The queue's socket.
    pub(crate) queue: &'a Path,
    /// The engine's address.
    pub(crate) engine: &'a str,
    /// Start of all ids.
    pub(crate) prefix: &'a str,
    /// For a real model: where the bugs are that it is to repair.
    pub(crate) edits: Option<&'a Path>,
    /// Packages: a group for each.
    pub(crate) packages: &'a [&'a str],
    /// What it writes to standard error.
    pub(crate) log: &'a Path,
}

/// What came of it; times in seconds since the agent's start.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) cores: u32,
    /// On average.
    pub(crate) granted_cores: f64,
    pub(crate) trajectories: Vec<TrajectoryRecord>,
    pub(crate) batches: Vec<BatchRecord>,
}

/// A line of the agent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Begin { cores: u32 },
    Live(Live),
    Trajectory(TrajectoryRecord),
    Batch(BatchRecord),
    End { at_s: f64, granted_cores: f64 },
}

/// Runs the agent to its end. It is killed when this is dropped before.
pub(crate) async fn play(task: &Task<'_>, progress: &Progress) -> anyhow::Result<Played> {
    let errors = File::create(task.log).with_context(|| format!("{}", task.log.display()))?;
    let mut command = Command::new(task.python);
    command
        .arg(task.agent.join("agent.py"))
        .args(["--gateway", task.gateway, "--engine", task.engine, "--prefix", task.prefix])
        .arg("--queue")
        .arg(format!("unix:{}", task.queue.display()))
        .env("ROLLWRIGHT_API_KEY", task.key)
        .env("PYTHONPATH", task.client)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        // Ctrl-C is for us: we end it.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(edits) = task.edits {
        command.arg("--edits").arg(edits);
    }
    let mut child = command
        .args(task.packages)
        .spawn()
        .with_context(|| format!("{} cannot be started", task.python.display()))?;
    let stdout = child.stdout.take().context("the agent has no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let mut played =
        Played { cores: 0, granted_cores: 0.0, trajectories: Vec::new(), batches: Vec::new() };
    let mut ended = false;
    while let Some(line) = lines.next_line().await? {
        let line = serde_json::from_str(&line)
            .with_context(|| format!("the agent wrote a line of another form: {line}"))?;
        match line {
            Line::Begin { cores } => played.cores = cores,
            Line::Live(now) => progress.show(&now, played.cores),
            Line::Trajectory(record) => played.trajectories.push(record),
            Line::Batch(record) => played.batches.push(record),
            Line::End { at_s, granted_cores } => {
                played.granted_cores = granted_cores;
                progress.finish(at_s);
                ended = true;
            }
        }
    }
    let status = child.wait().await?;
    ensure!(status.success(), "the agent ended with {status}:\n{}", log_tail(task.log));
    if !ended {
        bail!("the agent ended before its trajectories did:\n{}", log_tail(task.log));
    }
    played.trajectories.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(played)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_agent_are_read_and_others_refused() {
        assert!(matches!(
            serde_json::from_str(r#"{"begin": {"cores": 2}}"#).unwrap(),
            Line::Begin { cores: 2 }
        ));
        assert!(serde_json::from_str::<Line>(r#"{"begin": {"cores": 2, "x": 1}}"#).is_err());
    }
}
