//! A gateway that an earlier version ran as a Deployment becomes a `StatefulSet` on the same volume.

use anyhow::ensure;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use rollwright_e2e_kubernetes::{Namespace, RELEASE, until};
use serde_json::json;

use crate::support::apply;

const GATEWAY: &str = "grpo-gateway";

/// Puts the gateway back into a Deployment while no controllers are there to see it.
pub(crate) async fn into_a_deployment(namespace: &Namespace) -> anyhow::Result<()> {
    controllers(namespace, 0).await?;
    let set = namespace.api::<StatefulSet>().get(GATEWAY).await?;
    namespace.kubectl().run(&["delete", "statefulset", GATEWAY, "--cascade=foreground"]).await?;
    let spec = set.spec.unwrap_or_default();
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": GATEWAY, "labels": set.metadata.labels,
            "ownerReferences": set.metadata.owner_references},
        "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": spec.selector,
            "template": spec.template},
    });
    apply(namespace, &deployment.to_string()).await?;
    let ready = ["rollout", "status", "deployment", GATEWAY, "--timeout=5m"];
    namespace.kubectl().run(&ready).await?;
    Ok(())
}

/// Lets the controllers find it; there are never two gateways.
pub(crate) async fn becomes_a_stateful_set(namespace: &Namespace) -> anyhow::Result<()> {
    controllers(namespace, 2).await?;
    let gateways = ListParams::default().labels("app.kubernetes.io/component=gateway");
    until("the gateway is a StatefulSet's", async || {
        let pods = namespace.api::<Pod>().list(&gateways).await?.items;
        ensure!(pods.len() <= 1, "two gateways at once: {pods:#?}");
        let left = namespace.api::<Deployment>().get_opt(GATEWAY).await?.is_some();
        let set = namespace.api::<StatefulSet>().get_opt(GATEWAY).await?;
        let ready = set.and_then(|set| set.status?.ready_replicas) == Some(1);
        Ok(if ready && !left { Ok(()) } else { Err(format!("Deployment: {left}")) })
    })
    .await
}

async fn controllers(namespace: &Namespace, replicas: usize) -> anyhow::Result<()> {
    let system = namespace.cluster().kubectl().namespace(RELEASE);
    let scale = format!("--replicas={replicas}");
    system.run(&["scale", "deployment/rollwright-controllers", &scale]).await?;
    let pods = Api::<Pod>::namespaced(namespace.client(), RELEASE);
    let ours = ListParams::default().labels("app.kubernetes.io/component=controllers");
    until(&format!("{replicas} controllers"), async || {
        let left = pods.list(&ours).await?.items.len();
        Ok(if left == replicas { Ok(()) } else { Err(format!("{left} are there")) })
    })
    .await
}
