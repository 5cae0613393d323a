//! The HTTP mirror, authentication and files, with simulated agents.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use common::simulated_agent::SimulatedAgent;
use common::{TestQueue, config, http, http_on, listeners};
use rollwright_queue::{AgentListen, AuthConfig, Listen, MetricsListen, QueueServer};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const A: &str = "key-of-job-a-0123";
const B: &str = "key-of-job-b-0123";

fn json_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(body)))
}

async fn post(dir: &std::path::Path, path: &str, body: Value) -> (u16, Vec<u8>) {
    let (status, _, body) = http(dir, "POST", path, body.to_string().as_bytes()).await;
    (status, body)
}

#[tokio::test]
async fn the_whole_life_of_a_trajectory() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let _agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let dir = dir.path();
    assert_eq!(http(dir, "GET", "/healthz", b"").await.0, 200);
    assert_eq!(http(dir, "GET", "/readyz", b"").await.0, 200);

    let (status, body) = post(
        dir,
        "/v1/trajectories",
        json!({"trajectory_id": "g/t", "template": "box", "deadline": "30s"}),
    )
    .await;
    assert_eq!((status, &json_of(&body)["node"]), (200, &json!("node-1")));
    let (status, _, body) = http(dir, "GET", "/v1/trajectories/g%2Ft", b"").await;
    assert_eq!((status, &json_of(&body)["state"]), (200, &json!("ready")));

    let run = json!({"action_id": "a", "trajectory_id": "g/t", "command": {"shell": "echo hi"}, "timeout": 5});
    let (status, body) = post(dir, "/v1/actions", run).await;
    assert_eq!(status, 200);
    let lines: Vec<Value> =
        body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(json_of).collect();
    let output = lines.iter().find_map(|line| line.get("output")).unwrap();
    assert_eq!(output, &json!({"stream": "stdout", "text": "hi"}));
    assert_eq!(lines.last().unwrap()["finished"]["exit_code"], 0);

    for path in ["/v1/actions/a", "/v1/actions/a?wait=true"] {
        let (status, _, body) = http(dir, "GET", path, b"").await;
        let body = json_of(&body);
        assert_eq!(
            (status, &body["state"], &body["output"][0]["text"]),
            (200, &json!("finished"), &json!("hi"))
        );
    }
    let (status, body) = post(dir, "/v1/actions/a/cancel", json!({})).await;
    assert_eq!((status, json_of(&body)), (200, json!({"cancelled": false})));

    let data = vec![7_u8; 3 << 20];
    let path = "/v1/trajectories/g%2Ft/files?path=/workspace/x&mode=755";
    let (status, _, body) = http(dir, "PUT", path, &data).await;
    assert_eq!((status, json_of(&body)), (200, json!({"bytes": 3 << 20})));
    let (status, _, body) =
        http(dir, "GET", "/v1/trajectories/g%2Ft/files?path=/workspace/x", b"").await;
    assert!(status == 200 && body == data, "{status}, {} bytes", body.len());
    let (status, _, body) = http(dir, "GET", "/v1/trajectories/g%2Ft/files?path=/none", b"").await;
    assert_eq!((status, &json_of(&body)["fault"]["reason"]), (404, &json!("FileNotFound")));

    let (status, _, body) = http(dir, "GET", "/v1/stats", b"").await;
    assert_eq!((status, &json_of(&body)["nodes"][0]["connected"]), (200, &json!(true)));
    assert_eq!(http(dir, "DELETE", "/v1/trajectories/g%2Ft", b"").await.0, 200);
    assert_eq!(http(dir, "GET", "/v1/trajectories/g%2Ft", b"").await.0, 404);
    queue.stop().await;
}

#[tokio::test]
async fn bad_bodies_are_refused_with_their_path() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let dir = dir.path();
    let large = vec![b' '; (4 << 20) + 1];
    assert_eq!(http(dir, "POST", "/v1/actions", &large).await.0, 413);
    for (body, expected) in [
        ("", "the body"),
        ("[1]", "`[0]`"),
        ("{\"action_id\":", "EOF"),
        (r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x"}} x"#, "one JSON object"),
        (r#"{"action_id":"a","trajectory_id":"t"}"#, "missing field `command`"),
        (
            r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x","sehll":1}}"#,
            "`command.sehll`",
        ),
        (r#"{"action_id":"a","trajectory_id":"t","command":{"shell":3}}"#, "`command.shell`"),
        (r#"{"action_id":"a","trajectory_id":"t","command":{}}"#, "exactly one of shell and argv"),
        (
            r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x","stdin":{"data_base64":"?"}}}"#,
            "`command.stdin.data_base64`",
        ),
        (
            r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x"},"timeout":"soon"}"#,
            "`timeout`",
        ),
        (
            r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x"},"timeout":-1}"#,
            "`timeout`",
        ),
        (
            r#"{"action_id":"a","trajectory_id":"t","command":{"shell":"x"},"quota":{"q":-1}}"#,
            "`quota.q`",
        ),
        (r#"{"action_id":"a b","trajectory_id":"t","command":{"shell":"x"}}"#, "valid action id"),
    ] {
        let (status, _, answer) = http(dir, "POST", "/v1/actions", body.as_bytes()).await;
        let fault = json_of(&answer)["fault"].clone();
        assert_eq!((status, &fault["kind"]), (400, &json!("user")), "{body}");
        assert!(fault["message"].as_str().unwrap().contains(expected), "{body}: {fault}");
    }
    for (method, path, status) in [
        ("GET", "/v1/actions/unknown", 404),
        ("GET", "/v1/actions/unknown?wait=perhaps", 400),
        ("GET", "/v1/trajectories/unknown/files?path=/x", 404),
        ("GET", "/v1/trajectories/unknown/files?path=x", 400),
        ("DELETE", "/v1/permits/p?retry_after_s=-3", 400),
        ("GET", "/v1/nothing", 404),
    ] {
        assert_eq!(http(dir, method, path, b"").await.0, status, "{path}");
    }
    queue.stop().await;
}

#[tokio::test]
async fn a_key_reaches_its_own_job_only() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "a:key-of-job-a-0123\nb:key-of-job-b-0123\n").unwrap();
    let mut listeners = listeners(dir.path());
    listeners.callers =
        Listen::Tcp { addr: ([127, 0, 0, 1], 0).into(), auth: AuthConfig::api_keys(keys) };
    listeners.metrics = Some(MetricsListen { addr: ([127, 0, 0, 1], 0).into(), token_file: None });
    let server = QueueServer::start(config(dir.path()), listeners).await.unwrap();
    let (addr, metrics) = (server.callers_addr().unwrap(), server.metrics_addr().unwrap());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.serve(shutdown.clone()));
    let _agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let call = |key: &'static str, method: &'static str, path: &'static str, body: Value| async move {
        let stream = TcpStream::connect(addr).await.unwrap();
        let headers = format!("authorization: Bearer {key}\r\n");
        let (status, _, body) =
            http_on(stream, method, path, &headers, body.to_string().as_bytes()).await;
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let open = json!({"trajectory_id": "t", "template": "box"});
    assert_eq!(call("wrong", "POST", "/v1/trajectories", open.clone()).await.0, 401);
    assert_eq!(call(A, "POST", "/v1/trajectories", open.clone()).await.0, 200);
    let stolen = json!({"trajectory_id": "u", "template": "box", "job": "a"});
    assert_eq!(call(B, "POST", "/v1/trajectories", stolen).await.0, 403);
    let run =
        |id: &str| json!({"action_id": id, "trajectory_id": "t", "command": {"shell": "true"}});
    assert_eq!(call(A, "POST", "/v1/actions", run("x")).await.0, 200);
    assert_eq!(call(B, "POST", "/v1/actions", run("x")).await.0, 409, "the id is taken");
    assert_eq!(call(B, "POST", "/v1/actions", run("y")).await.0, 404);
    assert_eq!(call(B, "GET", "/v1/actions/x", json!({})).await.0, 404);
    assert_eq!(call(B, "GET", "/v1/trajectories/t", json!({})).await.0, 404);
    assert_eq!(call(B, "DELETE", "/v1/trajectories/t", json!({})).await.0, 200);
    assert_eq!(
        call(A, "GET", "/v1/trajectories/t", json!({})).await.0,
        200,
        "B has closed nothing"
    );

    let stream = TcpStream::connect(metrics).await.unwrap();
    let (status, _, body) = http_on(stream, "GET", "/metrics", "", b"").await;
    let text = String::from_utf8_lossy(&body).into_owned();
    assert_eq!(status, 200);
    assert!(text.contains("rollwright_queue_ended_total{kind=\"finished\"} 1"), "{text}");
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn tcp_without_authentication_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let addr = ([127, 0, 0, 1], 0).into();
    let start = |listeners| async {
        match QueueServer::start(config(dir.path()), listeners).await {
            Ok(_) => panic!("it must not start"),
            Err(error) => error.to_string(),
        }
    };
    let mut open = listeners(dir.path());
    open.callers = Listen::Tcp { addr, auth: AuthConfig::default() };
    assert!(start(open).await.contains("file of API keys"));
    let mut open = listeners(dir.path());
    open.agents = AgentListen::Tcp { addr, tls: None, agent_name: None };
    assert!(start(open).await.contains("mutual TLS"));
    let mut open = listeners(dir.path());
    open.metrics = Some(MetricsListen { addr: ([0, 0, 0, 0], 0).into(), token_file: None });
    assert!(start(open).await.contains("token file"));
}

#[tokio::test]
async fn permits_wait_in_line_and_return() {
    use rollwright_core::ids::QuotaName;
    use rollwright_core::quota::QuotaLimit;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    let limit = QuotaLimit { concurrency: Some(1), rate: None };
    config.core.quotas.insert(QuotaName::new("api").unwrap(), limit);
    let queue = TestQueue::start(config, dir.path()).await;
    let dir = dir.path().to_owned();
    let ask = |id: &str| json!({"permit_id": id, "quota": "api"});
    assert_eq!(post(&dir, "/v1/permits", ask("p1")).await.0, 200);
    assert_eq!(post(&dir, "/v1/permits", ask("p1")).await.0, 200, "idempotent");
    let impatient = json!({"permit_id": "p2", "quota": "api", "deadline": 0.01});
    let (status, body) = post(&dir, "/v1/permits", impatient).await;
    assert_eq!((status, &json_of(&body)["fault"]["kind"]), (504, &json!("timeout")));
    let waiting = tokio::spawn({
        let (dir, ask) = (dir.clone(), ask("p3"));
        async move { post(&dir, "/v1/permits", ask).await.0 }
    });
    common::until(|| async {
        let (_, _, body) = http(&dir, "GET", "/v1/stats", b"").await;
        (json_of(&body)["quotas"][0]["waiting"] == 1).then_some(())
    })
    .await;
    // 0 is a refusal without a time, and nonsense does not keep the permit.
    assert_eq!(http(&dir, "DELETE", "/v1/permits/p1?retry_after_s=0", b"").await.0, 200);
    assert_eq!(waiting.await.unwrap(), 200);
    assert_eq!(http(&dir, "DELETE", "/v1/permits/p3?retry_after_s=-1", b"").await.0, 400);
    assert_eq!(post(&dir, "/v1/permits", ask("p4")).await.0, 200);
    let forever = json!({"permit_id": "p5", "quota": "api", "ttl": "2h"});
    assert_eq!(post(&dir, "/v1/permits", forever).await.0, 400);
    let (status, body) = post(&dir, "/v1/permits", json!({"permit_id": "p", "quota": "x"})).await;
    assert_eq!((status, &json_of(&body)["fault"]["reason"]), (400, &json!("UnknownQuota")));
    queue.stop().await;
}
