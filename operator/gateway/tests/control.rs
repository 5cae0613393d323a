//! The control side of engines and the watch over workers, against real servers that are
//! told how to answer.
#![allow(clippy::unwrap_used)] // in what tests share
#![allow(clippy::needless_pass_by_value)] // bodies of every type

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Response, Uri};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::WorkerId;
use rollwright_core::version::Version;
use rollwright_gateway::engine::control::{
    Control, Dialect, Limits, PauseMode, Source, TransferStep,
};
use rollwright_gateway::workers::{Change, Watch, WatchConfig, WorkerEvent};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;

/// Never reached by a test that passes.
const LIMIT: Duration = Duration::from_secs(20);

/// An engine that answers what it is told, and writes down what it was asked.
#[derive(Clone, Default)]
struct Stub {
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
enum Answer {
    Reply(u16, String),
    Hang,
    /// Breaks off in the middle.
    Break,
}

impl Stub {
    /// What `path` answers from now on; all others answer 404.
    fn on(&self, path: &str, status: u16, body: impl ToString) -> &Self {
        self.set(path, Answer::Reply(status, body.to_string()))
    }

    fn set(&self, path: &str, answer: Answer) -> &Self {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
        self
    }

    /// `METHOD path?query body` of every call since the last look.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn router(&self) -> Router {
        let stub = self.clone();
        Router::new().fallback(async move |method: Method, uri: Uri, body: Bytes| {
            let body = String::from_utf8_lossy(&body).into_owned();
            let line = format!("{method} {uri} {body}");
            stub.asked.lock().unwrap().push(line.trim_end().to_owned());
            let answer = stub.answers.lock().unwrap().get(uri.path()).cloned();
            match answer.unwrap_or(Answer::Reply(404, r#"{"detail": "Not Found"}"#.to_owned())) {
                Answer::Reply(status, body) => {
                    Response::builder().status(status).body(Body::from(body)).unwrap()
                }
                Answer::Hang => std::future::pending().await,
                Answer::Break => {
                    let pieces = [Ok("{"), Err(std::io::Error::other("it ends here"))];
                    Response::new(Body::from_stream(futures::stream::iter(pieces)))
                }
            }
        })
    }

    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn control(&self, dialect: Dialect) -> Control {
        let url = format!("http://{}", self.start().await);
        Control::new(&url, dialect, None, limits(LIMIT)).unwrap()
    }
}

fn limits(each: Duration) -> Limits {
    Limits { probe: each, pause: each, update: each, step: each }
}

fn reload() -> Dialect {
    Dialect::Reload { path: "/load".to_owned() }
}

fn disk() -> Source {
    Source::Disk { path: "/weights/v8".to_owned() }
}

const V: Version = Version(8);

/// The five steps of an update.
async fn update(control: &Control) -> Result<(), Fault> {
    control.pause(PauseMode::Abort).await?;
    control.update(&disk(), V).await?;
    control.flush_cache().await?;
    control.verify(V).await?;
    control.resume().await
}

fn vllm() -> Stub {
    let stub = Stub::default();
    stub.on("/pause", 200, json!({"status": "paused"}))
        .on("/is_paused", 200, json!({"is_paused": true}))
        .on("/collective_rpc", 200, json!({"results": [null]}))
        .on("/update_weight_version", 200, json!({"success": true, "new_version": "8"}))
        .on("/reset_prefix_cache", 200, json!({"success": true}))
        .on("/weight_info", 200, json!({"weight_version": "8"}))
        .on("/resume", 200, json!({"status": "resumed"}));
    stub
}

#[tokio::test]
async fn vllm_is_paused_with_its_cache_cleared_and_loads_by_its_own_loader() {
    let stub = vllm();
    let control = stub.control(Dialect::Vllm).await;
    let fault = update(&control).await.unwrap_err();
    let expected = [
        "POST /pause?mode=abort&clear_cache=true",
        "GET /is_paused",
        r#"POST /collective_rpc {"kwargs":{"weights_path":"/weights/v8"},"method":"reload_weights"}"#,
        r#"POST /update_weight_version {"new_version":"8","weight_version":"8"}"#,
        "POST /reset_prefix_cache",
        "GET /weight_info",
        "POST /resume",
        "GET /is_paused",
    ];
    assert_eq!(stub.asked(), expected);
    // It said that it resumed, and is paused.
    assert!(fault.reason == "EngineRefused" && fault.message.contains("/is_paused"), "{fault}");
    stub.on("/is_paused", 200, json!({"is_paused": false}));
    control.resume().await.unwrap();
    let fault = control.pause(PauseMode::Wait).await.unwrap_err();
    assert!(fault.message.contains("/pause"), "{fault}");
    assert_eq!(stub.asked()[2], "POST /pause?mode=wait&clear_cache=true");
}

#[tokio::test]
async fn an_older_vllm_that_knows_no_versions_is_believed() {
    let stub = Stub::default();
    stub.on("/collective_rpc", 200, json!({"results": [null]}));
    let control = stub.control(Dialect::Vllm).await;
    control.update(&disk(), V).await.unwrap();
    assert_eq!(control.version().await.unwrap(), None);
    control.verify(V).await.unwrap();
    // It has no abort: closing the connection ends a request.
    assert!(!control.abort("r1").await.unwrap());
}

#[tokio::test]
async fn sglang_keeps_its_pause_and_aborts_nothing() {
    let stub = Stub::default();
    let ok = json!({"success": true, "message": "ok"});
    stub.on("/pause_generation", 200, json!({"status": "ok"}))
        .on("/update_weights_from_disk", 200, &ok)
        .on("/flush_cache", 200, "Cache flushed.\nPlease check backend logs")
        .on("/get_model_info", 200, json!({"weight_version": "8"}))
        .on("/continue_generation", 200, json!({"status": "ok"}))
        .on("/abort_request", 200, "");
    let control = stub.control(Dialect::SGLang).await;
    update(&control).await.unwrap();
    control.pause(PauseMode::Wait).await.unwrap();
    assert!(control.abort("r1").await.unwrap());
    let expected = [
        r#"POST /pause_generation {"mode":"abort"}"#,
        r#"POST /update_weights_from_disk {"abort_all_requests":false,"flush_cache":true,"keep_pause":true,"model_path":"/weights/v8","weight_version":"8"}"#,
        "POST /flush_cache",
        "GET /get_model_info",
        "POST /continue_generation {}",
        r#"POST /pause_generation {"mode":"retract"}"#,
        r#"POST /abort_request {"rid":"r1"}"#,
    ];
    assert_eq!(stub.asked(), expected);
    // Newer releases have another path.
    let newer = Stub::default();
    newer.on("/model_info", 200, json!({"weight_version": "default"}));
    let newer = newer.control(Dialect::SGLang).await;
    assert_eq!(newer.version().await.unwrap(), None);
}

#[tokio::test]
async fn an_engine_that_only_reloads_is_asked_once() {
    let stub = Stub::default();
    stub.on("/load", 200, "");
    let control = stub.control(reload()).await;
    update(&control).await.unwrap();
    assert_eq!(stub.asked(), [r#"POST /load {"model_path":"/weights/v8","weight_version":"8"}"#]);
    for fault in [
        control.update(&Source::External, V).await.unwrap_err(),
        control.transfer(TransferStep::Init, &json!({})).await.unwrap_err(),
    ] {
        assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "TransferUnsupported"));
    }
}

#[tokio::test]
async fn a_transfer_of_the_trainer_is_relayed_as_it_is() {
    let body = json!({"init_info": {"rank": 1}});
    for (dialect, paths) in [
        (
            Dialect::Vllm,
            vec![
                "/init_weight_transfer_engine",
                "/start_weight_update",
                "/update_weights",
                "/finish_weight_update",
            ],
        ),
        (
            Dialect::SGLang,
            vec![
                "/init_weights_update_group",
                "/update_weights_from_distributed",
                "/destroy_weights_update_group",
            ],
        ),
    ] {
        let stub = Stub::default();
        for path in &paths {
            stub.on(path, 200, json!({"success": true}));
        }
        let control = stub.control(dialect).await;
        for step in
            [TransferStep::Init, TransferStep::Start, TransferStep::Update, TransferStep::Finish]
        {
            control.transfer(step, &body).await.unwrap();
        }
        let expected: Vec<_> = paths.iter().map(|path| format!("POST {path} {body}")).collect();
        assert_eq!(stub.asked(), expected);
        // Then only the version is told.
        control.update(&Source::External, V).await.unwrap();
        let told = stub.asked();
        assert!(told.len() == 1 && told[0].starts_with("POST /update_weight_version"), "{told:?}");
    }
}

#[tokio::test]
async fn whatever_is_no_success_is_a_fault_that_names_the_call() {
    let cases = [
        ("EngineRefused", Answer::Reply(500, "boom".to_owned())),
        ("EngineRefused", Answer::Reply(400, "pending requests".to_owned())),
        ("EngineRefused", Answer::Reply(302, String::new())),
        ("EngineRefused", Answer::Reply(200, r#"{"success": false, "message": "x"}"#.to_owned())),
        ("EngineRefused", Answer::Reply(200, r#"{"error": {"message": "x"}}"#.to_owned())),
        ("EngineRefused", Answer::Reply(200, r#"{"object": "error"}"#.to_owned())),
        ("EngineRefused", Answer::Reply(200, r#"{"success": tr"#.to_owned())),
        ("EngineHasNoEndpoint", Answer::Reply(404, String::new())),
        ("EngineUnauthorized", Answer::Reply(401, String::new())),
        ("EngineReplyTooLarge", Answer::Reply(200, " ".repeat(5 << 20))),
        ("EngineTimeout", Answer::Hang),
        ("EngineDisconnected", Answer::Break),
    ];
    for (reason, answer) in cases {
        let stub = Stub::default();
        stub.set("/update_weights_from_disk", answer);
        let url = format!("http://{}", stub.start().await);
        let limit = if reason == "EngineTimeout" { Duration::from_millis(50) } else { LIMIT };
        let control = Control::new(&url, Dialect::SGLang, None, limits(limit)).unwrap();
        let fault = control.update(&disk(), V).await.unwrap_err();
        let got = (fault.kind, fault.reason.as_ref());
        assert_eq!(got, (FaultKind::Infrastructure, reason), "{fault}");
        assert!(fault.message.contains("/update_weights_from_disk"), "{fault}");
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let control = Control::new(&format!("http://{nobody}"), reload(), None, limits(LIMIT)).unwrap();
    assert_eq!(control.health().await.unwrap_err().reason, "EngineUnreachable");
}

#[tokio::test]
async fn another_version_than_the_one_given_is_a_fault() {
    let stub = Stub::default();
    let control = stub.control(Dialect::Vllm).await;
    for (said, ok) in [(json!("8"), true), (json!(8), true), (json!("7"), false), (json!(9), false)]
    {
        stub.on("/weight_info", 200, json!({"weight_version": said}));
        let verified = control.verify(V).await;
        assert_eq!(verified.is_ok(), ok, "{said}");
        if let Err(fault) = verified {
            assert_eq!(fault.reason, "EngineVersionMismatch");
        }
    }
}

#[tokio::test]
async fn engines_behind_a_unix_socket_or_a_key_are_reached() {
    let stub = vllm();
    stub.on("/health", 200, "");
    let dir = tempfile::TempDir::new().unwrap();
    let socket = dir.path().join("engine.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let router = stub.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let url = format!("unix:{}", socket.display());
    let control = Control::new(&url, Dialect::Vllm, Some("engine-key"), limits(LIMIT)).unwrap();
    control.health().await.unwrap();
    assert_eq!(control.version().await.unwrap(), Some(V));
    assert!(!format!("{control:?}").contains("engine-key"));
    stub.on("/health", 500, "it was called with engine-key");
    let fault = control.health().await.unwrap_err();
    assert!(!fault.message.contains("engine-key") && fault.message.contains(&url), "{fault}");
    for wrong in ["", "engine", "unix:relative", "ftp://engine"] {
        let fault = Control::new(wrong, Dialect::Vllm, None, limits(LIMIT)).unwrap_err();
        assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "InvalidEngineUrl"));
    }
}

/// A watched stub.
struct Watched {
    stub: Stub,
    watch: Watch,
    events: mpsc::Receiver<WorkerEvent>,
}

impl Watched {
    async fn start(dialect: Dialect, stub: Stub) -> Self {
        let config = WatchConfig {
            interval: Duration::from_millis(2),
            load_every: 1,
            fail_after: 2,
            recover_after: 2,
        };
        let control = stub.control(dialect).await;
        let (events_tx, events) = mpsc::channel(64);
        let worker = WorkerId::new("w0").unwrap();
        Self { stub, watch: Watch::start(worker, 1, control, config, events_tx), events }
    }

    /// The next change that is no load.
    async fn next(&mut self) -> Change {
        loop {
            let event = tokio::time::timeout(LIMIT, self.events.recv()).await.unwrap().unwrap();
            assert_eq!((event.worker.as_str(), event.watch), ("w0", 1));
            if !matches!(event.change, Change::Load(_)) {
                return event.change;
            }
        }
    }

    async fn unhealthy(&mut self) {
        let change = self.next().await;
        assert!(matches!(change, Change::Unhealthy { .. }), "{change:?}");
    }

    /// Waits for so many further checks, in which nothing but loads may be reported.
    async fn quiet_for(&mut self, checks: usize) {
        self.stub.asked();
        let mut seen = 0;
        let checked = async {
            while seen < checks {
                while let Ok(event) = self.events.try_recv() {
                    assert!(matches!(event.change, Change::Load(_)), "{event:?}");
                }
                seen += self.stub.asked().iter().filter(|asked| *asked == "GET /health").count();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, checked).await.unwrap();
    }
}

fn fresh(version: Option<u64>) -> Change {
    Change::Fresh { version: version.map(Version) }
}

fn metrics(started: f64) -> String {
    format!("vllm:num_requests_running 3\nprocess_start_time_seconds {started}\n")
}

fn saying(version: impl Into<Value>) -> Value {
    json!({"weight_version": version.into()})
}

#[tokio::test]
async fn health_changes_are_reported_once_and_loads_as_they_are_read() {
    let stub = Stub::default();
    stub.on("/health", 200, "").on("/weight_info", 200, saying("3")).on(
        "/metrics",
        200,
        metrics(1e9),
    );
    let mut watched = Watched::start(Dialect::Vllm, stub.clone()).await;
    assert_eq!(watched.next().await, fresh(Some(3)));
    assert_eq!(watched.next().await, Change::Healthy);
    let loaded = async {
        loop {
            if let Change::Load(load) = watched.events.recv().await.unwrap().change {
                return load;
            }
        }
    };
    let load = tokio::time::timeout(LIMIT, loaded).await.unwrap();
    assert_eq!((load.running, load.started), (3, Some(1e9)));
    watched.quiet_for(5).await;
    stub.on("/health", 503, "loading");
    watched.unhealthy().await;
    stub.on("/health", 200, "");
    // The same process with the same weights: no restart.
    assert_eq!(watched.next().await, Change::Healthy);
    watched.quiet_for(5).await;
}

#[tokio::test]
async fn a_new_start_time_is_a_restart_though_no_check_failed() {
    let stub = Stub::default();
    stub.on("/health", 200, "").on("/weight_info", 200, saying("3")).on(
        "/metrics",
        200,
        metrics(1e9),
    );
    let mut watched = Watched::start(Dialect::Vllm, stub.clone()).await;
    assert_eq!(watched.next().await, fresh(Some(3)));
    assert_eq!(watched.next().await, Change::Healthy);
    stub.on("/metrics", 200, metrics(1e9 + 0.4));
    watched.quiet_for(5).await;
    stub.on("/metrics", 200, metrics(1e9 + 60.0));
    assert_eq!(watched.next().await, fresh(Some(3)));
    watched.quiet_for(5).await;
}

#[tokio::test]
async fn our_own_update_is_no_restart_and_anything_else_is() {
    let stub = Stub::default();
    stub.on("/health", 200, "").on("/weight_info", 200, saying("3"));
    let mut watched = Watched::start(Dialect::Vllm, stub.clone()).await;
    assert_eq!(watched.next().await, fresh(Some(3)));
    assert_eq!(watched.next().await, Change::Healthy);
    watched.watch.updating(Version(4));
    watched.quiet_for(3).await;
    stub.on("/weight_info", 200, saying(4));
    watched.quiet_for(3).await;
    watched.watch.holds(Some(Version(4)));
    watched.quiet_for(3).await;
    // Back to what it was launched with: the process is another, or somebody else loaded it.
    stub.on("/weight_info", 200, saying("default"));
    assert_eq!(watched.next().await, fresh(None));
    watched.quiet_for(3).await;
}

#[tokio::test]
async fn one_that_cannot_say_what_it_holds_is_fresh_after_every_outage() {
    let stub = Stub::default();
    stub.on("/health", 200, "");
    let mut watched = Watched::start(reload(), stub.clone()).await;
    assert_eq!(watched.next().await, fresh(None));
    assert_eq!(watched.next().await, Change::Healthy);
    watched.watch.holds(Some(Version(4)));
    watched.quiet_for(3).await;
    stub.on("/health", 500, "");
    watched.unhealthy().await;
    stub.on("/health", 200, "");
    assert_eq!(watched.next().await, fresh(None));
    assert_eq!(watched.next().await, Change::Healthy);
    // With a start time it can prove that it is the same.
    stub.on("/metrics", 200, metrics(1e9));
    watched.quiet_for(3).await;
    stub.on("/health", 500, "");
    watched.unhealthy().await;
    stub.on("/health", 200, "");
    assert_eq!(watched.next().await, Change::Healthy);
    watched.quiet_for(3).await;
}
