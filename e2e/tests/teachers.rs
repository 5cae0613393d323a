//! Distillation from several teachers: a record carries what each of them gives to its
//! tokens, and what a judge behind a queue says of it. Policy and models are simulators, one
//! judge is a test server; the gateway is the program. Behind a queue, the GPU is a **fake**.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::Version;
use rollwright_e2e::gateway::{Gateway, Record, Setup, chat};
use rollwright_e2e::rewards::{Node, Rewards, Service, own};
use rollwright_e2e::wait;
use rollwright_engine_sim::{Config, Dialect, EngineSim, logprobs_of};
use rollwright_gateway::actions::Actions;
use rollwright_gateway::reward::{GpuScorer, Said, Subject, Tokens};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(2);

fn numbers(list: &Value) -> anyhow::Result<Vec<Option<f64>>> {
    Ok(list.as_array().context("no list")?.iter().map(Value::as_f64).collect())
}

/// A turn, so that there are tokens; then the end, with a reward.
async fn roll(gateway: &Gateway, trajectory: &str, text: &str) -> anyhow::Result<()> {
    gateway.turn(trajectory, &chat(text, 12)).await?;
    gateway.complete(trajectory, 0.5).await
}

/// An engine whose weights, and so its log-probabilities, are another version's.
async fn teacher(dialect: Dialect, version: u64) -> anyhow::Result<EngineSim> {
    Ok(EngineSim::start(Config { dialect, version, ..Config::default() }).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_carries_what_each_teacher_gives_to_its_tokens() -> anyhow::Result<()> {
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    let (vllm, sglang) = (teacher(Dialect::Vllm, 3).await?, teacher(Dialect::Sglang, 5).await?);
    let teachers = vec![("code", "vLLM", vllm.url()), ("proof", "SGLang", sglang.url())];
    let setup = Setup { teachers, ..Setup::before(std::slice::from_ref(&engine)) };
    let gateway = Gateway::start(setup).await?;
    let open = gateway.open(&json!({"id": "g"})).await?;
    roll(&gateway, &open[0], "prove it").await?;
    let batch = gateway.take(1).await?;
    let record = &batch["groups"][0]["trajectories"][0];
    let tokens = Record::check(record)?;
    ensure!(record["reward"] == 0.5, "{record}");
    for (name, version) in [("code", 3), ("proof", 5)] {
        let said = numbers(&record["teacher_logprobs"][name]).with_context(|| name)?;
        let wanted = logprobs_of(&tokens.ids, version);
        ensure!(said.len() == wanted.len(), "{name}: {} numbers", said.len());
        for (at, (said, wanted)) in said.iter().zip(wanted).enumerate() {
            // Known of all but the first, and kept where the policy generated.
            let wanted = wanted.filter(|_| tokens.said[at].is_some());
            let near = match (said, wanted) {
                (Some(said), Some(wanted)) => (said - wanted).abs() < 1e-5,
                (said, wanted) => said.is_none() && wanted.is_none(),
            };
            ensure!(near, "{name}, token {at}: {said:?} in the place of {wanted:?}");
        }
    }
    gateway.acknowledge(&batch).await?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_teacher_that_is_away_is_waited_for_and_an_evaluation_asks_none() -> anyhow::Result<()> {
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    let address = teacher(Dialect::Vllm, 3).await?.url();
    let setup = Setup {
        teachers: vec![("code", "vLLM", address.clone())],
        ..Setup::before(std::slice::from_ref(&engine))
    };
    let gateway = Gateway::start(setup).await?;
    let open = gateway.open(&json!({"id": "measured", "evaluation": true})).await?;
    roll(&gateway, &open[0], "measure it").await?;
    gateway.until_state(&open[0], "settled").await?;
    let open = gateway.open(&json!({"id": "trained"})).await?;
    roll(&gateway, &open[0], "train on it").await?;
    // Its reward is known, and without the teacher it is no record yet.
    gateway.until_state(&open[0], "scoring").await?;
    gateway.stop().await
}

fn subject(token_ids: Vec<u32>, loss_mask: Vec<u8>) -> anyhow::Result<Subject> {
    Ok(Subject {
        trajectory: TrajectoryId::new("g/0")?,
        group: GroupId::new("g")?,
        task: Task::new("math")?,
        payload: None,
        metadata: None,
        messages: None,
        tokens: Some(Tokens { token_ids, loss_mask }),
        turns: 1,
        prompt_tokens: 1,
        generated_tokens: 2,
        start_version: Version(0),
        oldest_version: Version(0),
    })
}

/// As a gateway asks it through the queue.
fn scorer(rewards: &Rewards, name: &str) -> anyhow::Result<GpuScorer> {
    let service = serde_json::from_value(json!({
        "queue": "rewards", "pool": "judges", "ask": "LogProbs", "model": {"path": name},
        "engine": {"type": "OpenAI", "image": "process"}, "degrees": [1],
        "footprints": [{"degree": 1, "device": "50Gi"}],
    }))?;
    Ok(GpuScorer::queued(Actions::unix(&rewards.socket(), "default"), name, &service))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn teachers_behind_a_queue_share_a_gpu_and_one_nobody_waits_for_is_free() -> anyhow::Result<()>
{
    let [code, proof, slow] = ["code", "proof", "slow"].map(|name| Service::new(name, &[1]));
    let services = [code, proof, Service { step_ms: 600_000, ..slow }];
    let mut rewards = Rewards::start("teach", Node::of(1), &services).await?;
    rewards.linked().await?;
    let ids = vec![104, 105, 106];
    let known = logprobs_of(&ids, 0);
    let wanted = vec![None, known[1].map(|p| p as f32), known[2].map(|p| p as f32)];
    let subject = subject(ids, vec![0, 1, 1])?;
    for name in ["code", "proof"] {
        let said = scorer(&rewards, name)?.score(&subject, 1).await?;
        ensure!(said == Said::LogProbs(wanted.clone()), "{name}: {said:?}");
    }
    let calls = rewards.calls().await?;
    let (code, proof) = (calls.service("code").await?, calls.service("proof").await?);
    ensure!((code.calls, code.evictions, proof.calls) == (1, 1, 1), "{code:?}, {proof:?}");
    // The same attempt again is answered by what is kept; another asks anew.
    let scorer_of_proof = scorer(&rewards, "proof")?;
    scorer_of_proof.score(&subject, 1).await?;
    ensure!(calls.service("proof").await?.calls == 1);
    scorer_of_proof.score(&subject, 2).await?;
    ensure!(calls.service("proof").await?.calls == 2);

    let slow = scorer(&rewards, "slow")?;
    let waits = tokio::spawn(async move { slow.score(&subject, 1).await });
    wait::until("the slow teacher is asked", LIMIT, async || {
        Ok(calls.service("slow").await?.running == 1)
    })
    .await?;
    waits.abort();
    wait::until("nothing runs that nobody waits for", LIMIT, async || {
        let slow = calls.service("slow").await?;
        Ok(slow.running + slow.waiting == 0)
    })
    .await?;
    rewards.stop().await
}

/// Three teachers and a reward model, each with weights of its own.
const SCHOOL: [(&str, &str, u64); 4] = [
    ("code", "LogProbs", 3),
    ("proof", "LogProbs", 5),
    ("style", "LogProbs", 7),
    ("judge", "Pooling", 2),
];

/// What an engine says of ids, asked directly.
async fn direct(config: Config, path: &str, body: Value) -> anyhow::Result<Value> {
    let engine = EngineSim::start(config).await?;
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    let reply = http.post(format!("{}{path}", engine.url())).json(&body).send().await?;
    Ok(reply.error_for_status()?.json().await?)
}

/// A record holds what each of [`SCHOOL`] says of its tokens, bit for bit.
async fn ensure_taught(record: &Value) -> anyhow::Result<()> {
    let tokens = Record::check(record)?;
    let said = record["teacher_logprobs"].as_object().context("no teacher")?;
    ensure!(said.keys().eq(["code", "proof", "style"]), "{:?}", said.keys());
    for (name, ask, version) in SCHOOL {
        let config = Config { model: name.to_owned(), version, ..Config::default() };
        if ask == "Pooling" {
            let body = json!({"input": tokens.ids, "use_activation": false});
            let wanted = direct(config, "/pooling", body).await?;
            let rows = wanted["data"][0]["data"].as_array().context("no rows")?;
            let last = rows.last().and_then(|row| row[0].as_f64());
            let bits = |number: Option<f64>| number.map(f64::to_bits);
            ensure!(bits(record["reward"].as_f64()) == bits(last), "{} {last:?}", record["reward"]);
            continue;
        }
        let body = json!({"prompt": tokens.ids, "max_tokens": 1, "prompt_logprobs": 0});
        let wanted = direct(config, "/v1/completions", body).await?;
        let wanted = &wanted["choices"][0]["prompt_logprobs"];
        let said = numbers(&said[name])?;
        ensure!(said.len() == tokens.ids.len(), "{name}: {} numbers", said.len());
        for (at, (said, id)) in said.into_iter().zip(&tokens.ids).enumerate() {
            let wanted = wanted[at][id.to_string()]["logprob"].as_f64();
            let wanted = wanted.filter(|_| tokens.said[at].is_some());
            let bits = |number: Option<f64>| number.map(|number| (number as f32).to_bits());
            ensure!(bits(said) == bits(wanted), "{name}, token {at}: {said:?} for {wanted:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_carries_what_teachers_and_a_reward_model_on_one_gpu_say() -> anyhow::Result<()> {
    let services =
        SCHOOL.map(|(name, ask, version)| Service { ask, version, ..Service::new(name, &[1]) });
    let mut rewards = Rewards::start("school", Node::of(1), &services).await?;
    rewards.linked().await?;
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    let names = SCHOOL.map(|(name, ..)| name.to_owned()).to_vec();
    let setup = Setup {
        queue: Some(rewards.socket()),
        queued: Some((rewards.manifests(), names)),
        ..Setup::before(std::slice::from_ref(&engine))
    };
    let gateway = Gateway::start(setup.rollout(json!({"groupSize": 2, "batchGroups": 2}))).await?;
    for group in ["g", "h"] {
        for trajectory in gateway.open(&json!({"id": group})).await? {
            // Two turns: what each of them generated is taught, and nothing between.
            let mut talk = chat(&format!("prove {trajectory}"), 12);
            let said = gateway.turn(&trajectory, &talk).await?;
            let messages = talk["messages"].as_array_mut().context("no messages")?;
            messages.push(json!({"role": "assistant", "content": said}));
            messages.push(json!({"role": "user", "content": "go on"}));
            gateway.turn(&trajectory, &talk).await?;
            let (status, reply) = gateway.tell(&trajectory, "complete", &json!({})).await?;
            ensure!(status == 202, "{reply}");
        }
    }
    let batch = gateway.take(2).await?;
    let groups = batch["groups"].as_array().context("no groups")?;
    let records: Vec<&Value> =
        groups.iter().filter_map(|group| group["trajectories"].as_array()).flatten().collect();
    ensure!(records.len() == 4, "{} records", records.len());
    for record in records {
        ensure_taught(record).await.with_context(|| record["id"].to_string())?;
        let mask = record["loss_mask"].as_array().context("no mask")?;
        let turns = mask.chunk_by(|one, two| one == two).filter(|part| part[0] == json!(1));
        ensure!(turns.count() == 2, "{mask:?}");
    }
    // Nobody was asked twice, and the GPU held one of them at a time.
    let calls = rewards.calls().await?;
    for (name, ..) in SCHOOL {
        let service = calls.service(name).await?;
        ensure!(service.calls == 4 && service.restores > 0 && service.failures == 0, "{service:?}");
    }
    let evictions = calls.pool().await?.services.iter().map(|of| of.evictions).sum::<u64>();
    ensure!(evictions >= 3, "{evictions}");
    gateway.acknowledge(&batch).await?;
    gateway.stop().await?;
    rewards.stop().await
}

/// What a judge says of a record, asked directly.
async fn judged(name: &str, record: &Value) -> anyhow::Result<Option<f64>> {
    let ids = &record["token_ids"];
    if name == "sglang" {
        let config = Config {
            dialect: Dialect::Sglang,
            model: name.to_owned(),
            version: 2,
            ..Config::default()
        };
        let said = direct(config, "/classify", json!({"input_ids": ids})).await?;
        return Ok(said["embedding"][0].as_f64());
    }
    let subject = json!({"token_ids": ids, "loss_mask": record["loss_mask"], "turns": 1});
    Ok(serde_json::from_value::<own::Subject>(subject)?.reward())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_carries_the_reward_of_sglang_or_of_a_program_of_ones_own() -> anyhow::Result<()> {
    let sglang = Service { version: 2, ..Service::new("sglang", &[1]).sglang() };
    let services = [sglang, Service::new("own", &[1]).own()];
    let mut rewards = Rewards::start("judges", Node::of(1), &services).await?;
    rewards.linked().await?;
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    // A job for each, and one GPU, which holds one of them awake.
    for name in ["sglang", "own"] {
        let setup = Setup {
            queue: Some(rewards.socket()),
            queued: Some((rewards.manifests(), vec![name.to_owned()])),
            ..Setup::before(std::slice::from_ref(&engine))
        };
        let gateway = Gateway::start(setup.rollout(json!({"groupSize": 2}))).await?;
        for trajectory in gateway.open(&json!({"id": "g"})).await? {
            gateway.turn(&trajectory, &chat(&format!("prove {trajectory}"), 12)).await?;
            let (status, reply) = gateway.tell(&trajectory, "complete", &json!({})).await?;
            ensure!(status == 202, "{reply}");
        }
        let batch = gateway.take(1).await?;
        let records = batch["groups"][0]["trajectories"].as_array().context("no records")?;
        let mut said = Vec::new();
        for record in records {
            Record::check(record)?;
            let wanted = judged(name, record).await?.context("it says nothing")?;
            let reward = record["reward"].as_f64().context("no reward")?;
            ensure!(reward.to_bits() == wanted.to_bits(), "{name}: {reward} for {wanted}");
            said.push(reward);
        }
        ensure!(said.len() == 2 && said[0].to_bits() != said[1].to_bits(), "{name}: {said:?}");
        gateway.acknowledge(&batch).await?;
        gateway.stop().await?;
        let service = rewards.calls().await?.service(name).await?;
        ensure!((service.calls, service.restores, service.failures) == (2, 1, 0), "{service:?}");
    }
    rewards.stop().await
}
