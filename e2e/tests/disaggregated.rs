//! Prefill and decode on engines of their own, behind a gateway process that learns their
//! roles from its command line. The engines are simulators, which hold each other to the KV
//! that they hand over.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_e2e::gateway::{Gateway, Record, Setup, chat};
use rollwright_engine_sim::{Config, Dialect, Disaggregation, EngineSim, Latency, Outcome, Part};
use serde_json::{Value, json};

const TOKENS: usize = 300;

/// Replies end at their limit only, a token every few milliseconds.
fn config(dialect: Dialect) -> Config {
    let latency = Latency { step: Duration::from_millis(5), ..Latency::default() };
    Config { dialect, latency, mean_tokens: 0, ..Config::default() }
}

async fn instance(dialect: Dialect, part: Part) -> anyhow::Result<EngineSim> {
    let disaggregation = Some(Disaggregation::of(part));
    Ok(EngineSim::start(Config { disaggregation, ..config(dialect) }).await?)
}

/// A gateway before them: the first is for the prefills.
async fn gateway(
    dialect: Dialect,
    prefill: &EngineSim,
    decode: &[EngineSim],
) -> anyhow::Result<Gateway> {
    let port = prefill.side_port().context("no side channel")?;
    let mut engines = vec![format!("{},role=prefill,bootstrap={port}", prefill.url())];
    engines.extend(decode.iter().map(|engine| format!("{},role=decode", engine.url())));
    let engine = Some(if dialect == Dialect::Vllm { "vLLM" } else { "SGLang" });
    Gateway::start(Setup { engines, engine, ..Setup::default() }).await
}

/// Ids of prompt and reply as one engine makes them that does both.
async fn alone(dialect: Dialect, path: &str, body: &Value) -> anyhow::Result<Vec<u64>> {
    let engine = EngineSim::start(config(dialect)).await?;
    let mut body = body.clone();
    body["return_token_ids"] = json!(true);
    let client = reqwest::Client::builder().no_proxy().build()?;
    let reply = client.post(format!("{}{path}", engine.url())).json(&body).send().await?;
    let reply: Value = reply.json().await?;
    let ids = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let (prompt, made) = match dialect {
        Dialect::Vllm => (ids(&reply["prompt_token_ids"]), ids(&reply["choices"][0]["token_ids"])),
        _ => (ids(&body["input_ids"]), ids(&reply["output_ids"])),
    };
    Ok([prompt, made].concat().iter().filter_map(Value::as_u64).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_turn_is_that_of_one_engine_also_when_the_decode_engine_dies()
-> anyhow::Result<()> {
    let prefill = instance(Dialect::Vllm, Part::Prefill).await?;
    let mut decode = Vec::new();
    for _ in 0..2 {
        decode.push(instance(Dialect::Vllm, Part::Decode).await?);
    }
    let gateway = gateway(Dialect::Vllm, &prefill, &decode).await?;
    let body = chat("hello", TOKENS);
    let expected = alone(Dialect::Vllm, "/v1/chat/completions", &body).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &body).await?;
    stream.until_length(20).await?;
    let busy = decode.iter().find(|engine| engine.load().0 == 1).context("nobody decodes")?;
    let begun = &busy.requests()[0];
    ensure!(begun.transferred_tokens == begun.prompt_tokens - 1, "{begun:?}");
    busy.kill();
    let text = stream.end().await.done()?;
    ensure!(text.len() == TOKENS, "{} of {TOKENS}", text.len());
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    let ids: Vec<u64> = record.ids.iter().map(|id| u64::from(*id)).collect();
    ensure!(ids == expected, "other tokens than from one engine");
    let prefilled = prefill.requests();
    ensure!(prefilled.len() == 2 && prefilled.iter().all(|made| made.tokens == 1), "{prefilled:?}");
    for engine in decode.iter().chain([&prefill]) {
        ensure!(engine.violations().is_empty(), "{:?}", engine.violations());
    }
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_pairs_meet_and_are_freed() -> anyhow::Result<()> {
    let prefill = instance(Dialect::Sglang, Part::Prefill).await?;
    let decode = [instance(Dialect::Sglang, Part::Decode).await?];
    let gateway = gateway(Dialect::Sglang, &prefill, &decode).await?;
    let body = json!({"input_ids": [104, 105], "sampling_params": {"max_new_tokens": 30}});
    let expected = alone(Dialect::Sglang, "/generate", &body).await?;
    let open = gateway.open(&json!({})).await?;
    let reply = gateway.expect(200, &format!("/t/{}/generate", open[0]), &body).await?;
    let made: Vec<u64> = reply["output_ids"]
        .as_array()
        .context("no ids")?
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    ensure!(expected[2..] == made, "other tokens than from one engine");
    gateway.complete(&open[0], 1.0).await?;
    gateway.acknowledge(&gateway.take(1).await?).await?;
    gateway.until_empty().await?;
    for engine in [&prefill, &decode[0]] {
        let made = engine.requests();
        ensure!(made.len() == 1 && made[0].outcome == Outcome::Length, "{made:?}");
        ensure!(engine.violations().is_empty(), "{:?}", engine.violations());
    }
    gateway.stop().await
}
