//! The whole product on the cluster: the chart, a queue with sandboxes on the node's Docker, a
//! job with engines as pods (which are simulators), and a rollout through both.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, install_release, test, until};
use serde_json::{Value, json};

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

#[test]
fn a_rollout_runs_through_the_clusters_gateway_and_queue() -> anyhow::Result<()> {
    test("rollout", async |namespace| {
        install_release(namespace.cluster()).await?;
        let system = namespace.cluster().kubectl().namespace(RELEASE);
        system
            .run(&["rollout", "status", "deployment/rollwright-controllers", "--timeout=5m"])
            .await?;
        pretend_gpus(namespace).await?;
        apply(namespace, include_str!("../manifests/rollout.yaml")).await?;

        condition(namespace, "actionqueue/tools", "Ready").await?;
        condition(namespace, "rolloutjob/grpo", "Ready").await?;
        ensure!(ready_workers(namespace).await?.len() == 2, "two workers are ready");

        let gateway = Http::gateway(namespace, "grpo").await?;
        let queue = Http::queue(namespace, "tools").await?;
        gateway.post("/rollout/v1/groups", &json!({"id": "p", "payload": {"q": "6 x 7"}})).await?;
        for trajectory in ["p.0", "p.1"] {
            turn_with_an_action(namespace, &gateway, &queue, trajectory).await?;
        }
        let batch = gateway.post("/rollout/v1/batches/take", &json!({"wait": 120})).await?;
        let groups = batch["groups"].as_array().context("no groups")?;
        ensure!(groups.len() == 1, "{batch}");
        Ok(())
    })
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
    let reward = json!({"reward": 1});
    gateway.post(&format!("/rollout/v1/trajectories/{trajectory}/complete"), &reward).await?;
    Ok(())
}
