//! Distillation from several teachers: a record carries what each of them gives to its
//! tokens. Policy and teachers are simulators; the gateway is the program.

use anyhow::{Context as _, ensure};
use rollwright_e2e::gateway::{Gateway, Record, Setup, chat};
use rollwright_engine_sim::{Config, Dialect, EngineSim, logprobs_of};
use serde_json::{Value, json};

fn numbers(list: &Value) -> anyhow::Result<Vec<Option<f64>>> {
    Ok(list.as_array().context("no list")?.iter().map(Value::as_f64).collect())
}

/// A turn, so that there are tokens; then the end, with a reward.
async fn roll(gateway: &Gateway, trajectory: &str, text: &str) -> anyhow::Result<()> {
    let path = format!("/t/{trajectory}/v1/chat/completions");
    gateway.expect(200, &path, &chat(text, 12)).await?;
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
