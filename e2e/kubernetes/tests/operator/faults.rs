//! Workers that fail, and a node that is gone.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Http, Namespace, install_release, until};
use serde_json::json;

use crate::support::{alone, apply, ready_workers, rollout};

/// The node that a worker was made for.
const NODES: &str = "rollwright.dev/nodes";

/// A worker that fails again and again is made anew ever later.
pub(crate) async fn workers_fail(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
) -> anyhow::Result<()> {
    for wait in [10, 20] {
        let workers = ready_workers(namespace).await?;
        let victim = workers.first().and_then(|pod| pod.metadata.name.clone());
        let victim = victim.context("no worker is ready")?;
        let failed = Timestamp::now().as_second();
        // What a kubelet says of a pod that it will not run any more.
        let status = r#"{"status": {"phase": "Failed", "reason": "Evicted"}}"#;
        let patch = ["patch", "pod", &victim, "--subresource=status", "--type=merge"];
        let patch = [&patch[..], &["--patch", status]].concat();
        let known: Vec<_> = self::workers(namespace).await?;
        let known: Vec<_> = known.into_iter().map(|pod| pod.metadata.name).collect();
        until("its failure counts", async || {
            let now = self::workers(namespace).await?;
            let lives = |pod: &Pod| {
                pod.metadata.name.as_ref() == Some(&victim)
                    && pod.metadata.deletion_timestamp.is_none()
            };
            if !now.iter().any(lives) {
                return Ok(Ok(()));
            }
            // What its kubelet is about to write may undo it: then it is said again.
            namespace.kubectl().output(&patch, "").await?;
            Ok(Err(format!("{victim} lives")))
        })
        .await?;
        let created = until("another has its place", async || {
            let now = self::workers(namespace).await?;
            let new = now.iter().find(|pod| !known.contains(&pod.metadata.name));
            let created = new.and_then(|pod| pod.metadata.creation_timestamp.clone());
            Ok(created.map(|at| at.0.as_second()).ok_or_else(|| "nobody has".to_owned()))
        })
        .await?;
        ensure!(created >= failed + wait, "{} s after {wait} s of rest", created - failed);
    }
    rollout(namespace, gateway, queue, "after").await
}

#[test]
fn workers_of_a_node_that_is_deleted_are_made_on_another() -> anyhow::Result<()> {
    alone("lost-node", async |namespace| {
        install_release(namespace.cluster()).await?;
        let [a, b] = ["a", "b"].map(|node| format!("{}-{node}", namespace.name()));
        apply(namespace, include_str!("../../manifests/lost-node.yaml")).await?;
        let bound = until("both workers have a node", async || {
            beat(namespace, &[&a, &b]).await?;
            let workers = workers(namespace).await?;
            let nodes = workers.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
            let nodes: Vec<_> = nodes.collect();
            Ok(if nodes.len() == 2 { Ok(nodes) } else { Err(format!("on {nodes:?}")) })
        })
        .await?;
        ensure!(bound[0] == bound[1], "the fullest node is filled first: {bound:?}");
        let (lost, left) = if bound[0] == a { (&a, &b) } else { (&b, &a) };
        namespace.kubectl().run(&["delete", "node", lost]).await?;
        until("two others are on the node that is left", async || {
            beat(namespace, &[left]).await?;
            let workers = workers(namespace).await?;
            let places = workers.iter().filter_map(|pod| pod.metadata.annotations.as_ref());
            let places: Vec<_> = places.filter_map(|all| all.get(NODES)).collect();
            let moved = places.len() == 2 && places.iter().all(|place| *place == left);
            Ok(if moved { Ok(()) } else { Err(format!("{places:?}")) })
        })
        .await?;
        let kubectl = namespace.kubectl();
        kubectl.run(&["delete", "rolloutjob", "grpo"]).await?;
        kubectl.run(&["delete", "node", left]).await?;
        // Nobody is there to say that they have ended.
        kubectl.run(&["delete", "pods", "--all", "--force", "--grace-period=0"]).await?;
        let pool = format!("{}-fake", namespace.name());
        until("the pool is free", async || {
            let output = kubectl.output(&["delete", "resourcepool", &pool], "").await?;
            let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(if output.status.success() { Ok(()) } else { Err(refusal) })
        })
        .await
    })
}

/// What a kubelet says of its node, with 8 GPUs: for some 40 s the node counts as ready.
async fn beat(namespace: &Namespace, nodes: &[&str]) -> anyhow::Result<()> {
    let now = Timestamp::now().to_string();
    let status = json!({"status": {
        "capacity": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "64"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": null}]}})
    .to_string();
    for node in nodes {
        let patch = ["patch", "node", node, "--subresource=status", "--type=merge"];
        let patch = [&patch[..], &["--patch", &status]].concat();
        namespace.kubectl().run(&patch).await?;
    }
    Ok(())
}

/// The workers that are not on their way out.
async fn workers(namespace: &Namespace) -> anyhow::Result<Vec<Pod>> {
    let workers = ListParams::default().labels("app.kubernetes.io/component=worker");
    let mut pods = namespace.api::<Pod>().list(&workers).await?.items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}
