//! What changes around a job while it runs.

use anyhow::{Context as _, ensure};
use rollwright_e2e_kubernetes::{Http, Namespace, RELEASE, succeed, until};
use serde_json::Value;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::faults::workers_fail;
use crate::support::{apply, condition, controllers_ready, instances, rollout, with_job};

#[test]
fn a_job_goes_on_while_its_pool_its_key_its_release_and_its_workers_change() -> anyhow::Result<()> {
    with_job("changes", async |namespace, gateway, queue| {
        let before = instances(namespace).await?;
        remove_the_pool(namespace, gateway, queue).await?;
        // By a token, as the key is about to change.
        let by_account = Http::gateway_by_account(namespace, "grpo").await?;
        let (stop, stopped) = oneshot::channel();
        let (rollouts, changed) =
            tokio::join!(rollouts_until(namespace, &by_account, queue, stopped), async {
                let changed = change_key_and_release(namespace, gateway).await;
                // Where the rollouts failed nobody hears it.
                let _ = stop.send(());
                changed
            });
        changed?;
        ensure!(rollouts? > 0, "no rollout ran meanwhile");
        let after = instances(namespace).await?;
        ensure!(before == after, "pods were started anew: {before:?}, then {after:?}");
        workers_fail(namespace, &by_account, queue).await.context("failing workers")
    })
}

/// A pool that is used is not deleted; where somebody insists, its workers go on.
async fn remove_the_pool(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
) -> anyhow::Result<()> {
    let kubectl = namespace.kubectl();
    let pool = format!("{}-h800", namespace.name());
    let refused = kubectl.output(&["delete", "resourcepool", &pool], "").await?;
    ensure!(!refused.status.success(), "a pool that is bound was deleted");
    kubectl.run(&["annotate", "resourcepool", &pool, "rollwright.dev/force=true"]).await?;
    kubectl.run(&["delete", "resourcepool", &pool]).await?;
    until("the job says that its pool is missing", async || {
        let text = kubectl.run(&["get", "rolloutjob", "grpo", "--output=json"]).await?;
        let status = serde_json::from_str::<Value>(&text)?["status"].take();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let said =
            conditions.iter().any(|of| of["type"] == "Resolved" && of["reason"] == "PoolNotFound");
        Ok(if said { Ok(()) } else { Err(status.to_string()) })
    })
    .await?;
    rollout(namespace, gateway, queue, "without-pool").await?;
    apply(namespace, include_str!("../../manifests/rollout.yaml")).await?;
    condition(namespace, "rolloutjob/grpo", "Ready").await
}

/// Rolls the controllers, which take over the key that the Secret got meanwhile.
async fn change_key_and_release(namespace: &Namespace, old: &Http) -> anyhow::Result<()> {
    let kubectl = namespace.kubectl();
    let key = r#"{"stringData": {"api-key": "another-key-of-the-users"}}"#;
    kubectl.run(&["patch", "secret", "grpo-api-key", "--type=merge", "--patch", key]).await?;
    let cluster = namespace.cluster();
    let mut helm = cluster.program("/usr/bin/env");
    helm.args(["helm", "upgrade", "rollwright", "helm/rollwright", "--namespace", RELEASE]).args([
        "--reuse-values",
        "--set",
        "controllers.logLevel=debug",
    ]);
    succeed(&mut helm).await?;
    controllers_ready(cluster).await?;
    let new = Http::gateway(namespace, "grpo").await.context("the new key")?;
    until("the gateway takes the new key", async || {
        let answer = new.get("/rollout/v1/status").await;
        Ok(answer.map(drop).map_err(|error| format!("{error:#}")))
    })
    .await?;
    ensure!(old.get("/rollout/v1/status").await.is_err(), "the old key is still taken");
    Ok(())
}

/// Rollouts one after the other; how many there were.
async fn rollouts_until(
    namespace: &Namespace,
    gateway: &Http,
    queue: &Http,
    mut stopped: oneshot::Receiver<()>,
) -> anyhow::Result<u32> {
    for done in 0.. {
        if !matches!(stopped.try_recv(), Err(TryRecvError::Empty)) {
            return Ok(done);
        }
        rollout(namespace, gateway, queue, &format!("p{done}"))
            .await
            .with_context(|| format!("after {done} rollouts"))?;
    }
    Ok(u32::MAX)
}
