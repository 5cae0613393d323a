//! What Prometheus is told of GPU pools.

use std::net::SocketAddr;
use std::sync::Arc;

use rollwright_proto::v1 as pb;
use rollwright_queue::{MetricsListen, QueueServer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::agent::GpuAgent;
use crate::common::{client, http_on, listeners, until};
use crate::{call, config, request};

/// The value of a series, `None` where there is none.
fn value(text: &str, series: &str) -> Option<f64> {
    let name = format!("rollwright_gpu_{series} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

async fn scrape(metrics: SocketAddr) -> String {
    let stream = TcpStream::connect(metrics).await.unwrap();
    let (status, _, body) = http_on(stream, "GET", "/metrics", "", b"").await;
    assert_eq!(status, 200);
    String::from_utf8_lossy(&body).into_owned()
}

/// Waits until each series has its value.
async fn shows(metrics: SocketAddr, wanted: &[(&str, f64)]) -> String {
    until(|| async {
        let text = scrape(metrics).await;
        wanted.iter().all(|(series, is)| value(&text, series) == Some(*is)).then_some(text)
    })
    .await
}

#[tokio::test]
async fn counts_begin_at_zero_and_tell_what_engines_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut listen = listeners(dir.path());
    listen.metrics = Some(MetricsListen { addr: ([127, 0, 0, 1], 0).into(), token_file: None });
    let server = QueueServer::start(config(dir.path(), 100), listen).await.unwrap();
    let metrics = server.metrics_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.serve(shutdown.clone()));
    // Nothing has happened, and every series is there.
    let none = [
        "restores_total{how=\"launch\",service=\"other\"}",
        "restores_total{how=\"wake\",service=\"judge\"}",
        "evictions_total{service=\"judge\"}",
        "calls_total{resident=\"yes\",service=\"judge\"}",
        "calls_total{resident=\"no\",service=\"judge\"}",
        "calls_ended_total{kind=\"answered\",service=\"judge\"}",
        "calls_ended_total{kind=\"infrastructure\",service=\"judge\"}",
        "engine_failures_total{reason=\"EngineRefused\",service=\"judge\"}",
        "restore_wait_seconds_total{service=\"judge\"}",
        "restore_seconds_count{service=\"judge\"}",
        "act_seconds_count{service=\"judge\"}",
        "in_trouble{service=\"judge\"}",
        "waiting_calls{service=\"judge\"}",
        "residents{degree=\"1\",service=\"judge\"}",
        "device_memory_held_bytes{pool=\"judges\",service=\"judge\"}",
        "device_memory_bytes{pool=\"judges\"}",
    ];
    shows(metrics, &none.map(|series| (series, 0.0))).await;

    // Both do not fit on the GPU: the second puts the first to sleep.
    let agent = GpuAgent::connect(dir.path(), Arc::default()).await;
    let other = |id: &str| pb::CallRequest { service: "other".to_owned(), ..request(id, "/score") };
    assert_eq!(call(client(dir.path()).await, request("a", "/score")).await.unwrap().status, 200);
    assert_eq!(call(client(dir.path()).await, other("b")).await.unwrap().status, 200);
    assert_eq!(call(client(dir.path()).await, other("c")).await.unwrap().status, 200);
    let wanted = [
        ("restores_total{how=\"launch\",service=\"judge\"}", 1.0),
        ("evictions_total{service=\"judge\"}", 1.0),
        ("evictions_total{service=\"other\"}", 0.0),
        ("calls_total{resident=\"no\",service=\"other\"}", 1.0),
        ("calls_total{resident=\"yes\",service=\"other\"}", 1.0),
        ("calls_ended_total{kind=\"answered\",service=\"other\"}", 2.0),
        ("residents{degree=\"1\",service=\"judge\"}", 0.0),
        ("residents{degree=\"1\",service=\"other\"}", 1.0),
        ("device_memory_held_bytes{pool=\"judges\",service=\"judge\"}", 1.0),
        ("device_memory_held_bytes{pool=\"judges\",service=\"other\"}", 6.0),
        ("host_memory_held_bytes{pool=\"judges\",service=\"judge\"}", 1.0),
        ("device_memory_bytes{pool=\"judges\"}", 10.0),
        ("host_memory_bytes{pool=\"judges\"}", 100.0),
        ("devices{pool=\"judges\"}", 1.0),
    ];
    let text = shows(metrics, &wanted).await;
    let restoring = value(&text, "restore_wait_seconds_total{service=\"other\"}").unwrap();
    let all = value(&text, "act_seconds_sum{service=\"other\"}").unwrap();
    assert!(restoring > 0.0 && restoring < all, "{restoring} s of {all} s");

    // An engine that is refused is counted by its reason, and in trouble until it comes up.
    agent.node.lock().unwrap().refuses = Some("no memory".to_owned());
    let waits = tokio::spawn(call(client(dir.path()).await, request("d", "/score")));
    let trouble = "in_trouble{service=\"judge\"}";
    let text = shows(metrics, &[(trouble, 1.0), ("waiting_calls{service=\"judge\"}", 1.0)]).await;
    let refused = "engine_failures_total{reason=\"EngineRefused\",service=\"judge\"}";
    assert!(value(&text, refused) >= Some(1.0), "{text}");
    agent.node.lock().unwrap().refuses = None;
    assert_eq!(waits.await.unwrap().unwrap().status, 200);
    shows(metrics, &[(trouble, 0.0), ("in_trouble{service=\"other\"}", 0.0)]).await;
    shutdown.cancel();
    task.await.unwrap().unwrap();
}
