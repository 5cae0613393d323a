//! Updates of the weights in the middle of turns, and evaluations beside them.

use anyhow::{Context as _, ensure};
use rollwright_e2e::gateway::{
    Gateway, LIMIT, Record, Setup, Stream, chat, engines, ensure_rules_kept, slow,
};
use rollwright_e2e::wait;
use rollwright_engine_sim::{EngineSim, Outcome};
use serde_json::{Value, json};

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
        self.gateway.turn(trajectory, &next).await
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
        let again = it.gateway.turn(&trajectory, &Updated::prompt(&trajectory)).await?;
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
