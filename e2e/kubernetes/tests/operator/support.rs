//! A queue and a job that are ready, and what a trainer and agents do with them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Cluster, Http, Namespace, RELEASE, install_release, test, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Gives the node GPUs that are not there.
pub(crate) async fn pretend_gpus(namespace: &Namespace) -> anyhow::Result<()> {
    let patch = r#"{"status":{"capacity":{"nvidia.com/gpu":"8"}}}"#;
    let arguments = ["patch", "node", "kubelet-0", "--subresource=status", "--type=merge"];
    namespace.kubectl().run(&[&arguments[..], &["--patch", patch]].concat()).await?;
    Ok(())
}

/// Waits until the controllers run as they were last installed.
pub(crate) async fn controllers_ready(cluster: &Cluster) -> anyhow::Result<()> {
    let deployment = "deployment/rollwright-controllers";
    let system = cluster.kubectl().namespace(RELEASE);
    system.run(&["rollout", "status", deployment, "--timeout=5m"]).await?;
    Ok(())
}

/// The release runs, and the node has GPUs that are not there.
pub(crate) async fn installed(namespace: &Namespace) -> anyhow::Result<()> {
    install_release(namespace.cluster()).await?;
    controllers_ready(namespace.cluster()).await?;
    pretend_gpus(namespace).await
}

pub(crate) async fn apply(namespace: &Namespace, documents: &str) -> anyhow::Result<()> {
    namespace.kubectl().apply(&documents.replace("NAMESPACE", namespace.name())).await?;
    Ok(())
}

/// Waits until an object has a condition.
pub(crate) async fn condition(
    namespace: &Namespace,
    object: &str,
    condition: &str,
) -> anyhow::Result<()> {
    until(&format!("{object} is {condition}"), async || {
        let text = namespace.kubectl().run(&["get", object, "--output=json"]).await?;
        let object: Value = serde_json::from_str(&text)?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let holds = conditions.iter().any(|it| it["type"] == condition && it["status"] == "True");
        Ok(if holds { Ok(()) } else { Err(object["status"].to_string()) })
    })
    .await
}

pub(crate) async fn ready_workers(namespace: &Namespace) -> anyhow::Result<Vec<Pod>> {
    let workers = ListParams::default().labels("app.kubernetes.io/component=worker");
    let mut pods = namespace.api::<Pod>().list(&workers).await?.items;
    pods.retain(|pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    });
    Ok(pods)
}

/// The node's sandboxes belong to one queue at a time, and one test takes the API server away:
/// each has the cluster for itself.
pub(crate) fn alone(
    name: &str,
    body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // One that failed before leaves nothing half done that matters here.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    test(name, body)
}

/// Runs a test with a queue and a job that are ready, and looks that nothing of them stays.
pub(crate) fn with_job(
    name: &str,
    body: impl AsyncFnOnce(&Namespace, &Http, &Http) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone(name, async |namespace| {
        installed(namespace).await?;
        apply(namespace, include_str!("../../manifests/rollout.yaml")).await?;
        condition(namespace, "actionqueue/tools", "Ready").await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        let gateway = Http::gateway(namespace, "grpo").await?;
        let queue = Http::queue(namespace, "tools").await?;
        body(namespace, &gateway, &queue).await?;
        nothing_stays(namespace).await
    })
}

/// Deletes what was applied; what was made of it goes by itself.
pub(crate) async fn nothing_stays(namespace: &Namespace) -> anyhow::Result<()> {
    let kubectl = namespace.kubectl();
    let all = "rolloutjobs,rewardservices,actionqueues";
    kubectl.run(&["delete", all, "--all", "--timeout=5m"]).await?;
    until("no pod is left", async || {
        let pods = namespace.api::<Pod>().list(&ListParams::default()).await?;
        let names: Vec<_> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
        Ok(if names.is_empty() { Ok(()) } else { Err(names.join(", ")) })
    })
    .await?;
    until("the node is no longer the pool's", async || {
        let node = Api::<Node>::all(namespace.client()).get("kubelet-0").await?;
        let mut labels = node.metadata.labels.unwrap_or_default();
        let pool = ["rollwright.dev/pool", "rollwright.dev/gpu-pool"];
        Ok(pool.iter().find_map(|label| labels.remove(*label)).map_or(Ok(()), Err))
    })
    .await?;
    let pools = kubectl.run(&["get", "resourcepools", "--output=name"]).await?;
    for pool in pools.lines().filter(|pool| pool.contains(namespace.name())) {
        // Refused for as long as it is bound.
        until("the pool is free", async || {
            let output = kubectl.output(&["delete", pool], "").await?;
            let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(if output.status.success() { Ok(()) } else { Err(refusal) })
        })
        .await?;
    }
    Ok(())
}

pub(crate) async fn scale(namespace: &Namespace, workers: u32) -> anyhow::Result<()> {
    scale_job(namespace, "grpo", workers).await
}

pub(crate) async fn scale_job(
    namespace: &Namespace,
    job: &str,
    workers: u32,
) -> anyhow::Result<()> {
    let field = "/spec/allocation/fixed/groups/0/workers";
    let change = json!([{"op": "replace", "path": field, "value": workers}]).to_string();
    let patch = ["patch", "rolloutjob", job, "--type=json", "--patch", &change];
    namespace.kubectl().run(&patch).await?;
    Ok(())
}

/// The pods of the namespace with how often their containers began.
pub(crate) async fn instances(namespace: &Namespace) -> anyhow::Result<BTreeSet<(String, i32)>> {
    let pods = namespace.api::<Pod>().list(&ListParams::default()).await?;
    let restarts = |pod: &Pod| {
        let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        containers.into_iter().flatten().map(|container| container.restart_count).sum()
    };
    Ok(pods
        .into_iter()
        .map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), restarts(&pod)))
        .collect())
}

/// A group of two trajectories, from the prompt to the batch.
pub(crate) async fn rollout(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
    group: &str,
) -> anyhow::Result<()> {
    gateway.post("/rollout/v1/groups", &json!({"id": group, "payload": {"q": "6 x 7"}})).await?;
    for trajectory in [format!("{group}.0"), format!("{group}.1")] {
        turn_with_an_action(namespace, gateway, queue, &trajectory).await?;
    }
    let batch = gateway.post("/rollout/v1/batches/take", &json!({"wait": 120})).await?;
    let groups = batch["groups"].as_array().context("no groups")?;
    ensure!(groups.len() == 1 && groups[0]["id"] == group, "{batch}");
    let id = batch["id"].as_u64().with_context(|| batch.to_string())?;
    gateway.post(&format!("/rollout/v1/batches/{id}/ack"), &json!({})).await?;
    Ok(())
}

/// A turn of about 10 s; the simulator answers the same prompt with the same tokens always.
pub(crate) async fn long_turn(gateway: &Http, trajectory: &str) -> anyhow::Result<Value> {
    let chat = json!({"model": "engine-sim", "max_tokens": 400, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Count to 400."}]});
    let path = format!("/t/{trajectory}/v1/chat/completions");
    let reply = gateway.post(&path, &chat).await?;
    Ok(json!([reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]]))
}

/// Starts turns of the group `long` and waits until each worker has some of them.
pub(crate) async fn turns_on_both_workers(
    namespace: &Namespace,
    gateway: &Http,
    trajectories: Range<u32>,
) -> anyhow::Result<JoinSet<anyhow::Result<Value>>> {
    let gateway = Arc::new(gateway.clone());
    let mut turns = JoinSet::new();
    for trajectory in trajectories {
        let gateway = Arc::clone(&gateway);
        turns.spawn(async move { long_turn(&gateway, &format!("long.{trajectory}")).await });
    }
    until("both workers generate", async || {
        let status = gateway.get("/rollout/v1/status").await?;
        let workers = status["workers"].as_array().cloned().unwrap_or_default();
        let busy = workers.iter().filter(|worker| worker["running"].as_u64() > Some(0)).count();
        Ok(if busy == 2 { Ok(()) } else { Err(status.to_string()) })
    })
    .await?;
    ensure!(ready_workers(namespace).await?.len() == 2, "two workers are ready");
    Ok(turns)
}

/// Generates, runs an action in a sandbox, and is scored.
pub(crate) async fn turn_with_an_action(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
    trajectory: &str,
) -> anyhow::Result<()> {
    let chat = json!({"model": "engine-sim", "max_tokens": 8,
        "messages": [{"role": "user", "content": "6 x 7?"}]});
    let reply = gateway.post(&format!("/t/{trajectory}/v1/chat/completions"), &chat).await?;
    ensure!(reply["choices"][0]["message"]["content"].is_string(), "{reply}");
    let job = format!("{}.grpo", namespace.name());
    queue
        .post(
            "/v1/trajectories",
            &json!({"trajectory_id": trajectory, "job": job, "template": "box"}),
        )
        .await?;
    let action = json!({"action_id": format!("{trajectory}-1"), "trajectory_id": trajectory,
        "command": {"shell": "echo $((6 * 7))"}});
    let end = queue.post("/v1/actions", &action).await?;
    ensure!(end.to_string().contains("\"exit_code\":0"), "{end}");
    queue.delete(&format!("/v1/trajectories/{trajectory}")).await?;
    let reward = json!({"reward": 1});
    gateway.post(&format!("/rollout/v1/trajectories/{trajectory}/complete"), &reward).await?;
    Ok(())
}
