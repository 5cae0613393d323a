//! Pause, sleep and weights: the order of calls, and what its breaks are recorded as.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{
    Config, Dialect, EngineSim, Latency, ViolationKind, version_of_logprob,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use support::{Events, Http, chat, client, until};

const GENERATION: &str = "/v1/chat/completions";

fn slow(dialect: Dialect) -> Config {
    let latency = Latency { step: Duration::from_millis(2), ..Latency::default() };
    Config { dialect, mean_tokens: 0, latency, ..Config::default() }
}

fn weights(version: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("version.json");
    std::fs::write(file, json!({"version": version}).to_string()).unwrap();
    directory
}

fn reload(path: &Path) -> Value {
    json!({"method": "reload_weights", "kwargs": {"weights_path": path}})
}

fn kinds(engine: &EngineSim) -> Vec<ViolationKind> {
    engine.violations().iter().map(|violation| violation.kind).collect()
}

async fn running(http: &Http, max_tokens: usize) -> Events {
    let more = json!({"stream": true, "max_tokens": max_tokens, "logprobs": true});
    let mut events = http.stream(GENERATION, chat("go", more)).await;
    events.data().await;
    events.data().await;
    events
}

/// The versions that made the tokens of these chunks, without repeats.
fn versions(chunks: &[Value]) -> Vec<u64> {
    let mut versions: Vec<u64> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .map(|entry| version_of_logprob(entry["logprob"].as_f64().unwrap()))
        .collect();
    versions.dedup();
    versions
}

#[tokio::test]
async fn an_update_while_requests_run_is_refused_and_recorded() {
    let engine = EngineSim::start(slow(Dialect::Vllm)).await.unwrap();
    let http = client(&engine);
    let directory = weights(1);
    let events = running(&http, 30_000).await;
    let (status, answer) = http.post("/collective_rpc", reload(directory.path())).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(kinds(&engine), [ViolationKind::UpdateWhileRunning]);
    assert_eq!(engine.version(), 0);
    drop(events);
    until("it is aborted", || engine.load() == (0, 0)).await;
    http.ok("/collective_rpc", reload(directory.path())).await;
    assert_eq!(engine.version(), 1);
    let metrics = http.get("/metrics").await.1;
    let line = "engine_sim_violations_total{kind=\"update_while_running\"} 1";
    assert!(metrics.as_str().unwrap().contains(line), "{metrics}");
}

#[tokio::test]
async fn abort_returns_partial_results_and_new_requests_wait() {
    let engine = EngineSim::start(slow(Dialect::Vllm)).await.unwrap();
    let http = client(&engine);
    let mut events = running(&http, 30_000).await;
    assert_eq!(http.call("/pause?mode=abort").await.1, json!({"status": "paused"}));
    let chunks = events.all().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "abort");
    assert_eq!(http.get("/is_paused").await.1, json!({"is_paused": true}));
    let directory = weights(4);
    let work = async {
        until("the new one waits", || engine.load() == (0, 1)).await;
        http.ok("/collective_rpc", reload(directory.path())).await;
        http.ok("/update_weight_version", json!({"new_version": "4"})).await;
        assert_eq!(http.call("/resume").await.1, json!({"status": "resumed"}));
    };
    let asker = client(&engine);
    let more = json!({"max_tokens": 4, "logprobs": true});
    let (answer, ()) = tokio::join!(asker.ok(GENERATION, chat("new", more)), work);
    assert_eq!(versions(&[answer]), [4]);
    assert_eq!(http.get("/weight_info").await.1, json!({"weight_version": "4"}));
    assert_eq!(kinds(&engine), []);
}

#[tokio::test]
async fn wait_drains_what_was_there() {
    let engine = EngineSim::start(slow(Dialect::Vllm)).await.unwrap();
    let http = client(&engine);
    let mut events = running(&http, 30).await;
    assert_eq!(http.call("/pause?mode=wait").await.0, 200);
    assert_eq!(engine.load(), (0, 0), "drained when it answers");
    let chunks = events.all().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    http.call("/resume").await;
    assert_eq!(kinds(&engine), []);
}

#[tokio::test]
async fn keep_goes_on_with_new_weights_and_stale_kv_only_where_it_was_kept() {
    for (clear, ignores, stale) in [(true, false, false), (false, false, true), (true, true, true)]
    {
        let config = Config { keep_ignores_clear_cache: ignores, ..slow(Dialect::Vllm) };
        let engine = EngineSim::start(config).await.unwrap();
        let http = client(&engine);
        let mut events = running(&http, 40).await;
        http.call(&format!("/pause?mode=keep&clear_cache={clear}")).await;
        let directory = weights(1);
        http.ok("/collective_rpc", reload(directory.path())).await;
        http.call("/resume").await;
        let chunks = events.all().await;
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
        assert_eq!(engine.requests()[0].versions, [0, 1]);
        let expected: &[_] = if stale { &[ViolationKind::StaleKv] } else { &[] };
        assert_eq!(kinds(&engine), expected, "clear {clear}, ignores {ignores}");
    }
}

#[tokio::test]
async fn a_prefix_of_old_weights_is_stale_too() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let body = chat("a prompt of more than one block of tokens", json!({"max_tokens": 1}));
    http.ok(GENERATION, body.clone()).await;
    let directory = weights(1);
    http.call("/pause?mode=abort&clear_cache=false").await;
    http.ok("/collective_rpc", reload(directory.path())).await;
    http.call("/resume").await;
    http.ok(GENERATION, body.clone()).await;
    assert_eq!(kinds(&engine), [ViolationKind::StaleKv]);
    http.call("/reset_prefix_cache").await;
    http.ok(GENERATION, body).await;
    assert_eq!(kinds(&engine).len(), 1);
}

#[tokio::test]
async fn a_transfer_comes_in_its_order() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let update = json!({"update_info": {}});
    for (path, body) in [
        ("/start_weight_update", json!({})),
        ("/update_weights", update.clone()),
        ("/finish_weight_update", json!({})),
    ] {
        assert_eq!(http.post(path, body).await.0, 400, "{path} before init");
    }
    assert_eq!(kinds(&engine), [ViolationKind::TransferOutOfOrder; 3]);
    assert_eq!(http.post("/init_weight_transfer_engine", json!({})).await.0, 400);
    http.call("/pause").await;
    http.ok("/init_weight_transfer_engine", json!({"init_info": {}})).await;
    assert_eq!(http.call("/start_weight_update").await.0, 200);
    assert_eq!(http.post("/finish_weight_update", json!({})).await.0, 400, "without an update");
    http.ok("/update_weights", update).await;
    assert_eq!(http.call("/resume").await.0, 400, "in the middle");
    http.ok("/finish_weight_update", json!({"weight_version": "step-9"})).await;
    assert_eq!(http.call("/resume").await.0, 200);
    assert_eq!(engine.version(), 9);
    let after = [ViolationKind::TransferOutOfOrder, ViolationKind::ResumeDuringUpdate];
    assert_eq!(kinds(&engine)[3..], after);
}

#[tokio::test]
async fn generation_in_the_middle_of_a_transfer_is_recorded() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    http.ok("/init_weight_transfer_engine", json!({"init_info": {}})).await;
    assert_eq!(http.call("/start_weight_update").await.0, 200, "it is idle");
    http.ok(GENERATION, chat("x", json!({"max_tokens": 3}))).await;
    assert_eq!(kinds(&engine), [ViolationKind::ResumeDuringUpdate]);
}

#[tokio::test]
async fn sleep_levels() {
    let engine = EngineSim::start(slow(Dialect::Vllm)).await.unwrap();
    let http = client(&engine);
    let asleep = async || http.get("/is_sleeping").await.1["is_sleeping"] == true;
    let mut events = running(&http, 30_000).await;
    assert_eq!(http.call("/sleep?level=1").await.0, 200);
    let chunks = events.all().await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "abort");
    assert!(asleep().await);
    let metrics = http.get("/metrics").await.1;
    assert!(metrics.as_str().unwrap().contains("sleep_state=\"weights_offloaded\"} 1"));
    http.call("/wake_up").await;
    assert!(!asleep().await);

    // Level 2 loses the weights: wake them, reload, wake the cache.
    http.call("/sleep?level=2").await;
    let directory = weights(3);
    let (status, _) = http.post("/collective_rpc", reload(directory.path())).await;
    assert_eq!(status, 400, "the weights have no memory yet");
    http.call("/wake_up?tags=weights").await;
    assert!(asleep().await);
    http.ok("/collective_rpc", reload(directory.path())).await;
    http.call("/wake_up?tags=kv_cache").await;
    assert!(!asleep().await);
    http.ok(GENERATION, chat("x", json!({"max_tokens": 1}))).await;
    assert_eq!(kinds(&engine), [ViolationKind::UpdateWhileAsleep]);

    // Without the reload it generates garbage, and that is recorded.
    http.call("/sleep?level=2").await;
    http.call("/wake_up").await;
    http.ok(GENERATION, chat("x", json!({"max_tokens": 1}))).await;
    assert_eq!(kinds(&engine)[1..], [ViolationKind::DiscardedWeights]);
}

#[tokio::test]
async fn a_request_to_a_sleeping_engine_waits_and_is_recorded() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    http.call("/sleep?level=0").await;
    let asker = client(&engine);
    let wake = async {
        until("it waits", || engine.load() == (0, 1)).await;
        http.call("/wake_up").await;
    };
    tokio::join!(asker.ok(GENERATION, chat("x", json!({}))), wake);
    assert_eq!(kinds(&engine), [ViolationKind::RequestWhileAsleep]);
}

#[tokio::test]
async fn resuming_what_is_not_paused_is_recorded() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    assert_eq!(client(&engine).call("/resume").await.0, 200);
    assert_eq!(kinds(&engine), [ViolationKind::ResumeWithoutPause]);
}

#[tokio::test]
async fn a_path_must_exist_and_an_unnamed_version_can_be_named_later() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("nothing");
    let (status, answer) = http.post("/collective_rpc", reload(&missing)).await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().contains("nothing"), "{answer}");
    http.ok("/collective_rpc", reload(directory.path())).await;
    assert_eq!(engine.version(), 1, "one more than before");
    http.ok("/update_weight_version", json!({"new_version": "12"})).await;
    assert_eq!(engine.version(), 12);
    let named = weights(20);
    http.ok("/collective_rpc", reload(named.path())).await;
    http.ok("/update_weight_version", json!({"new_version": "13"})).await;
    assert_eq!(engine.version(), 20, "a label does not change what is on disk");
}
