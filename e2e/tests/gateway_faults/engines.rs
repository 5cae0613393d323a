//! Engines that die and come back.

use anyhow::{Context as _, ensure};
use rollwright_e2e::gateway::{
    Gateway, LIMIT, Record, Setup, chat, engines, ensure_rules_kept, slow,
};
use rollwright_e2e::wait;
use rollwright_engine_sim::{Config, EngineSim};
use serde_json::{Value, json};

/// Prompt and reply as an engine alone makes them.
async fn alone(body: &Value) -> anyhow::Result<Vec<u32>> {
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    let mut body = body.clone();
    body["return_token_ids"] = json!(true);
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{}/v1/chat/completions", engine.url());
    let reply: Value = client.post(url).json(&body).send().await?.json().await?;
    engine.stop().await;
    let ids = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let all = [ids(&reply["prompt_token_ids"]), ids(&reply["choices"][0]["token_ids"])].concat();
    Ok(all.iter().filter_map(Value::as_u64).map(|id| id as u32).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_engine_is_killed_goes_on_token_for_token() -> anyhow::Result<()> {
    const TOKENS: usize = 1000;
    let mut engines = engines(2, &slow()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let body = chat("hello", TOKENS);
    let expected = alone(&body).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &body).await?;
    stream.until_length(20).await?;
    let busy = engines.iter().position(|engine| engine.load().0 == 1).context("nobody")?;
    engines[busy].kill();
    let text = stream.end().await.done()?;
    ensure!(text.len() == TOKENS, "{} of {TOKENS}", text.len());
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.ids == expected, "other tokens than without the kill");
    ensure!(record.text() == text);
    gateway.acknowledge(&batch).await?;

    // A commit goes on without it, and it comes back with the weights of its start.
    gateway.publish(1).await?;
    let dead = engines.remove(busy);
    let again = EngineSim::start(Config { port: dead.addr().port(), ..slow() }).await?;
    ensure!(again.version() == 0);
    let mut asked = 0;
    wait::until("it takes requests again", LIMIT, async || {
        let (status, reply) = gateway.post("/v1/chat/completions", &chat("more", 4)).await?;
        ensure!(status == 200, "{reply}");
        asked += 1;
        Ok(!again.requests().is_empty())
    })
    .await?;
    gateway.until_ready().await?;
    for made in again.requests() {
        ensure!(made.versions == [1], "after {asked} requests: {made:?}");
    }
    ensure!(again.version() == 1);
    engines.push(again);
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_restarted_in_place_takes_no_turn_with_its_old_weights() -> anyhow::Result<()> {
    let engines = engines(2, &slow()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    gateway.publish(1).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &chat("hello", 600)).await?;
    stream.until_length(20).await?;
    let busy = engines.iter().find(|engine| engine.load().0 == 1).context("nobody")?;
    let before = busy.requests().len();
    // So fast that no health check need have failed.
    busy.restart(0);
    let text = stream.end().await.done()?;
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.text() == text);
    ensure!(record.versions() == [1], "{:?}", record.versions());
    wait::until("it holds the current version", LIMIT, async || Ok(busy.version() == 1)).await?;
    for made in &busy.requests()[before..] {
        ensure!(!made.versions.contains(&0), "{made:?}");
    }
    gateway.until_ready().await?;
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

/// Waits until the gateway sends no more to any engine.
async fn until_gone(gateway: &Gateway) -> anyhow::Result<()> {
    wait::until("every engine is known to be gone", LIMIT, async || {
        let report = gateway.status().await?;
        let workers = report["workers"].as_array().context("no workers")?;
        Ok(workers.iter().all(|worker| worker["state"] == "unhealthy"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_while_every_engine_is_gone() -> anyhow::Result<()> {
    let engines = engines(2, &slow()).await?;
    let port = engines[1].addr().port();
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let open = gateway.open(&json!({"rollouts": 2})).await?;
    drop(engines);
    until_gone(&gateway).await?;
    let body = chat("hello", 40);
    let expected = alone(&body).await?;
    let path = |trajectory: &str| format!("/t/{trajectory}/v1/chat/completions");
    let calls: Vec<_> = open
        .iter()
        .map(|trajectory| tokio::spawn(gateway.request(&path(trajectory), &body).send()))
        .collect();
    wait::until("both wait", LIMIT, async || Ok(gateway.status().await?["pending"] == 2)).await?;
    let back = EngineSim::start(Config { port, ..slow() }).await?;
    for (call, trajectory) in calls.into_iter().zip(&open) {
        let reply = call.await??;
        ensure!(reply.status() == 200, "{}", reply.text().await?);
        gateway.complete(trajectory, 1.0).await?;
    }
    let batch = gateway.take(1).await?;
    for number in 0..2 {
        let record = Record::check(&batch["groups"][0]["trajectories"][number])?;
        ensure!(record.ids == expected, "other tokens than with engines that live");
    }
    ensure_rules_kept([&back])?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_engines_are_all_gone_goes_on_when_one_is_back() -> anyhow::Result<()> {
    const TOKENS: usize = 400;
    let engines = engines(2, &slow()).await?;
    let port = engines[1].addr().port();
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let body = chat("hello", TOKENS);
    let expected = alone(&body).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &body).await?;
    stream.until_length(20).await?;
    drop(engines);
    let reading = tokio::spawn(stream.end());
    until_gone(&gateway).await?;
    let back = EngineSim::start(Config { port, ..slow() }).await?;
    let text = reading.await?.done()?;
    ensure!(text.len() == TOKENS, "{} of {TOKENS}", text.len());
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.ids == expected, "other tokens than with engines that live");
    ensure_rules_kept([&back])?;
    gateway.stop().await
}
