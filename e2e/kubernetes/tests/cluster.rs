//! The cluster itself: what every other test takes for granted.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::LogParams;
use rollwright_e2e_kubernetes::{test, until};

#[test]
fn a_pod_runs_and_finds_services_by_name() -> anyhow::Result<()> {
    test("a-pod-runs", async |namespace| {
        namespace
            .kubectl()
            .apply(
                "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: rollwright/busybox:local
        command: [httpd, -f, -p, '8080', -h, /etc]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  restartPolicy: OnFailure
  containers:
  - name: caller
    image: rollwright/busybox:local
    command: [wget, -q, -O, '-', 'http://web/hostname']
",
            )
            .await?;
        let pods = namespace.api::<Pod>();
        until("the caller has ended", async || {
            let phase = pods.get("caller").await?.status.and_then(|status| status.phase);
            let phase = phase.unwrap_or_default();
            Ok(if phase == "Succeeded" { Ok(()) } else { Err(phase) })
        })
        .await?;
        let said = pods.logs("caller", &LogParams::default()).await?;
        ensure!(said.starts_with("web-"), "the service said {said:?}");
        Ok(())
    })
}

#[test]
fn the_node_is_real() -> anyhow::Result<()> {
    test("the-node-is-real", async |namespace| {
        let nodes = Api::<Node>::all(namespace.client());
        let status = nodes.get("kubelet-0").await?.status.context("no status")?;
        let runtime = status.node_info.context("no node info")?.container_runtime_version;
        ensure!(runtime.starts_with("containerd://"), "{runtime}");
        Ok(())
    })
}
