//! The quickstart's rollout on the cluster: its recorded trajectories over real packages, played by
//! its own agent through the cluster's gateway and queue, with workers that go meanwhile. What
//! Prometheus and the dashboards make of it is looked at in the same run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use rollwright_e2e_kubernetes::{
    Cluster, Http, Namespace, install_release, pod_image, succeed, to_sandboxes, until,
};
use rollwright_quickstart::{script, workload};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::observability::{Prometheus, faults_and_updates};
use crate::support::{alone, condition, nothing_stays, pretend_gpus, ready_workers, scale_job};

/// The job, and its queue.
const JOB: &str = "quickstart";
/// Packages of the six.
const GROUPS: usize = 2;
/// Rewards of the recorded trajectories, in the order of their numbers: those of `make quickstart`.
const REWARDS: [(&str, [f64; 4]); GROUPS] =
    [("boltons", [1.0, 1.0, 0.0, 0.0]), ("marshmallow", [1.0, 0.0, 0.0, 0.0])];
/// Factor on the recorded think times, as in `make quickstart`.
const THINK_SCALE: f64 = 0.3;
/// Start of the ids of groups and trajectories.
const PREFIX: &str = "cluster";
const ENGINE: &str = "rollwright/engine-sim:quickstart";
const SCRIPT: &str = "/var/lib/script.jsonl";

#[test]
fn the_quickstarts_rollout_runs_on_the_cluster_and_shows_in_every_panel() -> anyhow::Result<()> {
    alone(JOB, async |namespace| {
        let cluster = namespace.cluster();
        install_release(cluster).await?;
        images(cluster).await?;
        pretend_gpus(namespace).await?;
        namespace.kubectl().apply(&documents(namespace)?).await?;
        condition(namespace, "actionqueue/quickstart", "Ready").await?;
        condition(namespace, "rolloutjob/quickstart", "Ready").await?;
        let gateway = Http::gateway_by_account(namespace, JOB).await?;
        let queue = Http::queue(namespace, JOB).await?;
        let prometheus = Prometheus::start(namespace).await?;
        let (lines, ()) =
            tokio::try_join!(play(namespace, &gateway, &queue), workers_go(namespace, &gateway))?;
        everything_is_scored(&lines)?;
        nothing_is_lost(namespace, &gateway).await?;
        faults_and_updates(namespace, JOB, &gateway, &queue).await?;
        prometheus.shows_everything(["--without", "rollwright_gpu_"]).await?;
        nothing_stays(namespace).await
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An engine that plays the recordings, and the sandboxes' image.
async fn images(cluster: &Cluster) -> anyhow::Result<()> {
    let trajectories = workload::load(&root().join("examples/quickstart"), GROUPS)?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, script::lines(PREFIX, &trajectories))?;
    // Read by a user without rights.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    pod_image(cluster, ENGINE, "rollwright/engine-sim:e2e", file.path(), SCRIPT).await?;
    succeed(&mut cluster.outside("examples/quickstart/image.sh")).await?;
    to_sandboxes(cluster, "rollwright/quickstart:local").await
}

/// The quickstart's manifests with this cluster's nodes and engines.
fn documents(namespace: &Namespace) -> anyhow::Result<String> {
    let mut all = Vec::new();
    for file in ["queue", "job", "rewards"] {
        let path = root().join(format!("examples/quickstart/manifests/action-level/{file}.yaml"));
        for text in fs::read_to_string(path)?.split("\n---\n") {
            let mut document: Value = serde_yaml::from_str(text)?;
            on_this_cluster(&mut document, namespace.name());
            all.push(document.to_string());
        }
    }
    Ok(all.join("\n---\n"))
}

fn on_this_cluster(document: &mut Value, namespace: &str) {
    let node = json!({"kubernetes.io/hostname": "kubelet-0"});
    let [engines, sandboxes] = ["engines", "sandboxes"].map(|pool| format!("{namespace}-{pool}"));
    match document["kind"].as_str() {
        Some("ResourcePool") if document["spec"]["gpu"].is_object() => {
            document["metadata"]["name"] = json!(engines);
            document["spec"]["gpu"]["nodeSelector"] = node;
            document["spec"]["gpu"]["gpusPerNode"] = json!(8);
        }
        Some("ResourcePool") => {
            document["metadata"]["name"] = json!(sandboxes);
            // As in rollout.yaml: the whole cluster lives on the node.
            document["spec"]["cpu"] = json!({"nodeSelector": node, "docker": "Host",
                "reservedCores": 0, "reservedMemory": "2Gi"});
        }
        kind => {
            if kind == Some("ActionQueue") {
                document["spec"]["pools"] = json!([sandboxes]);
                let broken = json!({"name": "broken", "image": "rollwright/none:local",
                    "pull": false, "memory": "64Mi"});
                if let Some(all) = document["spec"]["templates"].as_array_mut() {
                    all.push(broken);
                }
            } else if kind == Some("RolloutJob") {
                let step_ms = script::step_ms(THINK_SCALE);
                document["spec"]["engine"]["image"] = json!(ENGINE);
                document["spec"]["engine"]["env"] = json!({"ENGINE_SIM":
                    format!("--script {SCRIPT} --step-ms {step_ms} --max-model-len 131072")});
                let group = json!({"pool": engines, "degree": 1, "workers": 2});
                document["spec"]["allocation"]["fixed"]["groups"] = json!([group]);
            }
            document["metadata"]["namespace"] = json!(namespace);
        }
    }
}

/// Runs the quickstart's agent to its end, and returns what it told.
async fn play(namespace: &Namespace, gateway: &Http, queue: &Http) -> anyhow::Result<Vec<Value>> {
    let cluster = namespace.cluster();
    let venv = cluster.outside("examples/quickstart/agent/venv.sh").output().await?;
    let said = String::from_utf8_lossy(&venv.stderr);
    ensure!(venv.status.success(), "no Python for the agent: {said}");
    let python = String::from_utf8(venv.stdout)?;
    let agent = Command::new(python.trim())
        .arg(root().join("examples/quickstart/agent/agent.py"))
        .args(["--gateway", gateway.base(), "--queue", queue.base(), "--prefix", PREFIX])
        .args(["--job", &format!("{}.{JOB}", namespace.name())])
        .args(REWARDS.map(|(package, _)| package))
        .env("ROLLWRIGHT_API_KEY", gateway.token())
        .env("PYTHONPATH", root().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("the agent")?;
    let said = String::from_utf8_lossy(&agent.stderr);
    ensure!(agent.status.success(), "the agent ended with {}: {said}", agent.status);
    let lines = std::str::from_utf8(&agent.stdout)?.lines();
    lines.map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

/// While both workers generate one is drained, and then the other one is killed.
async fn workers_go(namespace: &Namespace, gateway: &Http) -> anyhow::Result<()> {
    generating(gateway, 2).await?;
    scale_job(namespace, JOB, 1).await?;
    let last = until("one worker is left", async || {
        let mut workers = ready_workers(namespace).await?;
        let last = workers.pop().and_then(|pod| pod.metadata.name);
        Ok(last.filter(|_| workers.is_empty()).ok_or_else(|| format!("{} more", workers.len())))
    })
    .await?;
    generating(gateway, 1).await?;
    let delete = ["delete", "pod", &last, "--grace-period=0", "--force"];
    namespace.kubectl().run(&delete).await?;
    Ok(())
}

/// Waits until so many workers generate.
async fn generating(gateway: &Http, wanted: usize) -> anyhow::Result<()> {
    until(&format!("{wanted} workers generate"), async || {
        let status = gateway.get("/rollout/v1/status").await?;
        let workers = status["workers"].as_array().cloned().unwrap_or_default();
        let busy = workers.iter().filter(|worker| worker["running"].as_u64() > Some(0)).count();
        Ok(if busy >= wanted { Ok(()) } else { Err(status.to_string()) })
    })
    .await
}

/// Every trajectory that was recorded has its reward, and no other was needed in its place.
fn everything_is_scored(lines: &[Value]) -> anyhow::Result<()> {
    let rewards: BTreeMap<_, _> = lines
        .iter()
        .filter_map(|line| line.get("trajectory"))
        .map(|of| (of["id"].as_str().unwrap_or_default(), (&of["reward"], &of["fault"])))
        .collect();
    let expected: Vec<_> = REWARDS
        .iter()
        .flat_map(|(package, rewards)| {
            rewards.iter().enumerate().map(move |(number, reward)| {
                (format!("{PREFIX}-{package}.{number}"), json!(reward))
            })
        })
        .collect();
    let all = expected.iter().map(|(id, reward)| (id.as_str(), (reward, &Value::Null)));
    ensure!(rewards == all.collect(), "{rewards:#?}");
    let batches: Vec<_> = lines.iter().filter_map(|line| line.get("batch")).collect();
    let taken: u64 = batches.iter().filter_map(|batch| batch["trajectories"].as_u64()).sum();
    ensure!(taken as usize == expected.len(), "the trainer got {batches:?}");
    Ok(())
}

/// Nothing failed at the gateway, and no sandbox is left on the node.
async fn nothing_is_lost(namespace: &Namespace, gateway: &Http) -> anyhow::Result<()> {
    let status = gateway.get("/rollout/v1/status").await?;
    ensure!(status["kept_fraction"] == json!(1.0) && status["groups_open"] == 0, "{status}");
    until("no sandbox is left", async || {
        let mut docker = Command::from(namespace.cluster().lease().command("docker"));
        let filter = ["ps", "-aq", "--filter", "label=rollwright.dev/managed=sandbox"];
        let left = String::from_utf8(docker.args(filter).output().await?.stdout)?;
        Ok(if left.is_empty() { Ok(()) } else { Err(left) })
    })
    .await
}
