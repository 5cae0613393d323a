//! Reward models: vLLM's routes, and SGLang's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{Config, Dialect, EngineSim, Tokenizer, ViolationKind, rewards_of};
use serde_json::{Value, json};
use support::client;

/// What the model says of a text, before and after vLLM's sigmoid, as it is read from JSON.
fn reward(text: &str, version: u64) -> (f64, f64) {
    let raw = *rewards_of(&Tokenizer.encode(text), version).last().unwrap();
    let read = |number: f64| serde_json::from_str::<f64>(&json!(number).to_string()).unwrap();
    assert_eq!(read(raw).to_bits(), raw.to_bits());
    (raw, read(1.0 / (1.0 + (-raw).exp())))
}

#[tokio::test]
async fn pooling_says_a_number_for_each_token_or_for_the_whole() {
    let engine = EngineSim::start(Config { version: 3, ..Config::default() }).await.unwrap();
    let http = client(&engine);
    let ids = [104, 105, 106];
    let (raw, rows) = (json!({"use_activation": false}), rewards_of(&ids, 3));
    let each: Vec<[f64; 1]> = rows.iter().map(|row| [*row]).collect();
    let body = support::with(json!({"model": "engine-sim", "input": ids}), raw.clone());
    let answer = http.ok("/pooling", body.clone()).await;
    let data = json!([{"index": 0, "object": "pooling", "data": each}]);
    assert_eq!((&answer["object"], &answer["data"]), (&json!("list"), &data));
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(http.ok("/pooling", body).await["data"], data, "it says the same again");
    // Of texts it is the same, and a sigmoid is vLLM's default.
    let body = json!({"input": ["hij", "hi"], "task": "classify"});
    let answer = http.ok("/pooling", support::with(body.clone(), raw)).await;
    let wanted = [[reward("hij", 3).0], [reward("hi", 3).0]];
    assert_eq!(
        [&answer["data"][0]["data"], &answer["data"][1]["data"]],
        wanted.map(Value::from).each_ref()
    );
    assert_eq!(wanted[0][0].to_bits(), rows[2].to_bits());
    let answer = http.ok("/pooling", body).await;
    assert_eq!(answer["data"][0]["data"], json!([reward("hij", 3).1]));
    // Nothing is generated, and it is no call of an operator's.
    let requests = engine.requests();
    assert!(requests.len() == 6 && requests.iter().all(|request| request.tokens == 0));
    assert!(engine.calls().is_empty(), "{:?}", engine.calls());
}

#[tokio::test]
async fn scores_are_of_pairs_and_ranks_by_score() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let score = |pair: &str| reward(pair, 0).1;
    let two = json!({"text_1": "which? ", "text_2": ["this", "that"]});
    for path in ["/score", "/v1/score"] {
        let answer = http.ok(path, two.clone()).await;
        let data = json!([
            {"index": 0, "object": "score", "score": score("which? this")},
            {"index": 1, "object": "score", "score": score("which? that")},
        ]);
        assert_eq!(answer["data"], data, "{path}");
    }
    let own = json!({"text_1": ["a", "b"], "text_2": ["c", "d"], "use_activation": false});
    let answer = http.ok("/score", own).await;
    let both = [&answer["data"][0]["score"], &answer["data"][1]["score"]];
    assert_eq!(both, [&json!(reward("ac", 0).0), &json!(reward("bd", 0).0)]);

    let documents = ["one", "two", "three", "four"];
    let body = json!({"query": "q", "documents": documents, "top_n": 3});
    let answer = http.ok("/v1/rerank", body).await;
    let results = answer["results"].as_array().unwrap();
    let scores: Vec<f64> =
        results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|one, two| one >= two), "{scores:?}");
    for (result, said) in results.iter().zip(scores) {
        let document = documents[result["index"].as_u64().unwrap() as usize];
        assert_eq!(result["document"]["text"], document);
        assert_eq!(said.to_bits(), score(&format!("q{document}")).to_bits());
    }
}

#[tokio::test]
async fn what_cannot_be_pooled_is_refused() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    for (path, body, status) in [
        ("/pooling", json!({"input": "a", "model": "other"}), 404),
        ("/pooling", json!({"input": "a", "task": "embed"}), 400),
        ("/pooling", json!({"input": [99_999]}), 400),
        ("/pooling", json!({"input": ""}), 400),
        ("/pooling", json!({}), 400),
        ("/score", json!({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}), 400),
        ("/score", json!({"text_1": "a", "text_2": []}), 400),
        ("/rerank", json!({"query": "a"}), 400),
    ] {
        let (got, answer) = http.post(path, body).await;
        assert_eq!((got, &answer["error"]["code"]), (status, &json!(status)), "{path}: {answer}");
    }
    // One that sleeps is not to be asked.
    http.call("/sleep?level=1").await;
    let asked = tokio::spawn(async move { http.post("/pooling", json!({"input": "a"})).await });
    support::until("it is asked", || engine.load().1 == 1).await;
    let kinds: Vec<_> = engine.violations().iter().map(|violation| violation.kind).collect();
    assert_eq!(kinds, [ViolationKind::RequestWhileAsleep]);
    client(&engine).call("/wake_up").await;
    assert_eq!(asked.await.unwrap().0, 200);
}

#[tokio::test]
async fn keys_guard_what_they_guard_in_vllm() {
    let config = Config { api_key: Some("key".to_owned()), ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let http = client(&engine);
    let pair = json!({"text_1": "a", "text_2": "b"});
    assert_eq!(http.post("/v1/score", pair.clone()).await.0, 401);
    assert_eq!(http.post("/score", pair).await.0, 200);
}

#[tokio::test]
async fn sglang_classifies() {
    let config = Config { dialect: Dialect::Sglang, version: 5, ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let http = client(&engine);
    let wanted = json!([reward("hi", 5).0]);
    let one = http.ok("/classify", json!({"input_ids": [104, 105]})).await;
    assert_eq!((&one["embedding"], &one["meta_info"]["prompt_tokens"]), (&wanted, &json!(2)));
    let many = http.ok("/classify", json!({"text": ["ho", "hi"]})).await;
    assert_eq!(many[1]["embedding"], wanted);
    let (status, refused) = http.post("/classify", json!({"text": "a", "input_ids": [1]})).await;
    assert_eq!(status, 400, "{refused}");
    assert_eq!(http.post("/pooling", json!({"input": "a"})).await.0, 404);
}
