//! Rewards over HTTP, against real servers that behave badly.
#![allow(clippy::unwrap_used)] // in what tests share

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::version::Version;
use rollwright_crds::reward::GpuReward;
use rollwright_gateway::reward::{GpuScorer, Said, Scorer, ServerlessScorer, Subject, Tokens};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Never reached by a test that passes.
const LIMIT: Duration = Duration::from_secs(20);

/// The fault expected, the body, and the status; 999 breaks the body off.
type Case = (&'static str, fn() -> Body, u16);

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A server that answers every call by `answer(number of the call from 0)`.
async fn scripted(
    answer: impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = move || {
        let response = answer(calls.fetch_add(1, Ordering::SeqCst));
        async move { response }
    };
    serve(Router::new().route("/score", post(handler))).await
}

fn response(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(body.into()).unwrap()
}

fn subject() -> Subject {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    Subject {
        trajectory: TrajectoryId::new("g.1").unwrap(),
        group: GroupId::new("g").unwrap(),
        task: Task::new("math").unwrap(),
        payload: raw(r#"{"answer": 1e2}"#),
        metadata: None,
        messages: None,
        tokens: Some(Tokens { token_ids: vec![1, 2, 3], loss_mask: vec![0, 1, 1] }),
        turns: 2,
        prompt_tokens: 10,
        generated_tokens: 2,
        start_version: Version(3),
        oldest_version: Version(4),
    }
}

fn scorer(address: SocketAddr, timeout: Duration) -> Scorer {
    let url = format!("http://{address}/score");
    Scorer::Serverless(ServerlessScorer::new(&url, None, timeout).unwrap())
}

fn reward(said: &Said) -> f64 {
    let reward = if let Said::Reward(reward) = said { Some(*reward) } else { None };
    reward.unwrap()
}

/// A service whose manifest asks for `ask`, at an address.
fn model(ask: &str, address: SocketAddr) -> Scorer {
    let spec = json!({
        "queue": "q", "pool": "p", "model": {"path": "m"}, "degrees": [1], "ask": ask,
        "engine": {"type": "vLLM", "image": "vllm/vllm-openai:v0.18.1"},
        "footprints": [{"degree": 1, "device": "20Gi"}],
    });
    let spec: GpuReward = serde_json::from_value(spec).unwrap();
    Scorer::Gpu(GpuScorer::at(&format!("http://{address}/"), "judge", &spec).unwrap())
}

async fn score(address: SocketAddr) -> Result<f64, Fault> {
    scorer(address, LIMIT).score(&subject(), 1).await.map(|said| reward(&said))
}

#[tokio::test]
async fn the_service_is_told_everything_and_its_number_is_the_reward() {
    let (told_tx, mut told) = mpsc::unbounded_channel();
    let handler = move |body: String| {
        told_tx.send(body).unwrap();
        async { r#"{"reward": -0.5, "why": "close"}"# }
    };
    let router =
        Router::new().route("/score", post(handler.clone())).route("/reward", post(handler));
    let address = serve(router).await;
    for scorer in [scorer(address, LIMIT), model("Reward", address)] {
        let reward = reward(&scorer.score(&subject(), 1).await.unwrap());
        assert!((reward + 0.5).abs() < f64::EPSILON);
        let body = told.recv().await.unwrap();
        // The caller's JSON goes on as it came.
        assert!(body.contains(r#""payload":{"answer": 1e2}"#), "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let expected = json!({
            "trajectory": "g.1", "group": "g", "task": "math", "payload": {"answer": 100.0},
            "token_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "turns": 2, "prompt_tokens": 10,
            "generated_tokens": 2, "start_version": 3, "oldest_version": 4,
        });
        assert_eq!(body, expected);
    }
}

#[tokio::test]
async fn too_many_requests_says_when_to_come_again_and_then_scores() {
    let address = scripted(|call| match call {
        0 => response(429, &[("retry-after", "7")], "slow down"),
        1 => response(503, &[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], ""),
        2 => response(429, &[("retry-after", "999999999")], ""),
        3 => response(503, &[("retry-after", "soon")], ""),
        _ => response(200, &[], r#"{"reward": 1}"#),
    })
    .await;
    let waits = [Some(7), Some(0), Some(3600), None];
    for (reason, wait) in
        ["RewardOverloaded", "RewardFailed", "RewardOverloaded", "RewardFailed"].iter().zip(waits)
    {
        let fault = score(address).await.unwrap_err();
        assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Infrastructure, *reason));
        assert_eq!(fault.retry_after, wait.map(Duration::from_secs), "{fault}");
    }
    assert!((score(address).await.unwrap() - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn no_answer_is_ever_a_number() {
    let broken_off = || {
        let pieces = [Ok(r#"{"reward": "#), Err(std::io::Error::other("it ends here"))];
        Body::from_stream(futures::stream::iter(pieces))
    };
    let cases: [Case; 14] = [
        ("RewardNotANumber", || Body::from(r#"{"reward": NaN}"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"reward": 1e999}"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"reward": null}"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"reward": "1"}"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"reward": 0"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"error": "no model"}"#), 200),
        ("RewardNotANumber", || Body::from(r#"{"error": "no model", "reward": 0}"#), 200),
        ("RewardNotANumber", || Body::from("0"), 200),
        ("RewardNotANumber", Body::empty, 200),
        ("RewardReplyTooLarge", || Body::from(vec![b' '; 1 << 20]), 200),
        ("RewardDisconnected", || Body::empty(), 999),
        ("RewardFailed", || Body::from(r#"{"reward": 0}"#), 500),
        ("RewardFailed", || Body::from("bad"), 400),
        ("RewardUnauthorized", || Body::from("who?"), 401),
    ];
    for (reason, body, status) in cases {
        let address = scripted(move |_| match status {
            999 => response(200, &[], broken_off()),
            _ => response(status, &[], body()),
        })
        .await;
        let fault = score(address).await.unwrap_err();
        let got = (fault.kind, fault.reason.as_ref());
        assert_eq!(got, (FaultKind::Infrastructure, reason), "{fault}");
        assert!(fault.message.contains("/score"), "{fault}");
    }
}

#[tokio::test]
async fn hanging_resetting_and_absent_services_are_told_apart() {
    let hangs = Router::new().route("/score", post(std::future::pending::<StatusCode>));
    let hangs = serve(hangs).await;
    let fault = scorer(hangs, Duration::from_millis(50)).score(&subject(), 1).await.unwrap_err();
    assert_eq!(fault.reason, "RewardTimeout");

    // It begins to answer and then hangs: the limit is for the whole call.
    let dribbles = scripted(|_| {
        let first = futures::stream::iter([Ok::<_, std::io::Error>("{")]);
        let never = futures::stream::pending();
        response(200, &[], Body::from_stream(futures::StreamExt::chain(first, never)))
    });
    let dribbles = scorer(dribbles.await, Duration::from_millis(50));
    assert_eq!(dribbles.score(&subject(), 1).await.unwrap_err().reason, "RewardTimeout");

    let resets = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = resets.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = resets.accept().await {
            // Unread bytes make the close a reset.
            stream.readable().await.unwrap();
            drop(stream);
        }
    });
    assert_eq!(score(address).await.unwrap_err().reason, "RewardDisconnected");

    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(score(nobody).await.unwrap_err().reason, "RewardUnreachable");
}

#[tokio::test]
async fn the_secret_goes_to_the_service_alone() {
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let elsewhere = Arc::clone(&seen);
    let other = post(move |headers: HeaderMap| {
        elsewhere.lock().unwrap().push(headers);
        async { r#"{"reward": 9}"# }
    });
    let other = serve(Router::new().route("/", other)).await;
    let to = format!("http://{other}/");
    // The status says what to do; the body sends the secret back.
    let (status_tx, status) = tokio::sync::watch::channel(200_u16);
    let handler = move |headers: HeaderMap| {
        let status = *status.borrow();
        let said = headers["authorization"].to_str().unwrap().to_owned();
        let body = json!({"reward": 1, "said": said}).to_string();
        let to = to.clone();
        async move { response(status, &[("location", &to)], body) }
    };
    let address = serve(Router::new().route("/score", post(handler))).await;

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "first-secret").unwrap();
    let url = format!("http://{address}/score?key=in-the-url");
    let path = file.path().to_owned();
    let scorer = ServerlessScorer::new(&url, Some(path.clone()), LIMIT).unwrap();
    assert!(scorer.score(&subject()).await.is_ok());
    for (status, reason) in
        [(500, "RewardFailed"), (307, "RewardRedirected"), (302, "RewardRedirected")]
    {
        status_tx.send(status).unwrap();
        let fault = scorer.score(&subject()).await.unwrap_err();
        assert_eq!(fault.reason, reason);
        assert!(!fault.message.contains("first-secret"), "{fault}");
        assert!(!fault.message.contains("in-the-url"), "{fault}");
        assert!(fault.message.contains("***"), "{fault}");
    }
    assert!(seen.lock().unwrap().is_empty(), "a redirect was followed");

    // Rotated: the next call reads it.
    std::fs::write(&path, "second-secret").unwrap();
    let fault = scorer.score(&subject()).await.unwrap_err();
    assert!(fault.message.contains("Bearer ***"), "{fault}");
    for wrong in ["", "\n", "two\nlines"] {
        std::fs::write(&path, wrong).unwrap();
        assert_eq!(scorer.score(&subject()).await.unwrap_err().reason, "RewardSecret", "{wrong:?}");
    }
    drop(file);
    let fault = scorer.score(&subject()).await.unwrap_err();
    assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Infrastructure, "RewardSecret"));
}

#[tokio::test]
async fn dropping_a_call_ends_its_connection() {
    struct Gone(mpsc::UnboundedSender<&'static str>);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = self.0.send("gone");
        }
    }
    let (gone_tx, mut happened) = mpsc::unbounded_channel();
    let handler = move || {
        let gone = Gone(gone_tx.clone());
        gone.0.send("came").unwrap();
        async move {
            std::future::pending::<()>().await;
            drop(gone);
        }
    };
    let address = serve(Router::new().route("/score", post(handler))).await;
    let scorer = scorer(address, LIMIT);
    let call = tokio::spawn(async move { scorer.score(&subject(), 1).await });
    assert_eq!(happened.recv().await, Some("came"));
    call.abort();
    assert_eq!(happened.recv().await, Some("gone"));
}

#[test]
fn an_address_that_is_none_is_refused_and_not_shown() {
    for url in ["", "judge", "ftp://judge/score", "http://"] {
        let fault = ServerlessScorer::new(url, None, LIMIT).unwrap_err();
        assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "InvalidRewardUrl"));
    }
}

#[tokio::test]
async fn a_teacher_says_the_log_probability_of_each_generated_token() {
    let handler = |body: String| async move {
        let asked: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(asked["prompt"], json!([1, 2, 3]));
        let row = |id: u32| json!({id.to_string(): {"logprob": -f64::from(id) / 4.0}});
        json!({"choices": [{"prompt_logprobs": [null, row(2), row(3)]}]}).to_string()
    };
    let address = serve(Router::new().route("/v1/completions", post(handler))).await;
    let said = model("LogProbs", address).score(&subject(), 1).await.unwrap();
    assert_eq!(said, Said::LogProbs(vec![None, Some(-0.5), Some(-0.75)]));
}
