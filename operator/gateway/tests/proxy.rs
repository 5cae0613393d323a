//! The data path before simulated engines: what passes, what is refused, what is tried again.
#![allow(clippy::unwrap_used)]

mod proxy_common;

use proxy_common::{Job, LIMIT, chat, engines, events, streamed_text, until};
use rollwright_engine_sim::{Config, EngineSim, Fault, FaultKind, Latency, Outcome};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn fault(kind: FaultKind, after_tokens: usize) -> Fault {
    serde_json::from_value(json!({"fault": kind, "after_tokens": after_tokens})).unwrap()
}

fn slow_engine() -> Config {
    let latency = Latency { step: Duration::from_millis(20), ..Latency::default() };
    Config { latency, mean_tokens: 0, ..Config::default() }
}

fn address(job: &Job) -> String {
    job.url.strip_prefix("http://").unwrap().to_owned()
}

async fn raw(job: &Job, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(job)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    tokio::time::timeout(LIMIT, stream.read_to_end(&mut text)).await.unwrap().unwrap();
    String::from_utf8(text).unwrap()
}

fn requests(engines: &[EngineSim]) -> Vec<usize> {
    engines.iter().map(|engine| engine.requests().len()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_pass_and_sessions_stay() {
    let job = Job::start(engines(3, &Config::default()).await, |_| {}).await;
    for turn in 0..6 {
        let reply = job
            .request("/v1/chat/completions", &chat(&format!("turn {turn}")))
            .header("X-Session-ID", "user:7")
            .send()
            .await
            .unwrap();
        assert_eq!(reply.status(), 200);
        let reply: serde_json::Value = reply.json().await.unwrap();
        assert_eq!(reply["object"], "chat.completion");
    }
    let mut per_engine = requests(&job.engines);
    per_engine.sort_unstable();
    assert_eq!(per_engine, [0, 0, 6], "one session, one engine");

    let mut streamed = chat("stream");
    streamed["stream"] = json!(true);
    let reply = job.request("/t/some/v1/chat/completions", &streamed).send().await.unwrap();
    assert!(reply.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let body = reply.text().await.unwrap();
    assert_eq!(events(&body).last(), Some(&"[DONE]"));
    assert!(!streamed_text(&body).is_empty());

    let (status, models) = job.get("/v1/models").await;
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!("engine-sim")));
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused() {
    let job = Job::start(engines(1, &Config::default()).await, |_| {}).await;
    let url = |path: &str| format!("{}{path}", job.url);
    for path in ["/health", "/healthz"] {
        assert_eq!(job.client.get(url(path)).send().await.unwrap().status(), 200, "{path}");
    }
    let nobody = job.client.post(url("/v1/completions")).json(&chat("x")).send().await.unwrap();
    assert_eq!(nobody.status(), 401);
    let error: serde_json::Value = nobody.json().await.unwrap();
    assert_eq!(
        (&error["error"]["type"], &error["error"]["code"]),
        (&json!("user"), &json!("Unauthenticated"))
    );
    let other = job.client.get(url("/v1/models")).bearer_auth("fedcba9876543210-key");
    assert_eq!(other.send().await.unwrap().status(), 403);
    assert_eq!(job.get("/v1/nothing").await.0, 404);
    assert_eq!(job.get("/v1/chat/completions").await.0, 405);
    let wrong = job.request("/v1/completions", &chat("x")).header("X-Rollwright-Trajectory", "a b");
    let wrong = wrong.send().await.unwrap();
    assert_eq!(wrong.status(), 400);
    assert_eq!(requests(&job.engines), [0]);
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_are_refused_early() {
    let job = Job::start(engines(1, &Config::default()).await, |config| {
        config.limits.max_body = 1 << 20;
        config.limits.max_kept = 1 << 16;
    })
    .await;
    let key = proxy_common::KEY;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    );
    // Nothing of the body was sent.
    let stream = raw(&job, &format!("{head}Content-Length: 104857600\r\n\r\n")).await;
    assert!(answer(stream).await.starts_with("HTTP/1.1 413"));
    // Of unknown length, read here (no id in a header), and passed on as it comes.
    for id in ["", "X-Session-ID: s\r\n"] {
        let mut stream = raw(&job, &format!("{head}{id}Transfer-Encoding: chunked\r\n\r\n")).await;
        let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
        for _ in 0..40 {
            // The gateway may close in between.
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
        let mut reply = vec![0; 1024];
        let read = tokio::time::timeout(LIMIT, stream.read(&mut reply)).await.unwrap();
        if let Ok(length @ 1..) = read {
            let reply = String::from_utf8_lossy(&reply[..length]);
            assert!(reply.starts_with("HTTP/1.1 413"), "{id}: {reply}");
        }
    }
    // Longer than what is kept, shorter than what is refused.
    let mut long = chat(&"word ".repeat(40_000));
    long["max_tokens"] = json!(1);
    let reply = job.request("/v1/chat/completions", &long).header("X-Session-ID", "s");
    let reply = reply.send().await.unwrap();
    let status = reply.status();
    assert!(status == 200 || status == 400, "{status}: the engine's own answer");
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_are_cut() {
    let job = Job::start(engines(1, &Config::default()).await, |config| {
        config.limits.head_timeout = Duration::from_millis(200);
    })
    .await;
    let stream = raw(&job, "POST /v1/chat/completions HTTP/1.1\r\nHost:").await;
    let text = answer(stream).await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_request_with_it() {
    let job = Job::start(engines(1, &slow_engine()).await, |_| {}).await;
    for stream in [false, true] {
        let mut body = chat("long");
        body["stream"] = json!(stream);
        body["max_tokens"] = json!(5000);
        let body = body.to_string();
        let mut client = raw(
            &job,
            &format!(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                proxy_common::KEY,
                body.len()
            ),
        )
        .await;
        until("the engine generates", async || job.engines[0].load().0 == 1).await;
        if stream {
            client.read_u8().await.unwrap();
        }
        drop(client);
        until("the engine has stopped", async || job.engines[0].load() == (0, 0)).await;
        let last = job.engines[0].requests().pop().unwrap();
        assert_eq!(last.outcome, Outcome::Closed);
    }
    until("the slot is free", async || {
        let status = job.get("/rollout/v1/status").await.1;
        status["workers"][0]["running"] == json!(0)
    })
    .await;
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_has_seen_is_tried_elsewhere() {
    for kind in
        [FaultKind::Reset, FaultKind::HalfJson, FaultKind::ErrorBody, FaultKind::TooManyRequests]
    {
        let job = Job::start(engines(2, &Config::default()).await, |_| {}).await;
        for engine in &job.engines {
            engine.inject(fault(kind, 0)).unwrap();
        }
        // Both fail once: the third attempt succeeds.
        let (status, reply) = job.post("/v1/chat/completions", &chat("hi")).await;
        assert_eq!(status, 200, "{kind:?}: {reply}");
        job.stop().await;
    }
    let job = Job::start(engines(1, &Config::default()).await, |_| {}).await;
    job.engines[0]
        .inject(serde_json::from_value(json!({"fault": "reset", "times": 0})).unwrap())
        .unwrap();
    let (status, reply) = job.post("/v1/chat/completions", &chat("hi")).await;
    assert_eq!((status, &reply["error"]["type"]), (502, &json!("infrastructure")), "{reply}");
    job.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_client_has_seen_is_not_tried_again() {
    let job = Job::start(engines(2, &Config::default()).await, |_| {}).await;
    for engine in &job.engines {
        engine.inject(fault(FaultKind::Reset, 3)).unwrap();
    }
    let mut body = chat("hi");
    body["stream"] = json!(true);
    let reply = job.request("/v1/chat/completions", &body).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    // Told as an event where that is possible, else by a broken body.
    if let Ok(text) = reply.text().await {
        let last: serde_json::Value = serde_json::from_str(events(&text).last().unwrap()).unwrap();
        assert_eq!(last["error"]["type"], "infrastructure", "{text}");
    }
    assert_eq!(requests(&job.engines).iter().sum::<usize>(), 1);
    job.stop().await;
}
