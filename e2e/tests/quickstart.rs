//! The quickstart's program, told to end in the middle: its services are real, its agent is a
//! stand-in that opens a sandbox and waits.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bollard::Docker;
use bollard::query_parameters::ListContainersOptionsBuilder;
use rollwright_e2e::program::{init, program};
use rollwright_e2e::{docker, wait};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_mins(2);

/// Opens a sandbox as soon as the queue answers, then does nothing more.
const AGENT: &str = r#"
import argparse, http.client, json, socket, time

options = argparse.ArgumentParser()
for name in ("gateway", "engine", "prefix", "queue"):
    options.add_argument(f"--{name}")
told, _ = options.parse_known_args()
body = json.dumps({"trajectory_id": f"{told.prefix}-0", "template": "python"})
while True:
    queue = http.client.HTTPConnection("queue")
    queue.sock = socket.socket(socket.AF_UNIX)
    try:
        queue.sock.connect(told.queue.removeprefix("unix:"))
        queue.request("POST", "/v1/trajectories", body, {"content-type": "application/json"})
        if queue.getresponse().status == 200:
            break
    except OSError:
        pass
    time.sleep(0.05)
time.sleep(3600)
"#;

/// The recorded trajectories, with the stand-in for an agent and a sandbox that any machine has.
fn workload(dir: &Path) -> anyhow::Result<()> {
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
    let manifests = quickstart.join("manifests/action-level");
    let to = dir.join("manifests/one");
    std::fs::create_dir_all(&to)?;
    for file in ["job.yaml", "queue.yaml", "rewards.yaml"] {
        let text = std::fs::read_to_string(manifests.join(file))?;
        std::fs::write(to.join(file), text.replace("rollwright/quickstart:local", docker::IMAGE))?;
    }
    std::os::unix::fs::symlink(quickstart.join("edits"), dir.join("edits"))?;
    std::fs::copy(quickstart.join("trajectories.jsonl"), dir.join("trajectories.jsonl"))?;
    std::fs::create_dir(dir.join("agent"))?;
    Ok(std::fs::write(dir.join("agent/agent.py"), AGENT)?)
}

/// Sandboxes whose trajectory begins so.
async fn sandboxes(engine: &Docker, prefix: &str) -> anyhow::Result<usize> {
    let label = "rollwright.dev/trajectory";
    let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let labels = engine.list_containers(Some(options)).await?.into_iter();
    let labels = labels.filter_map(|container| container.labels?.remove(label));
    Ok(labels.filter(|trajectory| trajectory.starts_with(prefix)).count())
}

/// A process: its id, and when it was started, so that no later one is taken for it.
type Process = (u32, String);

/// The process of an id with its parent.
fn process(pid: u32) -> Option<(Process, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, parent, and as the 20th the start.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(((pid, (*fields.get(19)?).to_owned()), fields.get(1)?.parse().ok()?))
}

/// Children of a process.
fn children(parent: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all = pids.filter_map(process).filter(|(_, of)| *of == parent);
    all.map(|(process, _)| process).collect()
}

#[tokio::test]
async fn sigterm_to_the_quickstart_leaves_no_child_and_no_sandbox() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("rwq-").tempdir_in("/tmp")?;
    workload(dir.path())?;
    let log = dir.path().join("log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let mut quickstart = Command::new(program("rollwright-quickstart")?)
        .args(["--python", "python3", "--policies", "one", "--workload"])
        .arg(dir.path())
        .arg("--init")
        .arg(init()?)
        .arg("--out")
        .arg(dir.path().join("out"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log)?)
        .kill_on_drop(true)
        .spawn()?;
    let pid = quickstart.id().context("it has ended")?;
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    let prefix = format!("quickstart-{pid}-");
    wait::until("the agent has its sandbox", LIMIT, async || {
        ensure!(quickstart.try_wait()?.is_none(), "it ended: {}", said());
        Ok(sandboxes(&engine, &prefix).await? == 1)
    })
    .await?;
    let started = children(pid);
    ensure!(started.len() == 3, "engine-sim, standalone and the agent: {started:?}");

    let told = Command::new("kill").arg(pid.to_string()).status().await?;
    ensure!(told.success());
    let ended = tokio::time::timeout(LIMIT, quickstart.wait()).await;
    let status = ended.context("it does not stop")??;
    ensure!(!status.success() && said().contains("ended by SIGTERM"), "{status}: {}", said());
    ensure!(sandboxes(&engine, &prefix).await? == 0, "a sandbox is left");
    wait::until("every child is gone", LIMIT, async || {
        let alive = |child: &Process| process(child.0).is_some_and(|(now, _)| now == *child);
        Ok(!started.iter().any(alive))
    })
    .await
}
