//! Faults on demand, and the ends of an engine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{Config, Dialect, EngineSim, Fast, Fault, FaultKind, Latency, Outcome};
use serde_json::{Value, json};
use std::time::Duration;
use support::{Event, chat, client, until};

const GENERATION: &str = "/v1/chat/completions";

async fn engine() -> EngineSim {
    let latency = Latency { step: Duration::from_millis(2), ..Latency::default() };
    EngineSim::start(Config { mean_tokens: 0, latency, ..Config::default() }).await.unwrap()
}

#[tokio::test]
async fn a_reset_breaks_a_stream_after_its_tokens() {
    let engine = engine().await;
    let http = client(&engine);
    let fault = json!({"fault": "reset", "after_tokens": 3});
    assert_eq!(http.post("/sim/faults", fault).await.0, 201);
    let more = json!({"stream": true, "max_tokens": 30_000});
    let mut events = http.stream(GENERATION, chat("x", more)).await;
    let mut chunks = 0;
    while let Event::Data(_) = events.next().await {
        chunks += 1;
    }
    assert_eq!(chunks, 1 + 3, "the role, and three with tokens");
    until("its request is aborted", || engine.load() == (0, 0)).await;
    assert_eq!(engine.requests()[0].outcome, Outcome::Closed);
    http.ok(GENERATION, chat("x", json!({"max_tokens": 2}))).await;
}

#[tokio::test]
async fn a_reset_without_an_answer() {
    let engine = engine().await;
    engine.inject(Fault::new(FaultKind::Reset)).unwrap();
    let error = client(&engine)
        .send(axum::http::Method::POST, GENERATION, Some(&chat("x", json!({}))))
        .await
        .unwrap_err();
    assert!(error.contains("ConnectionReset") || error.contains("IncompleteMessage"), "{error}");
    assert!(engine.requests().is_empty(), "the engine never saw it");
}

#[tokio::test]
async fn a_reset_is_one_on_the_wire() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let engine = engine().await;
    engine.inject(Fault::new(FaultKind::Reset)).unwrap();
    let mut stream = tokio::net::TcpStream::connect(engine.addr()).await.unwrap();
    let body = chat("x", json!({})).to_string();
    let request = format!(
        "POST {GENERATION} HTTP/1.1\r\nHost: sim\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let error = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn wrong_answers() {
    let engine = engine().await;
    let http = client(&engine);
    let ask = async || http.post(GENERATION, chat("x", json!({"max_tokens": 2}))).await;
    for kind in ["error_body", "server_error", "half_json"] {
        assert_eq!(http.post("/sim/faults", json!({"fault": kind})).await.0, 201);
    }
    let (status, answer) = ask().await;
    assert!(status == 200 && answer["error"]["message"].is_string(), "{answer}");
    assert_eq!(ask().await.0, 500);
    let (status, answer) = ask().await;
    assert!(status == 200 && matches!(&answer, Value::String(half) if half.starts_with('{')));
    let fault = json!({"fault": "too_many_requests", "retry_after": 7});
    http.post("/sim/faults", fault).await;
    let body = chat("x", json!({}));
    let (status, headers, _) =
        http.send(axum::http::Method::POST, GENERATION, Some(&body)).await.unwrap();
    assert_eq!((status.as_u16(), headers["retry-after"].to_str().unwrap()), (429, "7"));
    assert_eq!(ask().await.0, 200, "all faults are spent");
    let (status, answer) = http.post("/sim/faults", json!({"fault": "reset", "time": 1})).await;
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("times"), "{answer}");
}

#[tokio::test]
async fn never_and_slow() {
    let engine = engine().await;
    engine.inject(Fault::new(FaultKind::Never)).unwrap();
    let http = client(&engine);
    let body = chat("x", json!({"max_tokens": 2}));
    let never = http.post(GENERATION, body.clone());
    assert!(tokio::time::timeout(Duration::from_millis(50), never).await.is_err());
    let fault = Fault { byte_ms: 1, ..Fault::new(FaultKind::Slow) };
    engine.inject(fault).unwrap();
    let begun = std::time::Instant::now();
    let answer = http.ok(GENERATION, body).await;
    let least = Duration::from_millis(answer.to_string().len() as u64 / 2);
    assert!(begun.elapsed() >= least, "a byte a millisecond");
}

#[tokio::test]
async fn sleep_lies_and_wake_hangs() {
    let engine = engine().await;
    let http = client(&engine);
    engine.inject(Fault::new(FaultKind::SleepLies)).unwrap();
    assert_eq!(http.call("/sleep?level=1").await.0, 200);
    assert_eq!(http.get("/is_sleeping").await.1["is_sleeping"], false);
    http.call("/sleep?level=1").await;
    assert_eq!(http.get("/is_sleeping").await.1["is_sleeping"], true);
    engine.inject(Fault::new(FaultKind::WakeHangs)).unwrap();
    let wake = http.call("/wake_up");
    assert!(tokio::time::timeout(Duration::from_millis(50), wake).await.is_err());
    assert_eq!(http.get("/is_sleeping").await.1["is_sleeping"], true);
    let uris: Vec<String> = engine.calls().into_iter().map(|call| call.uri).collect();
    assert_eq!(uris[..3], ["/sleep?level=1", "/is_sleeping", "/sleep?level=1"]);
}

#[tokio::test]
async fn a_restart_breaks_what_runs_and_brings_old_weights() {
    let engine = engine().await;
    let http = client(&engine);
    let directory = tempfile::tempdir().unwrap();
    let path = json!({"method": "reload_weights", "kwargs": {"weights_path": directory.path()}});
    http.ok("/collective_rpc", path).await;
    assert_eq!(engine.version(), 1);
    let more = json!({"stream": true, "max_tokens": 30_000});
    let mut events = client(&engine).stream(GENERATION, chat("x", more)).await;
    events.data().await;
    http.ok("/sim/restart", json!({"version": 0})).await;
    while let Event::Data(_) = events.next().await {}
    assert_eq!(events.next().await, Event::End, "the connection is gone");
    assert_eq!((engine.version(), engine.load()), (0, (0, 0)));
    let record = engine.requests().remove(0);
    assert!(!record.aborted && record.outcome == Outcome::Lost, "{record:?}");
    http.ok(GENERATION, chat("x", json!({"max_tokens": 2}))).await;
}

#[tokio::test]
async fn a_killed_engine_answers_nobody_and_frees_its_port() {
    let engine = engine().await;
    let port = engine.addr().port();
    let more = json!({"stream": true, "max_tokens": 30_000});
    let mut events = client(&engine).stream(GENERATION, chat("x", more)).await;
    events.data().await;
    engine.kill();
    let mut last = events.next().await;
    while let Event::Data(_) = last {
        last = events.next().await;
    }
    assert_eq!(last, Event::Broken);
    assert_eq!(engine.requests()[0].outcome, Outcome::Lost);
    let http = client(&engine);
    let connect = http.send(axum::http::Method::GET, "/health", None).await;
    assert!(connect.is_err());
    let again = EngineSim::start(Config { port, ..Config::default() }).await.unwrap();
    assert_eq!(client(&again).get("/health").await.0, 200);
}

#[tokio::test]
async fn stop_answers_what_runs() {
    let engine = engine().await;
    let more = json!({"stream": true, "max_tokens": 50});
    let mut events = client(&engine).stream(GENERATION, chat("x", more)).await;
    events.data().await;
    let (chunks, ()) = tokio::join!(events.all(), engine.stop());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn fast_mode_answers_of_the_size_asked_for() {
    let fast = Fast { reply_bytes: 333, stream_tokens: 4, ..Fast::default() };
    for stream_interval in [Duration::ZERO, Duration::from_millis(1)] {
        let fast = Fast { stream_interval, ..fast };
        let engine = EngineSim::start(Config { fast: Some(fast), ..Config::default() });
        let engine = engine.await.unwrap();
        let http = client(&engine);
        let answer = http.ok(GENERATION, chat("x", json!({}))).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(content.len(), 333);
        let mut events = http.stream(GENERATION, chat("x", json!({"stream": true}))).await;
        assert_eq!(events.all().await.len(), 1 + 4 + 1);
        assert_eq!(http.get("/health").await.0, 200);
    }
}

#[tokio::test]
async fn the_plain_openai_dialect_has_no_other_admin_route() {
    let config = Config { dialect: Dialect::OpenAi, ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let http = client(&engine);
    for path in ["/pause", "/pause_generation", "/sleep", "/generate"] {
        assert_eq!(http.call(path).await.0, 404, "{path}");
    }
    let directory = tempfile::tempdir().unwrap();
    let update = json!({"model_path": directory.path(), "weight_version": 8});
    http.ok("/update_weights_from_disk", update).await;
    assert_eq!(engine.version(), 8);
}
