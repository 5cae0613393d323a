//! The controllers and the API server, counting, dying and away.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, install_release, until};
use serde_json::{Value, json};

use crate::support::{alone, apply, condition, instances, ready_workers, rollout, scale, with_job};

#[test]
fn controllers_and_api_server_die_under_a_job() -> anyhow::Result<()> {
    with_job("outage", async |namespace, gateway, queue| {
        the_leader_is_killed(namespace).await.context("the leader")?;
        the_api_server_is_away(namespace, gateway, queue).await.context("the API server")
    })
}

/// The other controllers go on where the leader was killed.
async fn the_leader_is_killed(namespace: &Namespace) -> anyhow::Result<()> {
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
}

/// Rollouts go on while the API server is down.
async fn the_api_server_is_away(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
) -> anyhow::Result<()> {
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
}

#[test]
fn gpu_nodes_are_counted_by_class() -> anyhow::Result<()> {
    alone("classes", async |namespace| {
        install_release(namespace.cluster()).await?;
        // No machine is behind these nodes: they are said to be ready, once.
        apply(namespace, include_str!("../../manifests/fake-nodes.yaml")).await?;
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
