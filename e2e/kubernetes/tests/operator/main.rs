//! The whole product on the cluster: the chart, a queue with sandboxes on the node's Docker, a
//! job with engines as pods (which are simulators), and a rollout through both.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, install_release, test, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Gives the node GPUs that are not there.
async fn pretend_gpus(namespace: &Namespace) -> anyhow::Result<()> {
    let patch = r#"{"status":{"capacity":{"nvidia.com/gpu":"8"}}}"#;
    let arguments = ["patch", "node", "kubelet-0", "--subresource=status", "--type=merge"];
    namespace.kubectl().run(&[&arguments[..], &["--patch", patch]].concat()).await?;
    Ok(())
}

async fn apply(namespace: &Namespace, documents: &str) -> anyhow::Result<()> {
    namespace.kubectl().apply(&documents.replace("NAMESPACE", namespace.name())).await?;
    Ok(())
}

/// Waits until an object has a condition.
async fn condition(namespace: &Namespace, object: &str, condition: &str) -> anyhow::Result<()> {
    until(&format!("{object} is {condition}"), async || {
        let text = namespace.kubectl().run(&["get", object, "--output=json"]).await?;
        let object: Value = serde_json::from_str(&text)?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let holds = conditions.iter().any(|it| it["type"] == condition && it["status"] == "True");
        Ok(if holds { Ok(()) } else { Err(object["status"].to_string()) })
    })
    .await
}

async fn ready_workers(namespace: &Namespace) -> anyhow::Result<Vec<Pod>> {
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
fn alone(
    name: &str,
    body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // One that failed before leaves nothing half done that matters here.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    test(name, body)
}

/// Runs a test with a queue and a job that are ready, and looks that nothing of them stays.
fn with_job(
    name: &str,
    body: impl AsyncFnOnce(&Namespace, &Http, &Http) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone(name, async |namespace| {
        install_release(namespace.cluster()).await?;
        let system = namespace.cluster().kubectl().namespace(RELEASE);
        let deployment = "deployment/rollwright-controllers";
        system.run(&["rollout", "status", deployment, "--timeout=5m"]).await?;
        pretend_gpus(namespace).await?;
        apply(namespace, include_str!("../manifests/rollout.yaml")).await?;
        condition(namespace, "actionqueue/tools", "Ready").await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        let gateway = Http::gateway(namespace, "grpo").await?;
        let queue = Http::queue(namespace, "tools").await?;
        body(namespace, &gateway, &queue).await?;
        nothing_stays(namespace).await
    })
}

/// Deletes what was applied; what was made of it goes by itself.
async fn nothing_stays(namespace: &Namespace) -> anyhow::Result<()> {
    let kubectl = namespace.kubectl();
    kubectl.run(&["delete", "rolloutjobs,actionqueues", "--all", "--timeout=5m"]).await?;
    until("no pod is left", async || {
        let pods = namespace.api::<Pod>().list(&ListParams::default()).await?;
        let names: Vec<_> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
        Ok(if names.is_empty() { Ok(()) } else { Err(names.join(", ")) })
    })
    .await?;
    until("the node is no longer the pool's", async || {
        let node = Api::<Node>::all(namespace.client()).get("kubelet-0").await?;
        let label = node.metadata.labels.unwrap_or_default().remove("rollwright.dev/pool");
        Ok(label.map_or(Ok(()), Err))
    })
    .await?;
    for pool in ["sandboxes", "h800"] {
        let pool = format!("{}-{pool}", namespace.name());
        // Refused for as long as it is bound.
        until("the pool is free", async || {
            let output = kubectl.output(&["delete", "resourcepool", &pool], "").await?;
            let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(if output.status.success() { Ok(()) } else { Err(refusal) })
        })
        .await?;
    }
    Ok(())
}

async fn scale(namespace: &Namespace, workers: u32) -> anyhow::Result<()> {
    let field = "/spec/allocation/fixed/groups/0/workers";
    let change = json!([{"op": "replace", "path": field, "value": workers}]).to_string();
    let patch = ["patch", "rolloutjob", "grpo", "--type=json", "--patch", &change];
    namespace.kubectl().run(&patch).await?;
    Ok(())
}

#[test]
fn a_rollout_runs_through_the_clusters_gateway_and_queue() -> anyhow::Result<()> {
    with_job("rollout", async |namespace, gateway, queue| {
        ensure!(ready_workers(namespace).await?.len() == 2, "two workers are ready");
        rollout(namespace, gateway, queue, "p").await
    })
}

#[test]
fn a_worker_that_is_drained_in_mid_stream_loses_no_turn() -> anyhow::Result<()> {
    with_job("drain", async |namespace, gateway, _| {
        let undisturbed = long_turn(gateway, "undisturbed").await?;
        let mut turns = turns_on_both_workers(namespace, gateway).await?;
        let fewer =
            r#"[{"op": "replace", "path": "/spec/allocation/fixed/groups/0/workers", "value": 1}]"#;
        let patch = ["patch", "rolloutjob", "grpo", "--type=json", "--patch", fewer];
        namespace.kubectl().run(&patch).await?;
        while let Some(turn) = turns.join_next().await {
            let turn = turn??;
            ensure!(turn == undisturbed, "{turn}, and undisturbed {undisturbed}");
        }
        until("one worker is left", async || {
            let workers = ready_workers(namespace).await?.len();
            Ok(if workers == 1 { Ok(()) } else { Err(format!("{workers} workers")) })
        })
        .await
    })
}

#[test]
fn a_worker_that_is_killed_in_mid_stream_loses_no_turn() -> anyhow::Result<()> {
    with_job("kill", async |namespace, gateway, _| {
        let undisturbed = long_turn(gateway, "undisturbed").await?;
        let mut turns = turns_on_both_workers(namespace, gateway).await?;
        let workers = ready_workers(namespace).await?;
        let victim = workers.first().and_then(|pod| pod.metadata.name.clone()).context("none")?;
        let delete = ["delete", "pod", &victim, "--grace-period=0", "--force"];
        namespace.kubectl().run(&delete).await?;
        while let Some(turn) = turns.join_next().await {
            let turn = turn??;
            ensure!(turn == undisturbed, "{turn}, and undisturbed {undisturbed}");
        }
        until("another has its place", async || {
            let names: Vec<_> = ready_workers(namespace)
                .await?
                .into_iter()
                .filter_map(|pod| pod.metadata.name)
                .collect();
            let replaced = names.len() == 2 && !names.contains(&victim);
            Ok(if replaced { Ok(()) } else { Err(names.join(", ")) })
        })
        .await
    })
}

#[test]
fn the_other_controllers_go_on_where_the_leader_was_killed() -> anyhow::Result<()> {
    with_job("leader", async |namespace, _, _| {
        let names = async || {
            let pods = ready_workers(namespace).await?;
            let names = pods.into_iter().filter_map(|pod| pod.metadata.name);
            anyhow::Ok(names.collect::<BTreeSet<_>>())
        };
        let before = names().await?;
        let system = namespace.cluster().kubectl().namespace(RELEASE);
        let holder =
            ["get", "lease", "rollwright-controllers", "--output=jsonpath={.spec.holderIdentity}"];
        let leader = system.run(&holder).await?;
        scale(namespace, 3).await?;
        system.run(&["delete", "pod", &leader, "--grace-period=0", "--force"]).await?;
        until("another replica leads", async || {
            let now = system.run(&holder).await?;
            Ok(if now.is_empty() || now == leader { Err(now) } else { Ok(()) })
        })
        .await?;
        until("a third worker is ready", async || {
            let now = names().await?;
            Ok(if now.len() == 3 { Ok(()) } else { Err(format!("{now:?}")) })
        })
        .await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        let after = names().await?;
        ensure!(after.len() == 3 && after.is_superset(&before), "{before:?}, then {after:?}");
        Ok(())
    })
}

#[test]
fn gpu_nodes_are_counted_by_class() -> anyhow::Result<()> {
    alone("classes", async |namespace| {
        install_release(namespace.cluster()).await?;
        // No machine is behind these nodes: they are said to be ready, once.
        apply(namespace, include_str!("../manifests/fake-nodes.yaml")).await?;
        let kubectl = namespace.kubectl();
        for node in ["h800-0", "h20-0", "h20-1"] {
            let node = format!("{}-{node}", namespace.name());
            let status = json!({"status": {
                "capacity": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "64"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "",
                    "lastHeartbeatTime": null, "lastTransitionTime": null}]}});
            let patch = ["patch", "node", &node, "--subresource=status", "--type=merge"];
            kubectl.run(&[&patch[..], &["--patch", &status.to_string()]].concat()).await?;
        }
        for (class, gpus) in [("h800", 8), ("h20", 16)] {
            let pool = format!("resourcepool/{}-{class}", namespace.name());
            until(&format!("{pool} has {gpus} GPUs"), async || {
                let text = kubectl.run(&["get", &pool, "--output=json"]).await?;
                let status = serde_json::from_str::<Value>(&text)?["status"].take();
                let counted = status["capacity"]["gpus"] == gpus;
                Ok(if counted { Ok(()) } else { Err(status.to_string()) })
            })
            .await?;
            kubectl.run(&["delete", &pool]).await?;
        }
        let label = format!("--selector=rollwright.dev/test={}", namespace.name());
        kubectl.run(&["delete", "nodes", &label]).await?;
        Ok(())
    })
}

#[test]
fn rollouts_go_on_while_the_api_server_is_down() -> anyhow::Result<()> {
    with_job("outage", async |namespace, gateway, queue| {
        let before = instances(namespace).await?;
        let lease = namespace.cluster().lease();
        lease.kill("kube-apiserver")?;
        let started = Instant::now();
        let mut rollouts = 0;
        let outcome = async {
            // Longer than the controllers keep their Lease.
            while started.elapsed() < Duration::from_mins(1) {
                rollout(namespace, gateway, queue, &format!("p{rollouts}")).await?;
                rollouts += 1;
            }
            anyhow::Ok(())
        }
        .await;
        lease.start("kube-apiserver")?;
        outcome.with_context(|| format!("after {rollouts} rollouts"))?;
        until("the API server is back", async || {
            let output = namespace.kubectl().output(&["get", "--raw=/readyz"], "").await?;
            let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(if output.status.success() { Ok(()) } else { Err(refusal) })
        })
        .await?;
        // Kubernetes' own controllers watch again only after ever longer pauses; started anew, they
        // collect garbage at once.
        lease.kill("kube-controller-manager")?;
        lease.start("kube-controller-manager")?;
        condition(namespace, "actionqueue/tools", "Ready").await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        let after = instances(namespace).await?;
        ensure!(before == after, "pods were started anew: {before:?}, then {after:?}");
        rollout(namespace, gateway, queue, "last").await
    })
}

/// The pods of the namespace with how often their containers began.
async fn instances(namespace: &Namespace) -> anyhow::Result<BTreeSet<(String, i32)>> {
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
async fn rollout(
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

/// A turn of about 15 s; the simulator answers the same prompt with the same tokens always.
async fn long_turn(gateway: &Http, trajectory: &str) -> anyhow::Result<Value> {
    let chat = json!({"model": "engine-sim", "max_tokens": 600, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Count to 600."}]});
    let path = format!("/t/{trajectory}/v1/chat/completions");
    let reply = gateway.post(&path, &chat).await?;
    Ok(json!([reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]]))
}

/// Starts turns and waits until each worker has some of them.
async fn turns_on_both_workers(
    namespace: &Namespace,
    gateway: &Http,
) -> anyhow::Result<JoinSet<anyhow::Result<Value>>> {
    let gateway = Arc::new(gateway.clone());
    let group = json!({"id": "long", "rollouts": 8, "payload": {}});
    gateway.post("/rollout/v1/groups", &group).await?;
    let mut turns = JoinSet::new();
    for trajectory in 0..8 {
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
async fn turn_with_an_action(
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
