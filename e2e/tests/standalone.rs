//! `rollwright standalone`: one process, from manifests, on real Docker.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{Client, shell};
use rollwright_e2e::program::{init, program};
use rollwright_e2e::rewards::{Calls, Service, documents, engines_below};
use rollwright_e2e::{docker, wait};
use tokio::process::{Child, Command};

const LIMIT: Duration = Duration::from_mins(1);

/// Two runs of the tests at once do not meet.
fn node() -> String {
    format!("standalone-{}", std::process::id())
}

fn standalone(state: &Path, manifests: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(program("rollwright")?);
    command
        .args(["standalone", "--node", &node(), "--filename"])
        .arg(manifests)
        .arg("--socket")
        .arg(state.join("queue.sock"))
        .arg("--state-dir")
        .arg(state)
        .arg("--init")
        .arg(init()?)
        .args(["--metrics-addr", "127.0.0.1:0", "--agent-metrics-addr", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples/standalone")
}

async fn until_ready(child: &mut Child, socket: &Path) -> anyhow::Result<Client> {
    wait::until("standalone has its node", LIMIT, async || {
        ensure!(child.try_wait()?.is_none(), "standalone ended");
        let Ok(mut client) = Client::connect(socket).await else { return Ok(false) };
        Ok(client.stats().await.is_ok_and(|stats| stats.nodes.iter().any(|node| node.connected)))
    })
    .await?;
    Client::connect(socket).await
}

#[tokio::test]
async fn ctrl_c_stops_it_cleanly_and_leaves_no_container() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("rws-").tempdir_in("/tmp")?;
    let socket = dir.path().join("queue.sock");
    let mut child = standalone(dir.path(), &samples())?.spawn()?;
    let mut client = until_ready(&mut child, &socket).await?;
    client.open("t", "busybox").await?;
    let run = client.run(shell("a", "t", "echo $ROLLWRIGHT_CPUS")).await?;
    ensure!(run.text() == "1\n", "{run:?}");
    let _running = client.submit(shell("long", "t", "sleep 1000")).await?;

    let pid = child.id().context("it has ended")?;
    Command::new("kill").args(["-INT", &pid.to_string()]).status().await?;
    let status = tokio::time::timeout(LIMIT, child.wait()).await.context("it does not stop")??;
    ensure!(status.success(), "it stopped with {status}");
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    ensure!(docker::sandboxes(&engine, &node()).await?.is_empty(), "a container is left");
    ensure!(!socket.exists(), "the socket is left");
    Ok(())
}

#[tokio::test]
async fn a_wrong_manifest_is_refused_with_its_path_and_a_remedy() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("rws-").tempdir_in("/tmp")?;
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests)?;
    let text = std::fs::read_to_string(samples().join("queue.yaml"))?;
    std::fs::write(manifests.join("queue.yaml"), text.replace("memory: 64Mi", "memori: 64Mi"))?;
    std::fs::copy(samples().join("pools.yaml"), manifests.join("pools.yaml"))?;
    let output = standalone(dir.path(), &manifests)?.output().await?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success());
    ensure!(error.contains("spec.templates[0].memori"), "{error}");
    ensure!(error.contains("memory"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_serves_reward_models_beside_sandboxes() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("rws-").tempdir_in("/tmp")?;
    let manifests = dir.path().join("manifests");
    std::fs::create_dir(&manifests)?;
    let text = std::fs::read_to_string(samples().join("queue.yaml"))?;
    let with_gpus = text.replace("pools: [local, apis]", "pools: [local, apis, judges]");
    std::fs::write(manifests.join("queue.yaml"), with_gpus)?;
    std::fs::copy(samples().join("pools.yaml"), manifests.join("pools.yaml"))?;
    let judge = Service::new("judge", &[1]);
    std::fs::write(manifests.join("rewards.yaml"), documents("local", &[judge], dir.path())?)?;
    let policy = dir.path().join("policy.yaml");
    std::fs::write(&policy, "engines: {programs: [\"*\"], env: [ROLLWRIGHT_TEST]}\n")?;

    let mut child = standalone(dir.path(), &manifests)?
        .args(["--fake-gpus", "2:80Gi", "--engine-memory-mib", "4096", "--policy"])
        .arg(&policy)
        .spawn()?;
    let socket = dir.path().join("queue.sock");
    let mut client = until_ready(&mut child, &socket).await?;
    let calls = Calls::connect(&socket).await?;
    let answer = calls.complete("a", "judge", 3).await?;
    ensure!(answer.status == 200 && answer.node == node(), "{answer:?}");
    let pool = calls.pool().await?;
    ensure!(pool.fake && pool.gpus == 2, "{pool:?}");
    client.open("t", "busybox").await?;
    let run = client.run(shell("b", "t", "echo beside")).await?;
    ensure!(run.text() == "beside\n", "{run:?}");

    let pid = child.id().context("it has ended")?;
    Command::new("kill").args(["-INT", &pid.to_string()]).status().await?;
    let status = tokio::time::timeout(LIMIT, child.wait()).await.context("it does not stop")??;
    ensure!(status.success(), "it stopped with {status}");
    ensure!(engines_below(dir.path()).is_empty(), "an engine is left");
    Ok(())
}
