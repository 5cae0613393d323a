//! Trainers that do not do their part.

use anyhow::{Context as _, ensure};
use rollwright_e2e::gateway::{Gateway, LIMIT, Record, Setup, chat, engines, ensure_rules_kept};
use rollwright_e2e::wait;
use rollwright_engine_sim::{Config, EngineSim};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_that_takes_nothing_is_waited_for_at_the_bound() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let rollout = json!({"groupSize": 2, "batchGroups": 2, "stalenessBound": 1});
    let gateway = Gateway::start(Setup::before(&engines).rollout(rollout)).await?;
    let bound = gateway.status().await?["buffer"]["bound"].as_u64().context("no bound")?;
    let payload = "x".repeat(1 << 19);
    let mut settled = 0;
    let refused = loop {
        let body = json!({"id": format!("g{settled}"), "payload": payload});
        let reply = gateway.request("/rollout/v1/groups", &body).send().await?;
        if reply.status() != 201 {
            break reply;
        }
        for trajectory in ["0", "1"].map(|number| format!("g{settled}.{number}")) {
            gateway.turn(&trajectory, &chat("hello", 4)).await?;
            gateway.complete(&trajectory, 1.0).await?;
        }
        settled += 1;
        ensure!(settled <= bound, "no end of it");
    };
    ensure!(refused.status() == 429, "{}", refused.status());
    let after = refused.headers().get("Retry-After").context("no Retry-After")?.to_str()?;
    ensure!(after.parse::<u64>()? >= 1, "{after}");
    let error: Value = refused.json().await?;
    ensure!(error["error"]["code"] == "BufferFull", "{error}");
    ensure!(settled * 2 >= bound, "{settled} groups of two, and {bound} trajectories may be held");

    // 400 further callers, 200 MiB in all, leave nothing behind.
    let before = gateway.memory()?;
    for number in 0..400 {
        let body = json!({"id": format!("refused-{number}"), "payload": payload});
        gateway.expect(429, "/rollout/v1/groups", &body).await?;
    }
    let grown = gateway.memory()?.saturating_sub(before) >> 20;
    ensure!(grown < 100, "{grown} MiB more than before");

    // It goes on with the trainer.
    let call =
        tokio::spawn(gateway.request("/rollout/v1/groups?wait=60", &json!({"id": "later"})).send());
    let mut seen = Vec::new();
    while seen.len() < settled as usize / 2 * 2 {
        let batch = gateway.take(2).await?;
        let groups = batch["groups"].as_array().context("no groups")?;
        seen.extend(groups.iter().filter_map(|group| group["id"].as_str().map(str::to_owned)));
        ensure!(groups.iter().all(|group| group["payload"] == payload));
        gateway.acknowledge(&batch).await?;
    }
    ensure!(call.await??.status() == 201);
    let expected: Vec<String> = (0..seen.len()).map(|number| format!("g{number}")).collect();
    ensure!(seen == expected, "{seen:?}");
    gateway.stop().await
}

/// Begins an update that nobody commits, and waits until it is given up.
async fn begin_and_die(gateway: &Gateway, version: u64, transfer: &str) -> anyhow::Result<()> {
    let begin = json!({"version": version, "transfer": transfer, "deadline_seconds": 0.2});
    gateway.expect(200, "/rollout/v1/weights/begin", &begin).await?;
    wait::until("the update is aborted", LIMIT, async || {
        let (_, weights) = gateway.get("/rollout/v1/weights").await?;
        Ok(weights.get("begun").is_none())
    })
    .await?;
    let mut commit = json!({"version": version});
    if transfer == "disk" {
        commit["path"] = json!(gateway.weights(version)?);
    }
    let late = gateway.expect(409, "/rollout/v1/weights/commit", &commit).await?;
    ensure!(late["error"]["code"] == "UpdateExpired", "{late}");
    Ok(())
}

/// A rollout whose tokens are all of `version`.
async fn ensure_serves(gateway: &Gateway, version: u64) -> anyhow::Result<()> {
    gateway.until_ready().await.with_context(|| format!("version {version}"))?;
    let open = gateway.open(&json!({})).await?;
    gateway.turn(&open[0], &chat("hello", 8)).await?;
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.versions() == [version], "{:?}", record.versions());
    ensure!(batch["version"] == version, "{}", batch["version"]);
    gateway.acknowledge(&batch).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_whose_trainer_died_is_aborted_at_its_deadline() -> anyhow::Result<()> {
    let engines = engines(2, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    for (version, transfer) in [(1, "disk"), (2, "store")] {
        begin_and_die(&gateway, version, transfer).await?;
        ensure_serves(&gateway, 0).await?;
    }
    ensure!(engines.iter().all(|engine| engine.version() == 0));
    // Another one is not in its way.
    gateway.publish(3).await?;
    // What a dead trainer may have half transferred is loaded anew.
    let loads = |engine: &EngineSim| {
        engine.calls().iter().filter(|call| call.uri.starts_with("/collective_rpc")).count()
    };
    let before: Vec<usize> = engines.iter().map(loads).collect();
    begin_and_die(&gateway, 4, "external").await?;
    ensure_serves(&gateway, 3).await?;
    for (engine, before) in engines.iter().zip(before) {
        ensure!(engine.version() == 3 && loads(engine) > before, "{:?}", engine.calls());
    }
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

/// Weights that no path or store can give again: only a new process is known to hold those
/// that it began with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_died_before_any_commit_needs_engines_started_anew() -> anyhow::Result<()> {
    let engines = engines(2, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    begin_and_die(&gateway, 1, "external").await?;
    let call = tokio::spawn(gateway.request("/v1/chat/completions", &chat("hello", 4)).send());
    wait::until("it waits", LIMIT, async || Ok(gateway.status().await?["pending"] == 1)).await?;
    ensure!(engines.iter().all(|engine| engine.requests().is_empty()));
    for engine in &engines {
        engine.restart(0);
    }
    ensure!(call.await??.status() == 200);
    ensure_serves(&gateway, 0).await?;
    ensure_rules_kept(&engines)?;
    // Somebody is told why nothing is served.
    let log = gateway.log("gateway-1.log");
    ensure!(log.contains("expired") || log.contains("deadline"), "{log}");
    gateway.stop().await
}
