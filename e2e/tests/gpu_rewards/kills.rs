//! What becomes of calls and engines when a process is killed, or another claims them.

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Calls, Node, Rewards, Service, completion};
use rollwright_e2e::wait;
use rollwright_proto::v1::CallRequest;
use rollwright_proto::v1::fault::Kind;

use crate::{LIMIT, beside, fault, one_judge, times_asked, until_asked, until_running};

/// Tokens that the engine of a service has made since it was started, by its own account.
async fn tokens(calls: &Calls, id: &str, service: &str) -> anyhow::Result<u64> {
    let request = CallRequest {
        method: "GET".to_owned(),
        path: "/metrics".to_owned(),
        body: Vec::new().into(),
        ..completion(id, service, 0)
    };
    let text = String::from_utf8(calls.call(request).await?.body.to_vec())?;
    let line = text.lines().find(|line| line.starts_with("vllm:generation_tokens_total"));
    let value = line.and_then(|line| line.split_whitespace().last()).context("no such metric")?;
    Ok(value.parse::<f64>()? as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_runs_outlives_its_queue_and_not_its_agent() -> anyhow::Result<()> {
    let (mut rewards, calls) = one_judge("one").await?;
    calls.complete("first", "judge", 1).await?;
    let before = tokens(&calls, "count-1", "judge").await?;

    // The queue is killed while it runs; its caller asks again.
    let lost = beside(&calls, "slow", "judge", 200);
    // Its start is on disk before its agent hears of it: a queue that ends between gives it up.
    until_asked(&rewards, "slow").await?;
    rewards.kill_queue().await?;
    ensure!(lost.await?.is_err());
    rewards.start_queue().await?;
    let calls = rewards.calls().await?;
    // At once: perhaps before the agent is back, and says that it has it.
    let answer = calls.complete("slow", "judge", 200).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let after = tokens(&calls, "count-2", "judge").await?;
    ensure!(after == before + 200, "{} tokens were made for one call of 200", after - before);

    // The agent is killed while it runs: what it called is lost, and said so.
    let lost = beside(&calls, "slow-2", "judge", 200);
    until_running(&calls, "judge").await?;
    rewards.kill_agent().await?;
    rewards.start_agent()?;
    let status = lost.await?.expect_err("nobody has its answer");
    let fault = fault(&status);
    ensure!(
        (fault.kind(), fault.reason.as_str()) == (Kind::Infrastructure, "AgentLost"),
        "{fault:?}"
    );
    // A repeated id gets the kept fault, and a new one runs.
    let again = calls.complete("slow-2", "judge", 200).await.expect_err("the same end");
    ensure!(rollwright_queue::fault::of_status(&again).as_ref() == Some(&fault));
    ensure!(calls.complete("anew", "judge", 1).await?.status == 200);

    // It is told to end while it runs: what it calls is answered first.
    let answered = beside(&calls, "slow-3", "judge", 200);
    until_running(&calls, "judge").await?;
    rewards.end_agent().await?;
    ensure!(answered.await??.status == 200);
    ensure!(calls.engines().await?.is_empty(), "they end with it");
    rewards.start_agent()?;
    rewards.linked().await?;
    ensure!(calls.complete("last", "judge", 1).await?.status == 200);
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_under_a_call_takes_that_call_alone() -> anyhow::Result<()> {
    let (rewards, calls) = one_judge("engine").await?;
    calls.complete("first", "judge", 1).await?;
    let before = calls.engines().await?;
    let lost = beside(&calls, "lost", "judge", 30_000);
    until_asked(&rewards, "lost").await?;
    let waits = beside(&calls, "waits", "judge", 1);
    wait::until("one waits", LIMIT, async || Ok(calls.service("judge").await?.waiting == 1))
        .await?;
    rewards.kill_engines();

    let status = lost.await?.expect_err("its engine is gone");
    let died = fault(&status);
    ensure!(
        (died.kind(), died.reason.as_str()) == (Kind::Infrastructure, "EngineDied"),
        "{died:?}"
    );
    ensure!(died.message.contains("engine-sim (a simulator"), "its last words: {died:?}");
    // What waited is served by the next engine, which was not asked the other again.
    ensure!(waits.await??.status == 200);
    let again = calls.complete("lost", "judge", 30_000).await.expect_err("the same end");
    ensure!(fault(&again) == died, "{again:?}");
    ensure!(rewards.asked().await? == ["waits"]);
    let (after, judge) = (calls.engines().await?, calls.service("judge").await?);
    ensure!(after.len() == 1 && after[0].engine != before[0].engine, "{before:?}, {after:?}");
    ensure!((judge.running, judge.waiting, judge.failures) == (0, 0, 1), "{judge:?}");
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_queue_and_agent_are_both_killed_is_not_made_twice() -> anyhow::Result<()> {
    let (mut rewards, calls) = one_judge("both").await?;
    calls.complete("first", "judge", 1).await?;
    let before = calls.engines().await?[0].engine;
    let lost = beside(&calls, "lost", "judge", 30_000);
    until_asked(&rewards, "lost").await?;
    rewards.kill_queue().await?;
    rewards.kill_agent().await?;
    ensure!(lost.await?.is_err());
    rewards.start_queue().await?;
    let calls = rewards.calls().await?;
    // Asked before there is an agent again.
    let again = beside(&calls, "lost", "judge", 30_000);
    rewards.start_agent()?;
    let status = again.await?.expect_err("nobody has its answer");
    let gone = fault(&status);
    ensure!((gone.kind(), gone.reason.as_str()) == (Kind::Infrastructure, "AgentLost"), "{gone:?}");
    ensure!(calls.complete("anew", "judge", 1).await?.status == 200);
    ensure!(calls.engines().await?[0].engine == before, "it was taken over");

    // One that is cancelled as the queue is killed.
    let cancelled = beside(&calls, "cancelled", "judge", 30_000);
    until_asked(&rewards, "cancelled").await?;
    ensure!(calls.cancel("cancelled").await?);
    rewards.kill_queue().await?;
    // Whether it hears of that is the kill's to say.
    let _ = cancelled.await?;
    rewards.start_queue().await?;
    let calls = rewards.calls().await?;
    // Its agent may not have heard of it: then it goes on, and can be cancelled again.
    let again = beside(&calls, "cancelled", "judge", 30_000);
    wait::until("it ends", LIMIT, async || {
        calls.cancel("cancelled").await?;
        Ok(again.is_finished())
    })
    .await?;
    let status = again.await?.expect_err("it was cancelled");
    ensure!(fault(&status).kind() == Kind::Cancelled, "{status:?}");
    ensure!(calls.complete("last", "judge", 1).await?.status == 200);
    for id in ["lost", "cancelled"] {
        let times = times_asked(&rewards, id).await?;
        ensure!(times == 1, "{id} was asked {times} times");
    }
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_two_agents_claim_stays_with_the_first() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("two", Node::of(1), &[Service::new("judge", &[1])]).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    calls.complete("first", "judge", 3).await?;
    let before = calls.engines().await?;

    // A second agent brings the same engine, verified to be awake.
    let mut impostor = rewards.start_impostor().await?;
    let same = async || anyhow::Ok(calls.engines().await? == before);
    ensure!(same().await?, "{before:?}, {:?}", calls.engines().await?);
    // It is called once, and not ended for what the second has.
    let made = tokens(&calls, "count-1", "judge").await?;
    calls.complete("claimed", "judge", 3).await?;
    ensure!(tokens(&calls, "count-2", "judge").await? == made + 3);
    impostor.kill().await?;
    wait::until("the second is gone", LIMIT, async || Ok(calls.pool().await?.nodes == 1)).await?;
    calls.complete("after", "judge", 3).await?;
    ensure!(tokens(&calls, "count-3", "judge").await? == made + 6);
    let judge = calls.service("judge").await?;
    ensure!(same().await? && (judge.restores, judge.failures) == (1, 0), "{judge:?}");
    rewards.stop().await
}
