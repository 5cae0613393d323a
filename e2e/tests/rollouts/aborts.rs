//! An abort reaches all that a trajectory has under way.

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{self, Client, End, shell, until_output};
use rollwright_e2e::gateway::{
    Gateway, Judge, LIMIT, Setup, Stream, chat, engines, ensure_rules_kept, in_state, slow,
};
use rollwright_e2e::stack::Stack;
use rollwright_e2e::wait;
use rollwright_engine_sim::{EngineSim, Outcome};
use serde_json::{Value, json};

/// An exclusive action that ends when it is ended.
fn endless(id: &str, trajectory: &str) -> rollwright_proto::v1::ExecuteRequest {
    let action = shell(id, trajectory, "echo running; sleep 1000");
    rollwright_proto::v1::ExecuteRequest { profile: "exclusive".to_owned(), ..action }
}

/// What two trajectories have under way everywhere: `streaming` a turn at the engine, an
/// action that runs and one that waits; `scoring` a call of the reward service. Each has a
/// sandbox.
struct Busy {
    stack: Stack,
    client: Client,
    judge: Judge,
    engines: Vec<EngineSim>,
    actions: Vec<tokio::task::JoinHandle<anyhow::Result<Option<End>>>>,
    stream: Stream,
}

impl Busy {
    async fn prepare(
        name: &str,
        rollout: Value,
    ) -> anyhow::Result<(Stack, Judge, Vec<EngineSim>, Gateway)> {
        let (stack, judge) = (Stack::start(name).await?, Judge::start().await?);
        let engines = engines(1, &slow()).await?;
        let setup = Setup {
            reward: Some(judge.url.clone()),
            queue: Some(stack.socket()),
            ..Setup::before(&engines).rollout(rollout)
        };
        let gateway = Gateway::start(setup).await?;
        Ok((stack, judge, engines, gateway))
    }

    async fn start(
        (stack, judge, engines): (Stack, Judge, Vec<EngineSim>),
        gateway: &Gateway,
        streaming: &str,
        scoring: &str,
    ) -> anyhow::Result<Self> {
        let mut client = stack.client().await?;
        gateway.turn(scoring, &chat("scored", 4)).await?;
        let (status, reply) = gateway.tell(scoring, "complete", &json!({})).await?;
        ensure!((status, &reply["state"]) == (202, &json!("scoring")), "{status}: {reply}");
        wait::until("the reward is asked for", LIMIT, async || Ok(judge.begun() == 1)).await?;

        let mut stream = gateway.stream(streaming, &chat("long", 20_000)).await?;
        stream.until_length(5).await?;
        client.open(scoring, "box").await?;
        client.open(streaming, "box").await?;
        let mut running = client.submit(endless("first", streaming)).await?;
        until_output(&mut running, "running").await?;
        let mut actions = vec![tokio::spawn(ended(running))];
        // Until one has no core.
        while client.stats().await?.waiting == 0 {
            let id = format!("more-{}", actions.len());
            let events = client.submit(endless(&id, streaming)).await?;
            actions.push(tokio::spawn(ended(events)));
            ensure!(actions.len() < 1000, "every action has a core");
        }
        Ok(Self { stack, client, judge, engines, actions, stream })
    }

    /// Nothing of it is left anywhere, and each party was told.
    async fn ensure_gone(mut self, gateway: Gateway) -> anyhow::Result<()> {
        let error = self.stream.end().await.failed()?;
        ensure!(error["type"] == "cancelled", "{error}");
        gateway.until_empty().await?;
        let engine = &self.engines[0];
        wait::until("the engine is idle", LIMIT, async || Ok(engine.load() == (0, 0))).await?;
        let made = engine.requests();
        let cut: Vec<_> = made.iter().filter(|made| made.outcome != Outcome::Length).collect();
        ensure!(cut.len() == 1, "{made:?}");
        ensure!(matches!(cut[0].outcome, Outcome::Closed | Outcome::Abort), "{cut:?}");
        self.client.wait_until_empty().await?;
        for action in self.actions {
            let end = action.await??;
            ensure!(!matches!(end, Some(End::Finished(_)) | None), "{end:?}");
        }
        let judge = &self.judge;
        wait::until("the reward call is closed", LIMIT, async || Ok(judge.left() == 1)).await?;
        ensure!(judge.begun() == 1, "it was asked again");
        ensure_rules_kept(&self.engines)?;
        gateway.stop().await?;
        // No container is left.
        self.stack.stop().await
    }
}

async fn ended(
    events: tonic::Streaming<rollwright_proto::v1::ActionEvent>,
) -> anyhow::Result<Option<End>> {
    Ok(client::finish(events).await?.end)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_abort_reaches_engine_sandbox_queue_and_reward() -> anyhow::Result<()> {
    let (stack, judge, engines, gateway) = Busy::prepare("abort", json!({"groupSize": 2})).await?;
    let open = gateway.open(&json!({"id": "g"})).await?;
    let busy = Busy::start((stack, judge, engines), &gateway, &open[0], &open[1]).await?;
    for trajectory in &open {
        let (status, reply) =
            gateway.tell(trajectory, "abort", &json!({"reason": "enough"})).await?;
        ensure!((status, &reply["state"]) == (200, &json!("aborted")), "{status}: {reply}");
    }
    // What is aborted takes no more turns.
    let path = format!("/t/{}/v1/chat/completions", open[0]);
    let (status, refused) = gateway.post(&path, &chat("more", 4)).await?;
    ensure!((400..500).contains(&status), "{status}: {refused}");
    ensure!(refused["error"]["code"] == "Aborted", "{status}: {refused}");
    busy.ensure_gone(gateway).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_settles_aborts_the_redundant_ones_everywhere() -> anyhow::Result<()> {
    let rollout = json!({"groupSize": 2, "redundancy": {"environments": 2}});
    let (stack, judge, engines, gateway) = Busy::prepare("redundant", rollout).await?;
    let open = gateway.open(&json!({"id": "g"})).await?;
    ensure!(open.len() == 4, "{open:?}");
    let busy = Busy::start((stack, judge, engines), &gateway, &open[0], &open[1]).await?;
    for kept in &open[2..] {
        gateway.turn(kept, &chat("short", 4)).await?;
        gateway.complete(kept, 1.0).await?;
    }
    let batch = gateway.take(1).await?;
    let kept = batch["groups"][0]["trajectories"].as_array().context("no trajectories")?;
    let kept: Vec<&str> = kept.iter().filter_map(|record| record["id"].as_str()).collect();
    ensure!(kept == open[2..], "{kept:?}");
    let group = gateway.group("g").await?;
    ensure!(group["state"] == "settled", "{group}");
    ensure!(in_state(&group, "aborted") == open[..2], "{group}");
    busy.ensure_gone(gateway).await
}
