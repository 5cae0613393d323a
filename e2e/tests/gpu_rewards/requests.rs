//! Every kind of request that a reward service takes, through queue, agent and engine.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Node, Rewards, Service, post};
use rollwright_engine_sim::{Config, EngineSim, logprobs_of};
use rollwright_proto::v1::CallRequest;
use serde_json::{Value, json};

use crate::LIMIT;

const IDS: [u32; 3] = [104, 105, 106];
const VERSION: u64 = 2;

/// Path, body (`null`: a `GET`), and where the answer says what was asked for.
fn kinds() -> Vec<(&'static str, Value, &'static str)> {
    let messages = json!([{"role": "user", "content": "Rate this from 0 to 9: 6 x 7 = 42"}]);
    let pair = json!({"text_1": "6 x 7?", "text_2": ["42", "41"]});
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 8, "logprobs": true}),
            "/choices/0/message/content",
        ),
        ("/v1/completions", json!({"prompt": "6 x 7 = ", "max_tokens": 4}), "/choices/0/text"),
        (
            "/v1/completions",
            json!({"prompt": IDS, "max_tokens": 1, "prompt_logprobs": 0}),
            "/choices/0/prompt_logprobs/2/106/logprob",
        ),
        ("/score", pair.clone(), "/data/1/score"),
        ("/v1/score", pair, "/data/0/score"),
        ("/v1/rerank", json!({"query": "?", "documents": ["a", "b"]}), "/results/1/index"),
        ("/pooling", json!({"input": IDS, "use_activation": false}), "/data/0/data/2/0"),
        ("/pooling", json!({"input": ["a", "b"], "task": "classify"}), "/data/1/data/0"),
        // Paths that are nothing to the queue, and what the engine itself refuses.
        ("/tokenize", json!({"prompt": "hi"}), "/tokens/1"),
        ("/v1/models", Value::Null, "/data/0/id"),
        ("/pooling", json!({"input": "a", "task": "embed"}), "/error/message"),
        ("/no/such/path", json!({}), ""),
    ]
}

fn read(body: &[u8]) -> Value {
    let mut said: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(said) = said.as_object_mut() {
        // Of one answer alone.
        said.retain(|name, _| !matches!(name.as_str(), "id" | "created"));
    }
    said
}

/// What an engine says by itself.
async fn alone(engine: &EngineSim, path: &str, body: &Value) -> anyhow::Result<(u32, Value)> {
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    let url = format!("{}{path}", engine.url());
    let request = if body.is_null() { http.get(url) } else { http.post(url).json(body) };
    let answer = request.send().await?;
    Ok((answer.status().as_u16().into(), read(&answer.bytes().await?)))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_request_is_answered_as_by_the_engine_alone() -> anyhow::Result<()> {
    // They take turns on one GPU, so that each kind of request meets an engine that comes back.
    let services =
        ["one", "two"].map(|name| Service { version: VERSION, ..Service::new(name, &[1]) });
    let mut rewards = Rewards::start("kinds", Node::of(1), &services).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    let http = reqwest::Client::builder().unix_socket(rewards.socket()).timeout(LIMIT).build()?;
    let mut engines = BTreeMap::new();
    for Service { name, .. } in &services {
        let config =
            Config { model: name.clone(), version: VERSION, mean_tokens: 0, ..Config::default() };
        engines.insert(name.as_str(), EngineSim::start(config).await?);
    }
    let kinds = kinds();
    for (n, (path, body, told)) in kinds.iter().enumerate() {
        for (service, engine) in &engines {
            let mut body = body.clone();
            if let Some(body) = body.as_object_mut() {
                body.insert("model".into(), json!(service));
            }
            let wanted = alone(engine, path, &body).await?;
            ensure!(wanted.1.pointer(told).is_some(), "{path}: {wanted:?} without {told}");
            let id = format!("{service}-{n}");
            let call = post(&id, service, path, &body);
            let call = match body {
                Value::Null => {
                    CallRequest { method: "GET".into(), body: Vec::new().into(), ..call }
                }
                _ => call,
            };
            let answer =
                calls.call(call.clone()).await.with_context(|| format!("{service}{path}"))?;
            ensure!(
                (answer.status, read(&answer.body)) == wanted,
                "{path}: {answer:?}, {wanted:?}"
            );
            // The same call in plain HTTP is given the same answer, and asks nobody.
            let url = format!("http://queue/v1/rewards/{service}{path}");
            let plain = if body.is_null() { http.get(url) } else { http.post(url) };
            let plain = plain.header("x-rollwright-action", &id).body(call.body).send().await?;
            ensure!(u32::from(plain.status().as_u16()) == answer.status, "{path}: {plain:?}");
            ensure!(plain.bytes().await? == answer.body, "{path}");
        }
    }
    // Given ids have the log-probabilities of the engine's weights, to the last bit.
    let body = json!({"model": "one", "prompt": IDS, "max_tokens": 1, "prompt_logprobs": 0});
    let url = "http://queue/v1/rewards/one/v1/completions";
    let said: Value = http.post(url).json(&body).send().await?.json().await?;
    for (at, (id, wanted)) in IDS.iter().zip(logprobs_of(&IDS, VERSION)).enumerate() {
        let said = &said["choices"][0]["prompt_logprobs"][at][id.to_string()]["logprob"];
        let bits = |number: Option<f64>| number.map(|number| (number as f32).to_bits());
        ensure!(bits(said.as_f64()) == bits(wanted), "token {at}: {said} for {wanted:?}");
    }
    let (one, two) = (calls.service("one").await?, calls.service("two").await?);
    let each = kinds.len() as u64;
    ensure!((one.calls, two.calls) == (each + 1, each), "{one:?}, {two:?}");
    ensure!((one.restores, two.restores) == (each + 1, each), "they took turns: {one:?}, {two:?}");
    rewards.stop().await
}
