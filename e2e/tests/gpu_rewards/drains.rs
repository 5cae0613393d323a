//! Agents that are told to leave while an engine of theirs is restored, and calls wait for it.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Calls, Node, Rewards, Service, completion};
use rollwright_e2e::wait;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::{CallRequest, CallResponse};
use serde_json::Value;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::{LIMIT, beside, fault, until_running};

/// Three of which a GPU holds one; their restores never end by themselves.
fn services() -> [Service; 3] {
    ["one", "two", "three"].map(|name| {
        let service = Service::new(name, &[1]);
        Service { wake: 3600, batch: 4, step_ms: 20, ..service }
    })
}

type Waiting = Vec<JoinHandle<Result<CallResponse, Status>>>;

/// Calls of `one`, which wait for its engine: it is being restored.
async fn wait_for_one(calls: &Calls) -> anyhow::Result<Waiting> {
    let waiting = (0..3).map(|n| beside(calls, &format!("waits-{n}"), "one", 2)).collect();
    wait::until("they wait", LIMIT, async || Ok(calls.service("one").await?.waiting == 3)).await?;
    let restoring = async || {
        let engines = calls.engines().await?;
        Ok(engines.iter().any(|of| of.service == "one" && of.residency == "Restoring"))
    };
    wait::until("it is being restored", LIMIT, restoring).await?;
    Ok(waiting)
}

/// How often the engine of `one` was asked each call that waited, by its own account.
async fn asked(calls: &Calls) -> anyhow::Result<BTreeMap<String, u32>> {
    let request = CallRequest {
        method: "GET".to_owned(),
        path: "/sim/requests".to_owned(),
        body: Vec::new().into(),
        ..completion("account", "one", 0)
    };
    let said: Value = serde_json::from_slice(&calls.call(request).await?.body)?;
    let mut asked = BTreeMap::new();
    for request in said["requests"].as_array().context("no requests")? {
        let id = request["rid"].as_str().filter(|id| id.starts_with("waits-"));
        *asked.entry(id.unwrap_or_default().to_owned()).or_default() += 1;
    }
    asked.remove("");
    Ok(asked)
}

/// Each was answered, and its engine was asked it once.
async fn answered_once(calls: &Calls, waiting: Waiting, node: &str) -> anyhow::Result<()> {
    for waiting in waiting {
        let answer = waiting.await??;
        ensure!(answer.status == 200 && answer.node == node, "{answer:?}");
    }
    let once = (0..3).map(|n| (format!("waits-{n}"), 1)).collect();
    let asked = asked(calls).await?;
    ensure!(asked == once, "{asked:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_restore_that_is_broken_off_are_served_on_another_node() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("broken", Node::of(1), &services()).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    // The first node has its one GPU full; the second one restores.
    let busy = beside(&calls, "busy", "two", 30_000);
    until_running(&calls, "two").await?;
    let home = calls.engines().await?[0].node.clone();
    let second = rewards.start_second().await?;
    for service in ["one", "three"] {
        let answer = calls.complete(service, service, 1).await?;
        ensure!(answer.status == 200 && answer.node != home, "{answer:?}");
    }
    second.failures.order("WakeHangs")?;
    let waiting = wait_for_one(&calls).await?;
    second.failures.happened("WakeHangs").await?;

    // Its engines end with it, and what it restores is broken off.
    second.end().await?;
    wait::until("it is gone", LIMIT, async || Ok(calls.pool().await?.nodes == 1)).await?;
    let one = calls.service("one").await?;
    ensure!((one.waiting, one.running, one.failures) == (3, 0, 0), "they go on waiting: {one:?}");
    ensure!(!waiting.iter().any(JoinHandle::is_finished) && !busy.is_finished());
    ensure!(calls.cancel("busy").await?);
    ensure!(fault(&busy.await?.expect_err("it was cancelled")).kind() == Kind::Cancelled);
    answered_once(&calls, waiting, &home).await?;
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_restore_whose_agent_leaves_alone_wait_for_the_next_one() -> anyhow::Result<()> {
    let node = Node { keeps: true, ..Node::of(2) };
    let mut rewards = Rewards::start("alone", node, &services()).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    // The third takes the place of the first, which sleeps.
    for service in ["one", "two", "three"] {
        ensure!(calls.complete(service, service, 1).await?.status == 200);
    }
    rewards.fail("WakeHangs")?;
    let waiting = wait_for_one(&calls).await?;
    rewards.failures().happened("WakeHangs").await?;
    let late = CallRequest {
        queue_deadline: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..completion("late", "one", 2)
    };
    let (caller, before) = (calls.clone(), calls.engines().await?);
    let late = tokio::spawn(async move { caller.call(late).await });
    let runs = beside(&calls, "runs", "two", 100);
    until_running(&calls, "two").await?;

    // What runs ends first; what is restored is left to the next agent.
    rewards.end_agent().await?;
    ensure!(runs.await??.status == 200);
    let late = fault(&late.await?.expect_err("nobody served it"));
    ensure!((late.kind(), late.reason.as_str()) == (Kind::Timeout, "GpuDeadline"), "{late:?}");
    ensure!(!waiting.iter().any(JoinHandle::is_finished), "they go on waiting");

    rewards.start_agent()?;
    rewards.linked().await?;
    let home = before.first().context("no engine")?.node.clone();
    answered_once(&calls, waiting, &home).await?;
    let engine = |engines: &[rollwright_proto::v1::EngineStats]| {
        engines.iter().find(|of| of.service == "one").map(|of| of.engine)
    };
    let after = calls.engines().await?;
    ensure!(engine(&before).is_some() && engine(&before) == engine(&after), "{before:?} {after:?}");
    rewards.stop().await
}
