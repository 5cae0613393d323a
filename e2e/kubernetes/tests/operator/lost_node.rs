//! The node of queue, gateway and everything else is lost, and comes back; and what is on volumes
//! outlives a gateway's Deployment.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, install_release, succeed, until};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::migration;
use crate::support::{
    alone, apply, condition, controllers_ready, nothing_stays, pretend_gpus, rollout,
    turn_with_an_action,
};

#[test]
fn what_queue_and_gateway_accepted_is_there_when_their_node_is_back() -> anyhow::Result<()> {
    alone("node", async |namespace| {
        install_release(namespace.cluster()).await?;
        on_volumes(namespace, true).await?;
        pretend_gpus(namespace).await?;
        apply(namespace, include_str!("../../manifests/rollout.yaml")).await?;
        condition(namespace, "actionqueue/tools", "Ready").await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        let gateway = Http::gateway(namespace, "grpo").await?;
        let queue = Http::queue(namespace, "tools").await?;

        // A batch that is out, a scored group that nobody took, an end, and an action that runs.
        for group in ["out", "scored"] {
            scored(namespace, &gateway, &queue, group).await?;
            if group == "out" {
                ensure!(take(&gateway).await?["groups"][0]["id"] == "out");
            }
        }
        let open = json!({"trajectory_id": "t", "template": "box",
            "job": format!("{}.grpo", namespace.name())});
        queue.post("/v1/trajectories", &open).await?;
        // Never the same twice.
        let ended = action("ended", "cat /proc/sys/kernel/random/uuid");
        let end = queue.post("/v1/actions", &ended).await?;
        let running = action("running", "touch /tmp/runs; sleep 600");
        let (left, asked) = (queue.clone(), running.clone());
        let waits = tokio::spawn(async move { left.post("/v1/actions", &asked).await });
        until("the action runs", async || {
            let runs = queue.get("/v1/stats").await?["running"].clone();
            Ok(if runs == 1 { Ok(()) } else { Err(runs.to_string()) })
        })
        .await?;

        lose_the_node(namespace).await?;
        ensure!(waits.await?.is_err(), "the queue is gone");
        bring_it_back(namespace).await?;

        let gateway = Http::gateway(namespace, "grpo").await?;
        for group in ["out", "scored"] {
            let batch = take(&gateway).await?;
            ensure!(batch["groups"][0]["id"] == group, "{batch}");
            acknowledge(&gateway, &batch).await?;
        }
        let queue = Http::queue(namespace, "tools").await?;
        let again = queue.post("/v1/actions", &ended).await?;
        ensure!(again == end, "{again}, and before {end}");
        let fate = queue.post("/v1/actions", &running).await?.to_string();
        ensure!(fate.contains("\"infrastructure\""), "{fate}");
        rollout(namespace, &gateway, &queue, "after").await?;

        scored(namespace, &gateway, &queue, "migrated").await?;
        migration::into_a_deployment(namespace).await?;
        migration::becomes_a_stateful_set(namespace).await?;
        answers(namespace).await?;
        let batch = take(&gateway).await?;
        ensure!(batch["groups"][0]["id"] == "migrated", "{batch}");
        acknowledge(&gateway, &batch).await?;
        nothing_stays(namespace).await?;
        on_volumes(namespace, false).await
    })
}

fn action(id: &str, shell: &str) -> Value {
    json!({"action_id": id, "trajectory_id": "t", "command": {"shell": shell}})
}

async fn scored(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
    group: &str,
) -> anyhow::Result<()> {
    gateway.post("/rollout/v1/groups", &json!({"id": group, "payload": {}})).await?;
    for trajectory in [format!("{group}.0"), format!("{group}.1")] {
        turn_with_an_action(namespace, gateway, queue, &trajectory).await?;
    }
    Ok(())
}

async fn take(gateway: &Http) -> anyhow::Result<Value> {
    gateway.post("/rollout/v1/batches/take", &json!({"wait": 120})).await
}

async fn acknowledge(gateway: &Http, batch: &Value) -> anyhow::Result<()> {
    let id = batch["id"].as_u64().with_context(|| batch.to_string())?;
    gateway.post(&format!("/rollout/v1/batches/{id}/ack"), &json!({})).await?;
    Ok(())
}

/// Gives queues and gateways volumes, or takes them away again.
async fn on_volumes(namespace: &Namespace, volumes: bool) -> anyhow::Result<()> {
    let cluster = namespace.cluster();
    if volumes {
        let mut mkdir = Command::from(cluster.lease().command("mkdir"));
        let paths =
            ["0", "1"].map(|it| format!("/var/lib/kubelet/volumes/{}-{it}", namespace.name()));
        succeed(mkdir.arg("-p").args(paths)).await?;
        apply(namespace, include_str!("../../manifests/volumes.yaml")).await?;
    } else {
        let names = ["0", "1"].map(|it| format!("pv/{}-{it}", namespace.name()));
        let delete = [&["delete"][..], &names.each_ref().map(String::as_str)].concat();
        namespace.kubectl().run(&delete).await?;
    }
    let mut helm = cluster.program("/usr/bin/env");
    helm.args(["helm", "upgrade", "rollwright", "helm/rollwright", "--namespace", RELEASE])
        .args(["--reuse-values", "--set", "controllers.storageClass=node", "--set"])
        .arg(format!("controllers.ephemeralStorage={}", !volumes));
    succeed(&mut helm).await?;
    controllers_ready(cluster).await
}

/// The machine dies with all that runs on it, and its node is deleted.
async fn lose_the_node(namespace: &Namespace) -> anyhow::Result<()> {
    let lease = namespace.cluster().lease();
    lease.kill("kubelet")?;
    for everything in [
        "ctr tasks list -q | xargs -rn1 ctr tasks kill --all --signal SIGKILL",
        "docker ps -q | xargs -r docker kill",
    ] {
        let mut sh = Command::from(lease.command("sh"));
        succeed(sh.args(["-c", everything])).await?;
    }
    let kubectl = namespace.kubectl();
    kubectl.run(&["delete", "node", "kubelet-0"]).await?;
    // What Kubernetes does of itself in the next minute.
    let pods = ["delete", "pods", "--all", "--all-namespaces", "--force", "--grace-period=0"];
    namespace.cluster().kubectl().run(&pods).await?;
    until("queue and gateway wait for a node", async || {
        let pods = namespace.api::<Pod>().list(&ListParams::default()).await?;
        let waiting = pods.iter().filter(|pod| {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            ["grpo-gateway-0", "tools-queue-0"].contains(&name) && node.is_none()
        });
        let waiting = waiting.count();
        Ok(if waiting == 2 { Ok(()) } else { Err(format!("{waiting} of them")) })
    })
    .await
}

/// The machine is there again, empty but for its disks.
async fn bring_it_back(namespace: &Namespace) -> anyhow::Result<()> {
    namespace.cluster().lease().start("kubelet")?;
    until("the node is back", async || {
        Ok(pretend_gpus(namespace).await.map_err(|error| format!("{error:#}")))
    })
    .await?;
    answers(namespace).await
}

/// Waits until queue and gateway answer, and a worker can serve.
async fn answers(namespace: &Namespace) -> anyhow::Result<()> {
    until("gateway and queue answer", async || {
        let asked = async {
            Http::queue(namespace, "tools").await?.get("/v1/stats").await?;
            let status = Http::gateway(namespace, "grpo").await?.get("/rollout/v1/status").await?;
            let workers = status["workers"].as_array().cloned().unwrap_or_default();
            ensure!(workers.iter().any(|worker| worker["state"] == "ready"), "{status}");
            Ok(())
        };
        Ok(asked.await.map_err(|error: anyhow::Error| format!("{error:#}")))
    })
    .await
}
