//! A rollout, and workers that go in the middle of turns.

use anyhow::{Context as _, ensure};
use rollwright_e2e_kubernetes::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{long_turn, ready_workers, rollout, scale, turns_on_both_workers, with_job};

#[test]
fn workers_that_are_killed_or_drained_in_mid_stream_lose_no_turn() -> anyhow::Result<()> {
    with_job("workers", async |namespace, gateway, queue| {
        ensure!(ready_workers(namespace).await?.len() == 2, "two workers are ready");
        rollout(namespace, gateway, queue, "p").await?;
        let undisturbed = long_turn(gateway, "undisturbed").await?;
        let group = json!({"id": "long", "rollouts": 16, "payload": {}});
        gateway.post("/rollout/v1/groups", &group).await?;

        let turns = turns_on_both_workers(namespace, gateway, 0..8).await?;
        let workers = ready_workers(namespace).await?;
        let victim = workers.first().and_then(|pod| pod.metadata.name.clone()).context("none")?;
        let delete = ["delete", "pod", &victim, "--grace-period=0", "--force"];
        namespace.kubectl().run(&delete).await?;
        all_say(turns, &undisturbed).await.context("killed")?;
        until("another has its place", async || {
            let names: Vec<_> = ready_workers(namespace)
                .await?
                .into_iter()
                .filter_map(|pod| pod.metadata.name)
                .collect();
            let replaced = names.len() == 2 && !names.contains(&victim);
            Ok(if replaced { Ok(()) } else { Err(names.join(", ")) })
        })
        .await?;

        let turns = turns_on_both_workers(namespace, gateway, 8..16).await?;
        scale(namespace, 1).await?;
        all_say(turns, &undisturbed).await.context("drained")?;
        until("one worker is left", async || {
            let workers = ready_workers(namespace).await?.len();
            Ok(if workers == 1 { Ok(()) } else { Err(format!("{workers} workers")) })
        })
        .await
    })
}

/// Token for token the same as a turn that nobody disturbed.
async fn all_say(
    mut turns: JoinSet<anyhow::Result<Value>>,
    undisturbed: &Value,
) -> anyhow::Result<()> {
    while let Some(turn) = turns.join_next().await {
        let turn = turn??;
        ensure!(turn == *undisturbed, "{turn}, and undisturbed {undisturbed}");
    }
    Ok(())
}
