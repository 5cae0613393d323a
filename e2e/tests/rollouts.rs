//! Rollouts through a real gateway process: aborts, weight updates in the middle of turns,
//! evaluations, and a trainer that does not do its part. Engines and the reward service are
//! simulators; queue, agent and Docker are real.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{self, Client, End, shell, until_output};
use rollwright_e2e::gateway::{Gateway, Judge, LIMIT, Record, Setup, Stream, chat, in_state};
use rollwright_e2e::stack::Stack;
use rollwright_e2e::wait;
use rollwright_engine_sim::{Config, EngineSim, Latency, Outcome};
use serde_json::{Value, json};

/// Replies end at `max_tokens` only, a token every few milliseconds.
fn slow() -> Config {
    let latency = Latency { step: Duration::from_millis(5), ..Latency::default() };
    Config { latency, mean_tokens: 0, ..Config::default() }
}

async fn engines(count: usize, config: &Config) -> anyhow::Result<Vec<EngineSim>> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(EngineSim::start(config.clone()).await?);
    }
    Ok(engines)
}

fn ensure_rules_kept(engines: &[EngineSim]) -> anyhow::Result<()> {
    for engine in engines {
        let violations = engine.violations();
        ensure!(violations.is_empty(), "{violations:?}");
    }
    Ok(())
}

/// A trajectory's whole turn, not streamed.
async fn turn(gateway: &Gateway, trajectory: &str, body: &Value) -> anyhow::Result<String> {
    let path = format!("/t/{trajectory}/v1/chat/completions");
    let reply = gateway.expect(200, &path, body).await?;
    let text = reply["choices"][0]["message"]["content"].as_str().context("no text")?;
    Ok(text.to_owned())
}

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
        turn(gateway, scoring, &chat("scored", 4)).await?;
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
        turn(&gateway, kept, &chat("short", 4)).await?;
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

/// Two engines of one policy, and trajectories in the middle of a streamed turn of 1,500
/// tokens on each.
struct Updated {
    engines: Vec<EngineSim>,
    gateway: Gateway,
    streams: Vec<(String, Stream)>,
}

const TOKENS: usize = 1500;

impl Updated {
    async fn start(in_flight: &str) -> anyhow::Result<Self> {
        let engines = engines(2, &slow()).await?;
        let rollout = json!({
            "groupSize": 1, "batchGroups": 4, "stalenessBound": 2,
            "weightSync": {"inFlight": in_flight},
        });
        let gateway = Gateway::start(Setup::before(&engines).rollout(rollout)).await?;
        let mut streams = Vec::new();
        for number in 0..4 {
            let open = gateway.open(&json!({"id": format!("g{number}")})).await?;
            let mut stream = gateway.stream(&open[0], &Self::prompt(&open[0])).await?;
            stream.until_length(20).await?;
            streams.push((open[0].clone(), stream));
        }
        ensure!(engines.iter().all(|engine| engine.load().0 == 2), "two on each engine");
        Ok(Self { engines, gateway, streams })
    }

    fn prompt(trajectory: &str) -> Value {
        chat(&format!("tell {trajectory}"), TOKENS)
    }

    /// A turn after the update, whose tokens are all new.
    async fn next(&self, trajectory: &str, said: &str) -> anyhow::Result<String> {
        let mut next = Self::prompt(trajectory);
        next["max_tokens"] = json!(30);
        let messages = next["messages"].as_array_mut().context("no messages")?;
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": "go on"}));
        turn(&self.gateway, trajectory, &next).await
    }

    /// Ends the trajectories; their records in the batch, against what their clients saw.
    async fn finish(self, said: &[(String, String)]) -> anyhow::Result<Vec<Record>> {
        for (trajectory, _) in said {
            self.gateway.complete(trajectory, 1.0).await?;
        }
        let batch = self.gateway.take(4).await?;
        ensure!(batch["version"] == 1, "{}", batch["version"]);
        let mut records = Vec::new();
        for (trajectory, text) in said {
            let groups = batch["groups"].as_array().into_iter().flatten();
            let mut all =
                groups.flat_map(|group| group["trajectories"].as_array().into_iter().flatten());
            let found = all.find(|record| record["id"] == **trajectory).context("lost")?;
            let record = Record::check(found).with_context(|| trajectory.clone())?;
            ensure!(record.text() == *text, "the client of {trajectory} saw something else");
            // Never back to an older version.
            ensure!(record.versions().is_sorted(), "{:?}", record.versions());
            ensure!(record.said.last() == Some(&Some(1)), "its last turn is new");
            records.push(record);
        }
        self.gateway.acknowledge(&batch).await?;
        ensure_rules_kept(&self.engines)?;
        ensure!(self.engines.iter().all(|engine| engine.version() == 1));
        self.gateway.stop().await?;
        Ok(records)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recompute_goes_on_in_mid_turn_with_the_new_weights() -> anyhow::Result<()> {
    let mut it = Updated::start("Recompute").await?;
    let committed = it.gateway.publish(1).await?;
    ensure!(committed["workers"] == 2, "{committed}");
    let mut said = Vec::new();
    for (trajectory, stream) in std::mem::take(&mut it.streams) {
        let first = stream.end().await.done()?;
        ensure!(first.len() == TOKENS, "{} of {TOKENS}", first.len());
        let second = it.next(&trajectory, &first).await?;
        said.push((trajectory, first + &second));
    }
    for record in it.finish(&said).await? {
        ensure!(record.versions() == [0, 1], "{:?}", record.versions());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_ends_the_turns_on_the_old_weights_before_the_update() -> anyhow::Result<()> {
    let mut it = Updated::start("Keep").await?;
    it.gateway.publish(1).await?;
    // All that ran when it began has ended when it is over.
    for engine in &it.engines {
        let open = engine.requests().iter().filter(|made| made.outcome == Outcome::Running).count();
        ensure!(open == 0, "{:?}", engine.requests());
    }
    let mut said = Vec::new();
    for (trajectory, stream) in std::mem::take(&mut it.streams) {
        let first = stream.end().await.done()?;
        let second = it.next(&trajectory, &first).await?;
        said.push((trajectory, first + &second));
    }
    for record in it.finish(&said).await? {
        let old = record.said.iter().filter(|said| **said == Some(0)).count();
        ensure!(old == TOKENS, "{old} tokens of {TOKENS} by the old weights");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_starts_the_turns_again_with_the_new_weights() -> anyhow::Result<()> {
    let mut it = Updated::start("Abort").await?;
    // One whose client has seen nothing of its turn starts again without its doing.
    let (quiet, _) = it.streams.remove(3);
    let body = Updated::prompt(&quiet);
    let path = format!("/t/{quiet}/v1/chat/completions");
    let idle = wait::until("its stream is gone", LIMIT, async || {
        Ok(it.engines.iter().map(|engine| engine.load().0).sum::<usize>() == 3)
    });
    idle.await?;
    let call = tokio::spawn(it.gateway.request(&path, &body).send());
    wait::until("it is generated", LIMIT, async || {
        Ok(it.engines.iter().map(|engine| engine.load().0).sum::<usize>() == 4)
    })
    .await?;
    it.gateway.publish(1).await?;
    let reply: Value = call.await??.json().await?;
    let first = reply["choices"][0]["message"]["content"].as_str().context("no text")?;
    let mut said = vec![(quiet.clone(), first.to_owned())];
    // The others are told, and ask again.
    for (trajectory, stream) in std::mem::take(&mut it.streams) {
        let error = stream.end().await.failed()?;
        ensure!(error["type"] == "infrastructure", "{error}");
        let again = turn(&it.gateway, &trajectory, &Updated::prompt(&trajectory)).await?;
        said.push((trajectory, again));
    }
    for (trajectory, text) in &mut said {
        let second = it.next(trajectory, text).await?;
        text.push_str(&second);
    }
    for record in it.finish(&said).await? {
        ensure!(record.versions() == [1], "{:?}", record.versions());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluation_keeps_its_version_over_a_commit_and_enters_no_batch() -> anyhow::Result<()> {
    let engines = engines(2, &slow()).await?;
    let rollout = json!({"groupSize": 1, "evaluationWorkers": 1, "stalenessBound": 2});
    let gateway = Gateway::start(Setup::before(&engines).rollout(rollout)).await?;
    let body = json!({"id": "evaluation", "evaluation": true, "rollouts": 2, "version": 0});
    let evaluated = gateway.open(&body).await?;
    let trained = gateway.open(&json!({"id": "training"})).await?;
    let mut streams = Vec::new();
    for trajectory in evaluated.iter().chain(&trained) {
        let mut stream = gateway.stream(trajectory, &chat(trajectory, 600)).await?;
        stream.until_length(20).await?;
        streams.push(stream);
    }
    gateway.publish(1).await?;
    ensure!(engines.iter().map(EngineSim::version).sum::<u64>() == 1, "one is passed over");
    let mut said = Vec::new();
    for stream in streams {
        said.push(stream.end().await.done()?);
    }
    for (trajectory, first) in evaluated.iter().chain(&trained).zip(said) {
        let mut next = chat(trajectory, 30);
        let messages = next["messages"].as_array_mut().context("no messages")?;
        messages.push(json!({"role": "assistant", "content": first}));
        messages.push(json!({"role": "user", "content": "go on"}));
        next["stream"] = json!(false);
        let request = gateway.request("/v1/chat/completions", &next);
        let reply = request.header("X-Rollwright-Trajectory", trajectory).send().await?;
        ensure!(reply.status() == 200, "{}", reply.text().await?);
    }
    for engine in &engines {
        for made in engine.requests() {
            let trajectory = made.trajectory.clone().context("whose?")?;
            let pinned = evaluated.contains(&trajectory);
            ensure!(!pinned || made.versions == [0], "{made:?}");
        }
    }
    let whose = |id: &str| {
        let all = engines.iter().flat_map(EngineSim::requests);
        all.filter(|made| made.trajectory.as_deref() == Some(id)).collect::<Vec<_>>()
    };
    for trajectory in &evaluated {
        ensure!(whose(trajectory).iter().map(|made| made.tokens).sum::<usize>() >= 630);
        gateway.complete(trajectory, 0.5).await?;
    }
    for trajectory in &evaluated {
        let ended = gateway.until_state(trajectory, "settled").await?;
        ensure!(ended["oldest_version"] == 0 && ended["start_version"] == 0, "{ended}");
    }
    // Its worker is brought up to date, and only then trains.
    gateway.until_ready().await?;
    ensure!(engines.iter().all(|engine| engine.version() == 1));
    gateway.complete(&trained[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    ensure!(batch["groups"][0]["id"] == "training", "{}", batch["groups"][0]["id"]);
    Record::check(&batch["groups"][0]["trajectories"][0])?;
    gateway.acknowledge(&batch).await?;
    let (status, more) =
        gateway.post("/rollout/v1/batches/take", &json!({"groups": 1, "wait": 0})).await?;
    ensure!(status == 204, "{more}");
    let report = gateway.status().await?;
    ensure!(report["buffer"]["groups"] == 0, "{report}");
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

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
            turn(&gateway, &trajectory, &chat("hello", 4)).await?;
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
    turn(gateway, &open[0], &chat("hello", 8)).await?;
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
