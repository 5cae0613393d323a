//! Slots, KV, the prefix cache, priorities, aborts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{Capacity, Config, Dialect, EngineSim, Latency, Outcome};
use serde_json::json;
use std::time::Duration;
use support::{Event, chat, client, ids, until};

/// Each step waits for this long: slow enough to look at it, for the tests that need it.
fn slow() -> Latency {
    Latency { step: Duration::from_millis(5), ..Latency::default() }
}

fn endless() -> Config {
    Config { mean_tokens: 0, ..Config::default() }
}

#[tokio::test]
async fn a_closed_stream_aborts_its_request() {
    let engine = EngineSim::start(Config { latency: slow(), ..endless() }).await.unwrap();
    let more = json!({"stream": true, "max_tokens": 30_000, "request_id": "mine"});
    let mut events = client(&engine).stream("/v1/chat/completions", chat("x", more)).await;
    events.data().await;
    events.data().await;
    assert_eq!(engine.load(), (1, 0));
    drop(events);
    until("the request is aborted", || engine.load() == (0, 0)).await;
    let record = engine.requests().remove(0);
    assert!(record.aborted && record.outcome == Outcome::Closed, "{record:?}");
    assert_eq!(record.rid.as_deref(), Some("mine"));
    assert!(record.tokens >= 1 && record.tokens < 30_000, "{record:?}");
}

#[tokio::test]
async fn a_closed_connection_aborts_a_request_that_is_not_streamed() {
    let engine = EngineSim::start(Config { latency: slow(), ..endless() }).await.unwrap();
    let http = client(&engine);
    let asked = tokio::spawn(async move {
        http.post("/v1/chat/completions", chat("x", json!({"max_tokens": 30_000}))).await
    });
    until("it runs", || engine.load() == (1, 0)).await;
    asked.abort();
    until("the request is aborted", || engine.load() == (0, 0)).await;
    assert!(engine.requests()[0].aborted);
}

#[tokio::test]
async fn abort_requests_returns_what_is_there() {
    let engine = EngineSim::start(Config { latency: slow(), ..endless() }).await.unwrap();
    let http = client(&engine);
    let stream = |rid| {
        let more = json!({"stream": true, "max_tokens": 30_000, "request_id": rid});
        http.stream("/v1/chat/completions", chat("x", more))
    };
    let (mut one, mut two) = (stream("one").await, stream("two").await);
    one.data().await;
    two.data().await;
    let answer = http.ok("/abort_requests", json!({"request_ids": ["one"]})).await;
    assert_eq!(answer["aborted"], 1);
    let chunks = one.all().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "abort");
    until("only one is left", || engine.load() == (1, 0)).await;
    assert!(matches!(two.next().await, Event::Data(_)));
    assert!(!engine.requests()[0].aborted, "the client closed nothing");
}

#[tokio::test]
async fn the_prefix_cache_is_accounted() {
    let capacity = Capacity { block: 4, ..Capacity::default() };
    let engine = EngineSim::start(Config { capacity, ..endless() }).await.unwrap();
    let http = client(&engine);
    let ask = async |prompt: Vec<u32>| {
        let body = json!({"prompt": prompt, "max_tokens": 5, "return_token_ids": true});
        let answer = http.ok("/v1/completions", body).await;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (ids(&answer["choices"][0]["token_ids"]), cached)
    };
    let prompt: Vec<u32> = (100..110).collect();
    let (tokens, cached) = ask(prompt.clone()).await;
    assert_eq!(cached, 0);
    // The next turn: prompt, reply and an observation. 10 + 5 held tokens are 3 blocks.
    let mut next: Vec<u32> = prompt.iter().chain(&tokens).copied().collect();
    next.extend([1, 2, 3, 4]);
    assert_eq!(ask(next).await.1, 12);
    // The same prompt again: never the last token.
    assert_eq!(ask((100..108).collect()).await.1, 4);
    http.call("/reset_prefix_cache").await;
    assert_eq!(ask(prompt).await.1, 0);
    let metrics = http.get("/metrics").await.1;
    let metrics = metrics.as_str().unwrap();
    assert!(
        metrics.contains("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"engine-sim\"} 16"),
        "{metrics}"
    );
}

#[tokio::test]
async fn full_kv_preempts_and_recomputes_without_a_trace_in_the_tokens() {
    let roomy = EngineSim::start(endless()).await.unwrap();
    let capacity = Capacity { kv_tokens: 100, ..Capacity::default() };
    let tight = EngineSim::start(Config { capacity, ..endless() }).await.unwrap();
    let ask = async |engine: &EngineSim, text: &str| {
        let body = json!({"prompt": text, "max_tokens": 60, "return_token_ids": true});
        let answer = client(engine).ok("/v1/completions", body).await;
        ids(&answer["choices"][0]["token_ids"])
    };
    let (one, two, three) =
        tokio::join!(ask(&tight, "first"), ask(&tight, "second"), ask(&tight, "third"));
    assert_eq!(one, ask(&roomy, "first").await);
    assert_eq!(two, ask(&roomy, "second").await);
    assert_eq!(three, ask(&roomy, "third").await);
    let preemptions: u32 = tight.requests().iter().map(|record| record.preemptions).sum();
    assert!(preemptions > 0, "{:?}", tight.requests());
    assert!(tight.requests().iter().all(|record| record.tokens == 60));
    let before = tight.requests().len();
    let (http, body) = (client(&tight), json!({"prompt": "b"}));
    tokio::join!(ask(&tight, "a"), http.ok("/v1/completions", body));
    let fitting = tight.requests().split_off(before);
    assert!(fitting.iter().all(|record| record.preemptions == 0), "both fit: {fitting:?}");
    let (status, _) =
        client(&tight).post("/v1/completions", json!({"prompt": "x".repeat(100)})).await;
    assert_eq!(status, 400, "a context beyond the cache never fits");
}

#[tokio::test]
async fn priorities_order_admission_by_each_dialects_polarity() {
    for (dialect, path, first) in
        [(Dialect::Vllm, "/v1/completions", -5), (Dialect::Sglang, "/v1/completions", 5)]
    {
        let capacity = Capacity { slots: 1, ..Capacity::default() };
        let config = Config { dialect, capacity, priority_scheduling: true, ..endless() };
        let engine = EngineSim::start(config).await.unwrap();
        let http = client(&engine);
        let pause = if dialect == Dialect::Vllm { "/pause" } else { "/pause_generation" };
        let resume = if dialect == Dialect::Vllm { "/resume" } else { "/continue_generation" };
        http.call(pause).await;
        let ended = std::sync::Mutex::new(Vec::new());
        let ask = async |priority: i64| {
            let body = json!({"prompt": "x", "max_tokens": 3, "priority": priority});
            http.ok(path, body).await;
            ended.lock().unwrap().push(priority);
        };
        let go = async {
            until("all wait", || engine.load() == (0, 3)).await;
            http.call(resume).await;
        };
        tokio::join!(ask(0), ask(-5), ask(5), go);
        assert_eq!(*ended.lock().unwrap(), [first, 0, -first], "{dialect:?}");
    }
}

#[tokio::test]
async fn no_more_run_than_there_are_slots() {
    let capacity = Capacity { slots: 2, waiting: 3, ..Capacity::default() };
    let config = Config { capacity, latency: slow(), ..endless() };
    let engine = EngineSim::start(config).await.unwrap();
    let mut streams = Vec::new();
    for index in 0..5 {
        let more = json!({"stream": true, "max_tokens": 30_000});
        streams.push(client(&engine).stream("/v1/chat/completions", chat("x", more)).await);
        let running = (index + 1).min(2);
        until("it is admitted or waits", || engine.load() == (running, index + 1 - running)).await;
    }
    let (status, answer) = client(&engine).post("/v1/chat/completions", chat("x", json!({}))).await;
    assert_eq!(status, 503, "{answer}");
    let metrics = client(&engine).get("/metrics").await.1;
    assert!(metrics.as_str().unwrap().contains("vllm:num_requests_waiting{engine=\"0\""));
    drop(streams);
    until("all are aborted", || engine.load() == (0, 0)).await;
}

#[tokio::test]
async fn a_prefill_takes_its_time_and_a_held_prefix_none() {
    let capacity = Capacity { block: 1, ..Capacity::default() };
    let latency = Latency { prefill_rate: 1000.0, ..Latency::default() };
    let engine = EngineSim::start(Config { capacity, latency, ..endless() }).await.unwrap();
    let http = client(&engine);
    let body = json!({"prompt": "y".repeat(300), "max_tokens": 1});
    let ask = async || {
        let begun = std::time::Instant::now();
        http.ok("/v1/completions", body.clone()).await;
        begun.elapsed()
    };
    // A lower bound is no race: the engine cannot be faster than its model.
    assert!(ask().await >= Duration::from_millis(300));
    ask().await;
    assert_eq!(engine.requests()[1].cached_tokens, 299);
}
