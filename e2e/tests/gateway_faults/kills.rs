//! The gateway killed, started twice, and started with a clock that was set back.

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{shell, until_output};
use rollwright_e2e::gateway::{
    Gateway, Judge, KEY, LIMIT, Record, Setup, chat, engines, ensure_rules_kept, in_state, slow,
};
use rollwright_e2e::stack::Stack;
use rollwright_e2e::wait;
use rollwright_engine_sim::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A group of one, rolled out to its reward; its id.
async fn rolled_out(gateway: &Gateway, id: &str) -> anyhow::Result<()> {
    let open = gateway.open(&json!({"id": id, "rollouts": 1})).await?;
    gateway.turn(&open[0], &chat(id, 8)).await?;
    gateway.complete(&open[0], 1.0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_gives_the_same_batch_until_it_is_acknowledged() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let rollout = json!({"batchGroups": 2, "stalenessBound": 2});
    let mut gateway = Gateway::start(Setup::before(&engines).rollout(rollout)).await?;
    for id in ["a", "b", "c", "d"] {
        rolled_out(&gateway, id).await?;
        gateway.until_state(&format!("{id}.0"), "settled").await?;
    }
    let content = |batch: &Value| (batch["id"].clone(), batch["groups"].clone());
    let first = gateway.take(2).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    let same = gateway.take(2).await?;
    ensure!(content(&same) == content(&first), "{same}\n{first}");
    gateway.kill().await?;
    gateway.start_again().await?;
    gateway.acknowledge(&first).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    // Acknowledged once and for all.
    gateway.acknowledge(&first).await?;
    let second = gateway.take(2).await?;
    ensure!(second["id"].as_u64() > first["id"].as_u64());
    let ids = |batch: &Value| -> Vec<Value> {
        let groups = batch["groups"].as_array().into_iter().flatten();
        groups.map(|group| group["id"].clone()).collect()
    };
    ensure!(ids(&first) == ["a", "b"] && ids(&second) == ["c", "d"], "{second}");
    gateway.acknowledge(&second).await?;
    let take = json!({"groups": 1, "wait": 0});
    gateway.expect(204, "/rollout/v1/batches/take", &take).await?;
    // A version number survives as well, and with it what engines must hold.
    gateway.publish(1).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    gateway.until_ready().await?;
    ensure!(gateway.status().await?["version"] == 1);
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_keeps_what_was_scored_and_replaces_the_rest() -> anyhow::Result<()> {
    let (stack, judge) = (Stack::start("gw-kill").await?, Judge::start().await?);
    let mut client = stack.client().await?;
    let engines = engines(1, &slow()).await?;
    let setup = Setup {
        reward: Some(judge.url.clone()),
        queue: Some(stack.socket()),
        ..Setup::before(&engines).rollout(json!({"groupSize": 3}))
    };
    let mut gateway = Gateway::start(setup).await?;
    let body = json!({"id": "g", "payload": {"question": 7}});
    let open = gateway.open(&body).await?;
    let [scored, scoring, running] = &open[..] else { anyhow::bail!("{open:?}") };
    let kept = gateway.turn(scored, &chat("one", 8)).await?;
    gateway.complete(scored, 0.25).await?;
    gateway.until_state(scored, "scored").await?;
    gateway.turn(scoring, &chat("two", 8)).await?;
    let (status, reply) = gateway.tell(scoring, "complete", &json!({})).await?;
    ensure!(status == 202, "{reply}");
    wait::until("the reward is asked for", LIMIT, async || Ok(judge.begun() == 1)).await?;
    let mut stream = gateway.stream(running, &chat("three", 20_000)).await?;
    stream.until_length(20).await?;
    client.open(running, "box").await?;
    let mut action = client.submit(shell("a", running, "echo running; sleep 1000")).await?;
    until_output(&mut action, "running").await?;

    gateway.kill().await?;
    stream.end().await.failed()?;
    wait::until("the engine is idle", LIMIT, async || Ok(engines[0].load() == (0, 0))).await?;
    gateway.start_again().await?;
    let group = gateway.group("g").await?;
    ensure!(group["state"] == "open" && group["needed"] == 3, "{group}");
    ensure!(in_state(&group, "scored") == [scored.clone()], "{group}");
    ensure!(group["trajectories"][0]["reward"] == 0.25, "{group}");
    // Whoever drove the lost ones learns it.
    let lost = in_state(&group, "aborted");
    ensure!(lost == open[1..], "{group}");
    let aborted = gateway.until_state(running, "aborted").await?;
    ensure!(aborted["fault"]["type"] == "infrastructure", "{aborted}");
    let path = format!("/t/{running}/v1/chat/completions");
    let (status, refused) = gateway.post(&path, &chat("three", 8)).await?;
    ensure!((400..500).contains(&status), "{status}: {refused}");
    ensure!(refused["error"]["code"] == "Aborted", "{status}: {refused}");
    // Their sandboxes are gone, and the new ones are named to whoever opens it again.
    client.wait_until_empty().await?;
    let again = gateway.expect(200, "/rollout/v1/groups", &body).await?;
    let replacements = in_state(&again, "running");
    ensure!(replacements.len() == 2, "{again}");
    ensure!(replacements.iter().all(|id| !open.contains(id)), "{replacements:?}");
    judge.answer(0.5);
    for trajectory in &replacements {
        gateway.turn(trajectory, &chat("again", 8)).await?;
        let (status, reply) = gateway.tell(trajectory, "complete", &json!({})).await?;
        ensure!(status == 202, "{reply}");
    }
    let batch = gateway.take(1).await?;
    let group = &batch["groups"][0];
    ensure!(group["payload"] == body["payload"], "{group}");
    let records = group["trajectories"].as_array().context("no trajectories")?;
    let got: Vec<(&str, f64)> = records
        .iter()
        .filter_map(|record| Some((record["id"].as_str()?, record["reward"].as_f64()?)))
        .collect();
    let mut expected = vec![(scored.as_str(), 0.25)];
    expected.extend(replacements.iter().map(|id| (id.as_str(), 0.5)));
    ensure!(got == expected, "{got:?}");
    ensure!(Record::check(&records[0])?.text() == kept);
    gateway.acknowledge(&batch).await?;
    let take = json!({"groups": 1, "wait": 0});
    gateway.expect(204, "/rollout/v1/batches/take", &take).await?;
    gateway.until_empty().await?;
    gateway.stop().await?;
    stack.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_one_state_directory_ends_with_a_sentence() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let mut second = gateway.command("second.log")?.spawn()?;
    let status = tokio::time::timeout(LIMIT, second.wait()).await??;
    let log = gateway.log("second.log");
    ensure!(!status.success(), "{log}");
    ensure!(log.contains("state") && log.contains("another"), "{log}");
    ensure!(!log.contains("panicked"), "{log}");
    // The first is none the worse.
    rolled_out(&gateway, "g").await?;
    gateway.take(1).await?;
    gateway.stop().await
}

/// Rules of time rest on the monotonic clock; only event ids begin with the wall clock, so
/// that they grow from one start to the next. A clock that was set back between must not
/// hide events from a client that comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_id_of_a_clock_that_was_set_back_is_answered_with_a_gap() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    rolled_out(&gateway, "g").await?;
    let mut stream = TcpStream::connect(gateway.address()?).await?;
    let head = format!(
        "GET /rollout/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\
         Last-Event-ID: {}\r\n\r\n",
        u64::MAX - 1
    );
    stream.write_all(head.as_bytes()).await?;
    let mut read = Vec::new();
    wait::until("a gap", LIMIT, async || {
        ensure!(stream.read_buf(&mut read).await? > 0, "it was closed");
        Ok(String::from_utf8_lossy(&read).contains("event: gap"))
    })
    .await?;
    drop(stream);
    gateway.stop().await
}
