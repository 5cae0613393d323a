//! Brings the cluster up inside its namespaces and holds it while somebody has a lease.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, interval, timeout};

use crate::daemon::Daemon;
use crate::daemons::{
    API_SERVER, CONTAINERD, CONTROLLER_MANAGER, DNS, DOCKER, ETCD, KUBELET, PROXY, SCHEDULER,
    answers,
};

/// How long a cluster without users stays up: the next test program may be about to start.
const LINGER: Duration = Duration::from_secs(20);
/// How long one daemon may take to answer.
const UP: Duration = Duration::from_mins(5);

/// `None` while the cluster comes up, then whether it did.
type Outcome = Option<Result<(), String>>;

/// Serves until nobody has had a lease for a while, or the cluster did not come up.
pub(crate) fn run(state: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = UnixListener::bind(state.join("socket"))?;
        let (told, outcome) = watch::channel::<Outcome>(None);
        let daemons = Arc::new(Daemons::default());
        let started = tokio::spawn({
            let (daemons, state) = (Arc::clone(&daemons), state.to_owned());
            async move {
                let up = daemons.bring_up(&state).await;
                let up =
                    up.map_err(|error| format!("{error:#}: see {}", state.join("logs").display()));
                told.send_replace(Some(up));
                // Kept, so that whoever comes later sees it too.
                told.closed().await;
            }
        });
        let users = watch::Sender::new(0_u32);
        let outcome = lend(&listener, &users, &outcome, &daemons).await;
        started.abort();
        outcome
    })
}

/// Accepts leases until there are none any more.
async fn lend(
    listener: &UnixListener,
    users: &watch::Sender<u32>,
    outcome: &watch::Receiver<Outcome>,
    daemons: &Arc<Daemons>,
) -> anyhow::Result<()> {
    let mut count = users.subscribe();
    loop {
        let idle = *count.borrow_and_update() == 0;
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                users.send_modify(|users| *users += 1);
                let (users, outcome) = (users.clone(), outcome.clone());
                let daemons = Arc::clone(daemons);
                tokio::spawn(async move {
                    if let Err(error) = lease(stream, outcome, &daemons).await {
                        eprintln!("a lease: {error:#}");
                    }
                    users.send_modify(|users| *users -= 1);
                });
            }
            changed = count.changed() => changed?,
            () = tokio::time::sleep(LINGER), if idle => return Ok(()),
        }
        if let Some(Err(error)) = &*outcome.borrow()
            && *count.borrow() == 0
        {
            bail!("{error}");
        }
    }
}

/// One lease: says when the cluster is up, then does what is asked, until the other side ends.
async fn lease(
    stream: UnixStream,
    mut outcome: watch::Receiver<Outcome>,
    daemons: &Daemons,
) -> anyhow::Result<()> {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    let up = outcome.wait_for(Option::is_some).await?.clone();
    let mut answer = up.context("an outcome")?;
    loop {
        let text = answer.as_ref().map_or_else(|error| one_line(error), |()| "ok".to_owned());
        output.write_all(format!("{text}\n").as_bytes()).await?;
        let Some(line) = lines.next_line().await? else { return Ok(()) };
        answer = daemons.obey(&line).await.map_err(|error| format!("{error:#}"));
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', "; ")
}

/// All daemons that were started.
#[derive(Debug, Default)]
struct Daemons {
    all: tokio::sync::Mutex<Vec<Daemon>>,
}

impl Daemons {
    async fn bring_up(&self, state: &Path) -> anyhow::Result<()> {
        let start = async |lines: &[&'static str]| -> anyhow::Result<()> {
            for line in lines {
                self.all.lock().await.push(Daemon::start(line, &state.join("logs"))?);
            }
            Ok(())
        };
        start(&[ETCD, CONTAINERD, API_SERVER]).await?;
        succeeds(answers::CONTAINERD).await?;
        start(&[DOCKER]).await?;
        for image in fs::read_dir(state.join("images"))? {
            let path = image?.path();
            succeeds(&format!("ctr --namespace=k8s.io images import {}", path.display())).await?;
        }
        succeeds(answers::API_SERVER).await?;
        start(&[CONTROLLER_MANAGER, SCHEDULER, KUBELET, PROXY, DNS]).await?;
        succeeds("kubectl apply --server-side --filename=/etc/kubernetes/rbac.yaml").await?;
        succeeds(answers::NODE).await?;
        // Pods are refused before their namespace has it.
        succeeds(answers::SERVICE_ACCOUNT).await?;
        succeeds(answers::DNS).await?;
        succeeds(answers::DOCKER).await
    }

    /// `kill NAME` or `start NAME`.
    async fn obey(&self, line: &str) -> anyhow::Result<()> {
        let (order, name) = line.split_once(' ').context("kill NAME or start NAME")?;
        ensure!(matches!(order, "kill" | "start"), "no such order: {order}");
        let all = self.all.lock().await;
        let daemon = all.iter().find(|daemon| daemon.name() == name);
        let daemon = daemon.with_context(|| format!("no such daemon: {name}"))?;
        daemon.set_up(order == "start").await
    }
}

/// Runs a command again and again until it succeeds.
async fn succeeds(line: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + UP;
    let mut pace = interval(Duration::from_millis(200));
    loop {
        pace.tick().await;
        let mut words = line.split_whitespace();
        let program = words.next().context("a command")?;
        let command =
            Command::new(program).args(words).stdin(Stdio::null()).kill_on_drop(true).output();
        let said = match timeout(Duration::from_mins(1), command).await {
            Ok(output) => {
                let output = output.with_context(|| program.to_owned())?;
                if output.status.success() {
                    return Ok(());
                }
                String::from_utf8_lossy(&output.stderr).into_owned()
            }
            Err(_) => "no answer within a minute".to_owned(),
        };
        ensure!(Instant::now() < deadline, "not within {UP:?}: {line}: {}", said.trim_end());
    }
}
