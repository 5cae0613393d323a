//! One instance prefills and another one decodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use std::time::Duration;

use rollwright_engine_sim::{
    Config, Dialect, Disaggregation, EngineSim, Latency, Outcome, Part, ViolationKind,
};
use serde_json::{Value, json};
use support::{Event, chat, client, until, with};

async fn instance(dialect: Dialect, part: Part, change: impl Fn(&mut Config)) -> EngineSim {
    let mut config = Config {
        dialect,
        mean_tokens: 0,
        disaggregation: Some(Disaggregation::of(part)),
        ..Config::default()
    };
    change(&mut config);
    EngineSim::start(config).await.unwrap()
}

fn limit(config: &mut Config, timeout: Duration, recompute: bool) {
    let own = config.disaggregation.unwrap();
    config.disaggregation = Some(Disaggregation { timeout, recompute, ..own });
}

fn keep() -> Value {
    json!({"kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false},
        "max_tokens": 1})
}

/// What an instance that does both makes of it.
async fn alone(dialect: Dialect, path: &str, body: &Value) -> Value {
    let engine = EngineSim::start(Config { dialect, mean_tokens: 0, ..Config::default() });
    client(&engine.await.unwrap()).ok(path, body.clone()).await
}

#[tokio::test]
async fn vllm_decodes_from_the_kv_that_was_kept() {
    let prefill = instance(Dialect::Vllm, Part::Prefill, |_| {}).await;
    // Would it prefill by itself, it would take an hour.
    let slow = Latency { prefill_rate: 0.02, ..Latency::default() };
    let decode = instance(Dialect::Vllm, Part::Decode, |config| config.latency = slow).await;
    let path = "/v1/chat/completions";
    let body = chat("hello there", json!({"max_tokens": 9}));
    let kept = client(&prefill).ok(path, with(body.clone(), keep())).await;
    let params = &kept["kv_transfer_params"];
    assert_eq!(params["do_remote_prefill"], true, "{kept}");
    let taken = with(body.clone(), json!({"kv_transfer_params": params}));
    let reply = client(&decode).ok(path, taken.clone()).await;
    assert_eq!(reply["choices"], alone(Dialect::Vllm, path, &body).await["choices"]);
    let made = decode.requests().remove(0);
    assert_eq!(made.transferred_tokens, made.prompt_tokens - 1);
    // It is read once.
    let (status, refused) = client(&decode).post(path, taken).await;
    assert_eq!(status, 500, "{refused}");
    assert_eq!(decode.requests()[1].outcome, Outcome::Failed);
    // The KV of another prompt is noticed, whatever a caller says.
    let kept = client(&prefill).ok(path, with(body, keep())).await;
    let other = chat("hello here!", json!({"kv_transfer_params": kept["kv_transfer_params"]}));
    assert_eq!(client(&decode).post(path, other).await.0, 500);
    assert_eq!(decode.violations()[0].kind, ViolationKind::WrongKv);
}

#[tokio::test]
async fn vllm_computes_what_it_does_not_understand_or_may_compute() {
    let recompute = |config: &mut Config| limit(config, Duration::from_mins(1), true);
    let prefill = instance(Dialect::Vllm, Part::Prefill, |_| {}).await;
    let decode = instance(Dialect::Vllm, Part::Decode, recompute).await;
    let path = "/v1/completions";
    let body = json!({"prompt": "some prompt", "max_tokens": 5});
    let wanted = alone(Dialect::Vllm, path, &body).await;
    let kept = client(&prefill).ok(path, with(body.clone(), keep())).await;
    let mut params = kept["kv_transfer_params"].clone();
    prefill.kill();
    for cut in ["", "remote_host"] {
        params.as_object_mut().unwrap().remove(cut);
        let body = with(body.clone(), json!({"kv_transfer_params": params}));
        let reply = client(&decode).ok(path, body).await;
        assert_eq!(reply["choices"], wanted["choices"], "without `{cut}`");
    }
    assert!(decode.requests().iter().all(|made| made.transferred_tokens == 0));
    // Without a connector nothing is kept.
    let reply = alone(Dialect::Vllm, path, &with(body, keep())).await;
    assert_eq!(reply["kv_transfer_params"], Value::Null);
}

#[tokio::test]
async fn sglang_meets_in_a_room_whoever_comes_first() {
    let prefill = instance(Dialect::Sglang, Part::Prefill, |_| {}).await;
    let slow = Latency { prefill_rate: 0.02, ..Latency::default() };
    let decode = instance(Dialect::Sglang, Part::Decode, |config| config.latency = slow).await;
    let body = json!({"input_ids": [9, 8, 7, 6], "sampling_params": {"max_new_tokens": 6},
        "return_logprob": true});
    let wanted = alone(Dialect::Sglang, "/generate", &body).await;
    for room in [1u64, (1 << 63) - 1] {
        let port = prefill.side_port().unwrap();
        let at =
            json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room});
        let body = with(body.clone(), at);
        let (first, second) = if room == 1 { (&prefill, &decode) } else { (&decode, &prefill) };
        let early = tokio::spawn({
            let (client, body) = (client(first), body.clone());
            async move { client.ok("/generate", body).await }
        });
        until("the first one waits", || first.load().1 == 1).await;
        let late = client(second).ok("/generate", body).await;
        let early = early.await.unwrap();
        let (given, made) = if room == 1 { (early, late) } else { (late, early) };
        assert_eq!(made["output_ids"], wanted["output_ids"]);
        assert_eq!(
            made["meta_info"]["output_token_logprobs"],
            wanted["meta_info"]["output_token_logprobs"]
        );
        assert_eq!(given["output_ids"].as_array().unwrap().len(), 1);
    }
    let none = client(&decode).post("/generate", body).await;
    assert_eq!(none.0, 400, "{}", none.1);
    assert!(none.1.to_string().contains("bootstrap room"), "{}", none.1);
}

#[tokio::test]
async fn sglang_waits_in_an_empty_room_for_its_limit_and_no_longer() {
    let brief = |config: &mut Config| limit(config, Duration::from_millis(50), false);
    let prefill = instance(Dialect::Sglang, Part::Prefill, brief).await;
    let decode = instance(Dialect::Sglang, Part::Decode, brief).await;
    let at = json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.side_port(),
        "bootstrap_room": 5});
    let body = with(json!({"input_ids": [1, 2, 3]}), at);
    for engine in [&prefill, &decode] {
        assert_eq!(client(engine).post("/generate", body.clone()).await.0, 500);
        assert_eq!(engine.requests()[0].outcome, Outcome::Failed);
    }
    // A stream has begun by then.
    let body = with(body, json!({"stream": true}));
    let mut events = client(&decode).stream("/generate", body).await;
    let Event::Data(error) = events.next().await else { panic!("no error") };
    assert!(error["error"]["message"].is_string(), "{error}");
}

#[tokio::test]
async fn a_killed_prefill_ends_the_wait_and_a_closed_client_too() {
    let prefill = instance(Dialect::Sglang, Part::Prefill, |_| {}).await;
    let decode = instance(Dialect::Sglang, Part::Decode, |_| {}).await;
    let at = json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.side_port(),
        "bootstrap_room": 5});
    let body = with(json!({"input_ids": [1, 2, 3]}), at);
    for closes in [true, false] {
        let waits = tokio::spawn({
            let (client, body) = (client(&decode), body.clone());
            async move { client.post("/generate", body).await.0 }
        });
        until("it waits", || decode.load().1 == 1).await;
        if closes {
            waits.abort();
        } else {
            prefill.kill();
            assert_eq!(waits.await.unwrap(), 500);
        }
        until("it has left", || decode.load().1 == 0).await;
    }
    let outcomes: Vec<_> = decode.requests().iter().map(|made| made.outcome).collect();
    assert_eq!(outcomes, [Outcome::Closed, Outcome::Failed]);
}
