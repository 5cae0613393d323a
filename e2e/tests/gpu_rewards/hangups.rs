//! Callers in plain HTTP who hang up before they are answered.

use anyhow::{Context as _, ensure};
use reqwest::RequestBuilder;
use rollwright_e2e::rewards::{Calls, Rewards};
use rollwright_e2e::wait;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::{LIMIT, beside, one_judge, times_asked, until_asked, until_running};

/// A request for so many tokens, which its engine knows by `name`.
fn request(rewards: &Rewards, name: &str, tokens: u32) -> anyhow::Result<RequestBuilder> {
    // One connection each: what hangs up is the connection.
    let http = reqwest::Client::builder().unix_socket(rewards.socket()).build()?;
    let body = json!({"model": "judge", "prompt": "rate this", "max_tokens": tokens});
    let url = "http://queue/v1/rewards/judge/v1/completions";
    Ok(http.post(url).header("x-request-id", name).json(&body))
}

type Caller = JoinHandle<reqwest::Result<reqwest::Response>>;

/// Its connection is closed when this returns.
async fn hang_up(caller: Caller) -> anyhow::Result<()> {
    ensure!(!caller.is_finished(), "it was answered before it hung up");
    caller.abort();
    ensure!(caller.await.is_err_and(|ended| ended.is_cancelled()), "it was answered meanwhile");
    Ok(())
}

/// What runs and waits, as `GET /v1/stats` says it.
async fn load(rewards: &Rewards) -> anyhow::Result<(u64, u64)> {
    let http = reqwest::Client::builder().unix_socket(rewards.socket()).build()?;
    let said: Value = http.get("http://queue/v1/stats").send().await?.json().await?;
    let of = |name: &str| said["gpu_pools"][0]["services"][0][name].as_u64();
    of("running").zip(of("waiting")).with_context(|| said.to_string())
}

async fn until_load(rewards: &Rewards, what: &str, wanted: (u64, u64)) -> anyhow::Result<()> {
    wait::until(what, LIMIT, async || Ok(load(rewards).await? == wanted)).await
}

/// The engine serves the next call, and is the one that it was.
async fn serves_on(calls: &Calls, id: &str) -> anyhow::Result<()> {
    ensure!(calls.complete(id, "judge", 1).await?.status == 200);
    let judge = calls.service("judge").await?;
    ensure!((judge.restores, judge.failures) == (1, 0), "after {id}: {judge:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_hung_up_ends_and_its_engine_serves_on() -> anyhow::Result<()> {
    let (rewards, calls) = one_judge("hang").await?;

    // While the engine is launched for it, while it runs, and while it waits for another.
    let launching = tokio::spawn(request(&rewards, "launching", 30_000)?.send());
    wait::until("it waits", LIMIT, async || {
        let (running, waiting) = load(&rewards).await?;
        Ok(running + waiting == 1)
    })
    .await?;
    hang_up(launching).await?;
    until_load(&rewards, "nothing is left of it", (0, 0)).await?;
    serves_on(&calls, "after-launching").await?;

    let running = tokio::spawn(request(&rewards, "running", 30_000)?.send());
    until_asked(&rewards, "running").await?;
    until_load(&rewards, "it runs", (1, 0)).await?;
    hang_up(running).await?;
    until_load(&rewards, "nothing runs for nobody", (0, 0)).await?;
    serves_on(&calls, "after-running").await?;

    let busy = beside(&calls, "busy", "judge", 30_000);
    until_running(&calls, "judge").await?;
    let waiting = tokio::spawn(request(&rewards, "waiting", 1)?.send());
    until_load(&rewards, "it waits", (1, 1)).await?;
    hang_up(waiting).await?;
    until_load(&rewards, "it waits no more", (1, 0)).await?;
    ensure!(calls.cancel("busy").await?);
    ensure!(busy.await?.is_err());
    serves_on(&calls, "after-waiting").await?;
    ensure!(times_asked(&rewards, "waiting").await? == 0, "it was asked for nobody");

    // In the midst of its body.
    let mut caller = UnixStream::connect(rewards.socket()).await?;
    let head = "POST /v1/rewards/judge/v1/completions HTTP/1.1\r\nhost: queue\r\n";
    let begun = format!("{head}x-request-id: half\r\ncontent-length: 100\r\n\r\n{{\"model\": ");
    caller.write_all(begun.as_bytes()).await?;
    caller.shutdown().await?;
    // The queue closes it too, whatever it has said until then.
    let mut said = Vec::new();
    tokio::time::timeout(LIMIT, caller.read_to_end(&mut said)).await??;
    until_load(&rewards, "nothing came of it", (0, 0)).await?;
    serves_on(&calls, "after-half").await?;
    ensure!(times_asked(&rewards, "half").await? == 0, "half a body was asked");
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_an_id_of_its_callers_goes_on_without_him() -> anyhow::Result<()> {
    let (rewards, calls) = one_judge("comes-back").await?;
    serves_on(&calls, "before").await?;
    let named =
        || anyhow::Ok(request(&rewards, "named", 200)?.header("x-rollwright-action", "named"));
    let left = tokio::spawn(named()?.send());
    until_asked(&rewards, "named").await?;
    left.abort();
    // On a slow machine it may have been answered before.
    let _ = left.await;
    // He comes back, and is given the answer of the one call that was made.
    let answer = named()?.timeout(LIMIT).send().await?;
    ensure!(answer.status() == 200, "{answer:?}");
    let said: Value = answer.json().await?;
    ensure!(said["usage"]["completion_tokens"] == 200, "{said}");
    let times = times_asked(&rewards, "named").await?;
    ensure!(times == 1, "it was asked {times} times");
    until_load(&rewards, "nothing is left of it", (0, 0)).await?;
    serves_on(&calls, "after").await?;
    rewards.stop().await
}
