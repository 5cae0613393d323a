//! Sandboxes of nodes without a Docker engine: the agent's pod brings one.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{
    Http, Namespace, RELEASE, install_release, sandbox_archive, to_pods, until,
};
use serde_json::json;

use crate::support::{alone, apply, condition, nothing_stays};

#[test]
fn an_action_runs_on_a_docker_engine_in_the_agents_pod() -> anyhow::Result<()> {
    alone("dind", async |namespace| {
        let cluster = namespace.cluster();
        install_release(cluster).await?;
        to_pods(cluster, "rollwright/dind:e2e").await?;
        apply(namespace, include_str!("../../manifests/dind.yaml")).await?;
        let agent = agent_with_an_engine(namespace).await?;
        let engine = |command: &str| {
            let script =
                format!("docker --host=unix:///run/rollwright-docker/docker.sock {command}");
            let mut kubectl = cluster.program("/usr/bin/env");
            kubectl.args(["kubectl", "-n", RELEASE, "exec", "-i", &agent, "-c", "docker", "--"]);
            kubectl.args(["sh", "-c", &script]);
            kubectl
        };
        // No registry can be reached.
        let archive = std::fs::File::open(sandbox_archive(cluster))?;
        let load = engine("load").stdin(archive).output().await?;
        ensure!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));
        condition(namespace, "actionqueue/tools", "Ready").await?;
        let queue = Http::queue(namespace, "tools").await?;
        until("the queue's service leads to it", async || {
            Ok(queue.get("/v1/stats").await.map_err(|error| format!("{error:#}")))
        })
        .await?;
        let job = format!("{}.dind", namespace.name());
        let open = json!({"trajectory_id": "t", "job": job, "template": "box"});
        queue.post("/v1/trajectories", &open).await?;
        let action = json!({"action_id": "t-1", "trajectory_id": "t",
            "command": {"shell": "echo $((6 * 7))"}});
        let end = queue.post("/v1/actions", &action).await?;
        ensure!(end.to_string().contains("\"exit_code\":0"), "{end}");
        let there = engine("ps -q --filter label=rollwright.dev/managed=sandbox").output().await?;
        let there = String::from_utf8(there.stdout)?;
        ensure!(there.lines().count() == 1, "in the pod's engine: {there:?}");
        queue.delete("/v1/trajectories/t").await?;
        nothing_stays(namespace).await
    })
}

/// The agent's pod, once its engine answers.
async fn agent_with_an_engine(namespace: &Namespace) -> anyhow::Result<String> {
    let pods = Api::<Pod>::namespaced(namespace.client(), RELEASE);
    let agents = ListParams::default().labels("rollwright.dev/agent=dind");
    until("the engine in the agent's pod answers", async || {
        let pod = pods.list(&agents).await?.items.pop();
        let status = pod.as_ref().and_then(|pod| pod.status.clone()).unwrap_or_default();
        let engine = status.init_container_statuses.unwrap_or_default().pop();
        Ok(match pod.and_then(|pod| pod.metadata.name) {
            Some(name) if engine.as_ref().is_some_and(|it| it.started == Some(true)) => Ok(name),
            _ => Err(format!("{engine:?}")),
        })
    })
    .await
}
