//! Rollouts, and workers that go in the middle of them.

use anyhow::{Context as _, ensure};
use rollwright_e2e_kubernetes::until;

use crate::support::{long_turn, ready_workers, rollout, scale, turns_on_both_workers, with_job};

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
        scale(namespace, 1).await?;
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
