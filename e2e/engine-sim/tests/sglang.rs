//! SGLang's own routes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{
    Config, Dialect, EngineSim, Latency, MESSAGE_END, ViolationKind, logprobs_of,
    version_of_logprob,
};
use serde_json::{Value, json};
use std::time::Duration;
use support::{Events, Http, chat, client, ids, until, with};

fn config() -> Config {
    Config { dialect: Dialect::Sglang, mean_tokens: 0, ..Config::default() }
}

fn slow() -> Config {
    let latency = Latency { step: Duration::from_millis(2), ..Latency::default() };
    Config { latency, ..config() }
}

fn kinds(engine: &EngineSim) -> Vec<ViolationKind> {
    engine.violations().iter().map(|violation| violation.kind).collect()
}

fn generate(tokens: usize, more: Value) -> Value {
    let body = json!({
        "input_ids": [104, 105], "sampling_params": {"max_new_tokens": tokens}, "return_logprob": true,
    });
    with(body, more)
}

async fn running(http: &Http, tokens: usize, rid: &str) -> Events {
    let mut events =
        http.stream("/generate", generate(tokens, json!({"stream": true, "rid": rid}))).await;
    events.data().await;
    events
}

#[tokio::test]
async fn the_prompt_has_log_probs_where_they_are_asked_for() {
    let sglang = EngineSim::start(Config { version: 4, ..config() }).await.unwrap();
    let http = client(&sglang);
    let plain = http.ok("/generate", generate(1, json!({}))).await;
    assert_eq!(plain["meta_info"]["input_token_logprobs"], json!([]));
    let asked = http.ok("/generate", generate(1, json!({"logprob_start_len": 0}))).await;
    let wanted = logprobs_of(&[104, 105], 4);
    assert_eq!(version_of_logprob(wanted[1].unwrap()), 4);
    let pairs = json!([[null, 104, null], [wanted[1], 105, null]]);
    assert_eq!(asked["meta_info"]["input_token_logprobs"], pairs);
    let vllm = EngineSim::start(Config { version: 4, ..Config::default() }).await.unwrap();
    let body = json!({"prompt": [104, 105], "max_tokens": 1, "prompt_logprobs": 0});
    let reply = client(&vllm).ok("/v1/completions", body).await;
    let known = &reply["choices"][0]["prompt_logprobs"];
    assert_eq!((&known[0], &known[1]["105"]["logprob"]), (&Value::Null, &json!(wanted[1])));
}

#[tokio::test]
async fn generate_streams_what_there_is_so_far() {
    let engine = EngineSim::start(slow()).await.unwrap();
    let http = client(&engine);
    let whole = http.ok("/generate", generate(20, json!({"rid": "r1"}))).await;
    assert_eq!(whole["meta_info"]["id"], "r1");
    assert_eq!(whole["meta_info"]["finish_reason"], json!({"type": "length", "length": 20}));
    assert_eq!(whole["meta_info"]["weight_version"], "0");
    let pairs = whole["meta_info"]["output_token_logprobs"].as_array().unwrap();
    let tokens = ids(&whole["output_ids"]);
    assert_eq!(pairs.len(), 20);
    for (pair, token) in pairs.iter().zip(&tokens) {
        assert_eq!(pair[1], *token);
        assert_eq!(version_of_logprob(pair[0].as_f64().unwrap()), 0);
    }
    let mut events = http.stream("/generate", generate(20, json!({"stream": true}))).await;
    let chunks = events.all().await;
    assert!(chunks.len() > 1);
    for pair in chunks.windows(2) {
        let (before, after) = (ids(&pair[0]["output_ids"]), ids(&pair[1]["output_ids"]));
        assert!(after.len() > before.len() && after.starts_with(&before));
        let text = |chunk: &Value| chunk["text"].as_str().unwrap().to_owned();
        assert!(text(&pair[1]).starts_with(&text(&pair[0])));
        assert!(pair[0]["meta_info"]["finish_reason"].is_null());
    }
    let last = chunks.last().unwrap();
    assert_eq!((&last["output_ids"], &last["text"]), (&whole["output_ids"], &whole["text"]));
    assert_eq!(last["meta_info"]["completion_tokens"], 20);
}

#[tokio::test]
async fn the_end_token_is_in_the_ids_and_not_in_the_text() {
    let engine = EngineSim::start(Config { mean_tokens: 5, ..config() }).await.unwrap();
    let answer = client(&engine).ok("/generate", generate(2000, json!({}))).await;
    assert_eq!(
        answer["meta_info"]["finish_reason"],
        json!({"type": "stop", "matched": MESSAGE_END})
    );
    let tokens = ids(&answer["output_ids"]);
    assert_eq!(tokens.last(), Some(&MESSAGE_END));
    assert_eq!(answer["text"].as_str().unwrap().len(), tokens.len() - 1);
}

#[tokio::test]
async fn abort_by_id_and_all() {
    let engine = EngineSim::start(slow()).await.unwrap();
    let http = client(&engine);
    let mut one = running(&http, 30_000, "turn-1").await;
    let mut two = running(&http, 30_000, "other").await;
    let mut three = running(&http, 30_000, "third").await;
    http.call("/abort_request").await;
    assert_eq!(engine.load(), (3, 0), "without a body nothing is aborted");
    assert_eq!(http.post("/abort_request", json!({"rid": "turn"})).await.0, 200);
    let last = one.all().await.pop().unwrap();
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    until("the others run", || engine.load() == (2, 0)).await;
    assert_eq!(http.post("/abort_request", json!({"abort_all": true})).await.0, 200);
    for events in [&mut two, &mut three] {
        let last = events.all().await.pop().unwrap();
        assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    }
}

#[tokio::test]
async fn retract_is_clean_and_in_place_is_stale() {
    for mode in ["retract", "in_place"] {
        let engine = EngineSim::start(slow()).await.unwrap();
        let http = client(&engine);
        let directory = tempfile::tempdir().unwrap();
        let mut events = running(&http, 40, "r").await;
        http.ok("/pause_generation", json!({"mode": mode})).await;
        let update = json!({"model_path": directory.path(), "weight_version": "6"});
        let (status, answer) = http.post("/update_weights_from_disk", update.clone()).await;
        if mode == "retract" {
            assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer}");
        } else {
            // What runs needs its KV: the flush fails, and the update with it.
            assert_eq!((status, &answer["success"]), (400, &json!(false)));
            http.ok("/update_weights_from_disk", with(update, json!({"flush_cache": false}))).await;
        }
        http.ok("/continue_generation", json!({})).await;
        let last = events.all().await.pop().unwrap();
        assert_eq!(last["meta_info"]["weight_version"], "6");
        assert_eq!(engine.requests()[0].versions, [0, 6]);
        let expected: &[_] = if mode == "retract" {
            &[]
        } else {
            &[ViolationKind::FlushWhileRunning, ViolationKind::StaleKv]
        };
        assert_eq!(kinds(&engine), expected, "{mode}");
    }
}

#[tokio::test]
async fn an_update_while_requests_run_is_refused_unless_it_aborts_them() {
    let engine = EngineSim::start(slow()).await.unwrap();
    let http = client(&engine);
    let directory = tempfile::tempdir().unwrap();
    let mut events = running(&http, 30_000, "r").await;
    let update = json!({"model_path": directory.path(), "weight_version": "2"});
    let (status, answer) = http.post("/update_weights_from_disk", update.clone()).await;
    assert_eq!((status, &answer["success"]), (400, &json!(false)));
    assert_eq!(kinds(&engine), [ViolationKind::UpdateWhileRunning]);
    http.ok("/update_weights_from_disk", with(update, json!({"abort_all_requests": true}))).await;
    let last = events.all().await.pop().unwrap();
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(http.get("/get_model_info").await.1["weight_version"], "2");
    assert_eq!(engine.version(), 2);
}

#[tokio::test]
async fn memory_is_released_only_when_idle() {
    let engine = EngineSim::start(slow()).await.unwrap();
    let http = client(&engine);
    let events = running(&http, 30_000, "r").await;
    assert_eq!(http.post("/release_memory_occupation", json!({})).await.0, 400);
    assert_eq!(kinds(&engine), [ViolationKind::SleepWhileRunning]);
    drop(events);
    until("it is aborted", || engine.load() == (0, 0)).await;
    http.post("/release_memory_occupation", json!({"tags": ["kv_cache", "weights"]})).await;
    assert_eq!(http.get("/sim/state").await.1["asleep"], true);
    http.post("/resume_memory_occupation", json!({"tags": ["weights"]})).await;
    assert_eq!(http.get("/sim/state").await.1["asleep"], true);
    http.post("/resume_memory_occupation", json!({"tags": ["kv_cache"]})).await;
    http.ok("/v1/chat/completions", chat("x", json!({"max_tokens": 2}))).await;
}

#[tokio::test]
async fn loads_and_metrics_count_what_runs() {
    let engine = EngineSim::start(slow()).await.unwrap();
    let http = client(&engine);
    let events = running(&http, 30_000, "r").await;
    let loads = http.get("/v1/loads").await.1;
    assert_eq!(loads["loads"][0]["num_running_reqs"], 1);
    assert_eq!(loads["aggregate"]["total_reqs"], 1);
    let metrics = http.get("/metrics").await.1;
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("sglang:num_running_reqs{engine=\"0\",model_name=\"engine-sim\"} 1"));
    drop(events);
}

#[tokio::test]
async fn a_group_is_made_before_its_updates() {
    let engine = EngineSim::start(config()).await.unwrap();
    let http = client(&engine);
    let update = json!({"names": [], "dtypes": [], "shapes": [], "weight_version": "3"});
    assert_eq!(http.post("/update_weights_from_distributed", update.clone()).await.0, 400);
    assert_eq!(http.post("/destroy_weights_update_group", json!({})).await.0, 400);
    assert_eq!(kinds(&engine), [ViolationKind::TransferOutOfOrder; 2]);
    http.ok("/init_weights_update_group", json!({})).await;
    http.ok("/update_weights_from_distributed", update).await;
    assert_eq!(engine.version(), 3);
    http.ok("/destroy_weights_update_group", json!({})).await;
}
