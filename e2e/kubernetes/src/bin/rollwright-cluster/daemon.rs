//! One daemon: started, started again when it ends by itself, stopped on demand.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// How long after its end a daemon is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// The order to stop or start it, and where to say that this is done.
struct Order {
    up: bool,
    done: oneshot::Sender<()>,
}

/// A daemon under supervision.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: &'static str,
    orders: mpsc::Sender<Order>,
}

impl Daemon {
    /// Starts it; its output goes to `NAME.log` in `logs`.
    pub(crate) fn start(line: &'static str, logs: &Path) -> anyhow::Result<Self> {
        let name = line.split_whitespace().next().context("a daemon without a name")?;
        let log = File::create(logs.join(format!("{name}.log")))?;
        let (orders, inbox) = mpsc::channel(4);
        tokio::spawn(async move {
            if let Err(error) = supervise(line, &log, inbox).await {
                eprintln!("{name}: {error:#}");
            }
        });
        Ok(Self { name, orders })
    }

    /// The name of its program.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// Kills it and leaves it down, or starts it again; returns when that is done.
    pub(crate) async fn set_up(&self, up: bool) -> anyhow::Result<()> {
        let (done, was_done) = oneshot::channel();
        if self.orders.send(Order { up, done }).await.is_err() || was_done.await.is_err() {
            bail!("{} is no longer looked after: see its log", self.name);
        }
        Ok(())
    }
}

async fn supervise(line: &str, log: &File, mut inbox: mpsc::Receiver<Order>) -> anyhow::Result<()> {
    let mut child = Some(spawn(line, log)?);
    loop {
        let order = match &mut child {
            Some(running) => tokio::select! {
                order = inbox.recv() => order,
                status = running.wait() => {
                    eprintln!("{line}: ended ({})", status?);
                    sleep(AGAIN).await;
                    child = Some(spawn(line, log)?);
                    continue;
                }
            },
            None => inbox.recv().await,
        };
        let Some(Order { up, done }) = order else { return Ok(()) };
        if up && child.is_none() {
            child = Some(spawn(line, log)?);
        } else if !up && let Some(mut running) = child.take() {
            running.kill().await?;
        }
        // Who asked may be gone.
        let _ = done.send(());
    }
}

fn spawn(line: &str, log: &File) -> anyhow::Result<Child> {
    let mut words = line.split_whitespace();
    let program = words.next().context("a daemon without a name")?;
    Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .spawn()
        .with_context(|| format!("could not start {program}"))
}
