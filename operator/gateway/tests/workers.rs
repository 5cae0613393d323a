//! The set of workers while the gateway runs: real gateways on a Unix socket before
//! engine-sims, which are simulators.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use rollwright_crds::job::RolloutJob;
use rollwright_engine_sim::{Config, EngineSim, Latency};
use rollwright_gateway::{AuthConfig, Gateway, GatewayConfig, GatewayError, Listen, Listeners};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Never reached by a test that passes.
const LIMIT: Duration = Duration::from_mins(1);

/// A gateway that starts without engines.
struct Driven {
    client: reqwest::Client,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), GatewayError>>,
}

fn config(dir: &Path, engine: &str) -> GatewayConfig {
    let manifest: RolloutJob = serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "RolloutJob", "metadata": {"name": "job"},
        "spec": {
            "model": {"path": "engine-sim"}, "engine": {"type": engine, "image": "engine-sim"},
            "allocation": {"fixed": {"groups": [{"pool": "p", "degree": 1, "workers": 1}]}},
            "rollout": {"groupSize": 1, "batchGroups": 1},
        },
    }))
    .unwrap();
    let mut config = GatewayConfig::from_manifests(&manifest, &[], &[], dir).unwrap();
    config.limits.threads = 1;
    config.watch.interval = Duration::from_millis(20);
    config.workers_api = true;
    config
}

impl Driven {
    async fn start(dir: &Path) -> Result<Self, GatewayError> {
        Self::with(dir, config(dir, "vLLM")).await
    }

    async fn with(dir: &Path, config: GatewayConfig) -> Result<Self, GatewayError> {
        let socket = dir.join("gateway.sock");
        let listeners = Listeners {
            callers: Listen::Unix(socket.clone()),
            auth: AuthConfig::default(),
            metrics: None,
        };
        let gateway = Gateway::start(config, listeners).await?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn(gateway.serve(stop.clone()));
        let client = reqwest::Client::builder().unix_socket(socket).timeout(LIMIT);
        Ok(Self { client: client.build().unwrap(), stop, serving })
    }

    async fn stop(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }

    async fn put(&self, workers: Value) -> (u16, Value) {
        let reply = self.client.put("http://gateway/rollout/v1/workers");
        let reply = reply.json(&json!({ "workers": workers })).send().await.unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap())
    }

    /// A set that is taken.
    async fn set(&self, workers: Value) -> Value {
        let (status, answer) = self.put(workers).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// (name, state, requests in flight) of every worker.
    async fn states(&self) -> Vec<(String, String, u64)> {
        let reply = self.client.get("http://gateway/rollout/v1/workers").send().await.unwrap();
        let states: Value = reply.json().await.unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = states["workers"].as_array().unwrap().iter();
        all.map(|worker| {
            (text(&worker["name"]), text(&worker["state"]), worker["in_flight"].as_u64().unwrap())
        })
        .collect()
    }

    async fn until_states(&self, wanted: &[(&str, &str)]) {
        until(&format!("workers are {wanted:?}"), async || {
            let states = self.states().await;
            let states: Vec<_> = states.iter().map(|(n, s, _)| (n.as_str(), s.as_str())).collect();
            states == wanted
        })
        .await;
    }

    /// A streamed reply of so many tokens that no trajectory owns, once it has begun.
    async fn stream(&self, tokens: usize) -> JoinHandle<String> {
        let body = json!({"model": "engine-sim", "prompt": "go on", "max_tokens": tokens,
            "stream": true, "ignore_eos": true});
        let reply = self.client.post("http://gateway/v1/completions").json(&body).send();
        let mut pieces = reply.await.unwrap().error_for_status().unwrap().bytes_stream();
        let mut text = String::from_utf8(pieces.next().await.unwrap().unwrap().to_vec()).unwrap();
        tokio::spawn(async move {
            while let Some(piece) = pieces.next().await {
                text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
            }
            text
        })
    }
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn engine() -> EngineSim {
    let latency = Latency { step: Duration::from_millis(2), ..Latency::default() };
    EngineSim::start(Config { latency, mean_tokens: 0, ..Config::default() }).await.unwrap()
}

fn worker(name: &str, engine: &EngineSim, slots: u32) -> Value {
    json!({"name": name, "url": engine.url(), "class": "h20", "slots": slots})
}

fn drained(worker: &Value) -> Value {
    let mut worker = worker.clone();
    worker["drain"] = json!(true);
    worker
}

/// Whole, to the last token.
fn assert_whole(reply: &str, tokens: usize) {
    let events = reply.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("cut: {reply}"));
    let events = events.split_terminator("\n\n").map(|event| {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        event["choices"][0]["text"].as_str().unwrap().len()
    });
    // Every token is a letter.
    assert_eq!(events.sum::<usize>(), tokens, "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_drain_and_go_and_no_turn_is_lost() {
    const TOKENS: usize = 600;
    let (dir, a, b) = (tempfile::tempdir().unwrap(), engine().await, engine().await);
    let gateway = Driven::start(dir.path()).await.unwrap();
    assert_eq!(gateway.states().await, []);
    let (wa, wb) = (worker("a", &a, 2), worker("b", &b, 2));
    let states = gateway.set(json!([wa, wb])).await;
    assert_eq!(states["workers"][0]["name"], "a");
    gateway.until_states(&[("a", "serving"), ("b", "serving")]).await;
    // Two on each.
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(gateway.stream(TOKENS).await);
    }
    assert_eq!((a.load().0, b.load().0), (2, 2));
    // In mid-stream; the same set again changes nothing.
    gateway.set(json!([drained(&wa), wb])).await;
    gateway.set(json!([drained(&wa), wb])).await;
    assert_eq!(gateway.states().await[0], ("a".to_owned(), "draining".to_owned(), 2));
    // Nothing more goes there: the next one waits for the other worker.
    let next = tokio::spawn({
        let body = json!({"model": "engine-sim", "prompt": "wait", "max_tokens": 3});
        gateway.client.post("http://gateway/v1/completions").json(&body).send()
    });
    // Left out while its streams still run.
    gateway.set(json!([wb])).await;
    assert!(gateway.states().await.iter().any(|(name, ..)| name == "a"), "it has left too early");
    for stream in streams {
        assert_whole(&stream.await.unwrap(), TOKENS);
    }
    assert_eq!(next.await.unwrap().unwrap().status(), 200);
    gateway.until_states(&[("b", "serving")]).await;
    assert_eq!((a.requests().len(), b.requests().len()), (2, 3));
    assert_eq!((a.violations(), b.violations()), (vec![], vec![]));
    gateway.stop().await;

    // The next process has its workers again, without being told.
    let gateway = Driven::start(dir.path()).await.unwrap();
    gateway.until_states(&[("b", "serving")]).await;
    assert_whole(&gateway.stream(5).await.await.unwrap(), 5);
    // None at all is a set too, and another process keeps to that.
    gateway.set(json!([])).await;
    gateway.until_states(&[]).await;
    gateway.stop().await;
    let gateway = Driven::start(dir.path()).await.unwrap();
    assert_eq!(gateway.states().await, []);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_changed_in_place_or_replaced() {
    let (dir, a, b) = (tempfile::tempdir().unwrap(), engine().await, engine().await);
    let gateway = Driven::start(dir.path()).await.unwrap();
    gateway.set(json!([worker("w", &a, 1)])).await;
    gateway.until_states(&[("w", "serving")]).await;
    let first = gateway.stream(2000).await;
    // One slot more: the next stream begins beside the first.
    gateway.set(json!([worker("w", &a, 2)])).await;
    let second = gateway.stream(300).await;
    assert_eq!(a.load().0, 2);
    // Drained, and then not.
    gateway.set(json!([drained(&worker("w", &a, 2))])).await;
    assert_whole(&second.await.unwrap(), 300);
    assert_eq!(gateway.states().await, [("w".to_owned(), "draining".to_owned(), 1)]);
    gateway.set(json!([worker("w", &a, 2)])).await;
    assert_whole(&gateway.stream(3).await.await.unwrap(), 3);
    // Another engine under its name: the old one first ends what it has.
    gateway.set(json!([worker("w", &b, 2)])).await;
    assert_whole(&first.await.unwrap(), 2000);
    gateway.until_states(&[("w", "serving")]).await;
    assert_whole(&gateway.stream(3).await.await.unwrap(), 3);
    assert_eq!((a.requests().len(), b.requests().len()), (3, 1));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_not_answered_joins_when_it_does() {
    let (dir, a) = (tempfile::tempdir().unwrap(), engine().await);
    let gateway = Driven::start(dir.path()).await.unwrap();
    let port = a.addr().port();
    let of_a = worker("a", &a, 4);
    drop(a);
    gateway.set(json!([of_a, drained(&worker("d", &engine().await, 1))])).await;
    let state = gateway.states().await;
    assert_eq!(state[0], ("a".to_owned(), "joining".to_owned(), 0));
    let config = Config { port, ..Config::default() };
    let Ok(_a) = EngineSim::start(config).await else { return };
    until("it serves", async || gateway.states().await[0].1 == "serving").await;
    gateway.stop().await;
}

#[tokio::test]
async fn what_was_kept_and_cannot_be_used_keeps_no_gateway_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("workers.json");
    let engine = engine().await;
    // A worker of another kind of engine is left out, and the rest serves.
    let prefill =
        json!({"name": "p", "url": "http://x", "class": "c", "role": "prefill", "slots": 1});
    let set = json!({"workers": [prefill, worker("a", &engine, 1)]});
    std::fs::write(&kept, set.to_string()).unwrap();
    let gateway = Driven::with(dir.path(), config(dir.path(), "OpenAI")).await.unwrap();
    gateway.until_states(&[("a", "serving")]).await;
    gateway.stop().await;
    // Damaged, or of a version that knows more; each is replaced by the next set.
    for unreadable in ["{", r#"{"workers": [], "epoch": 1}"#] {
        std::fs::write(&kept, unreadable).unwrap();
        let gateway = Driven::start(dir.path()).await.unwrap();
        assert_eq!(gateway.states().await, [], "{unreadable}");
        gateway.set(json!([worker("a", &engine, 1)])).await;
        gateway.stop().await;
        let gateway = Driven::start(dir.path()).await.unwrap();
        gateway.until_states(&[("a", "serving")]).await;
        gateway.stop().await;
    }
}

#[tokio::test]
async fn what_cannot_be_a_worker_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Driven::with(dir.path(), config(dir.path(), "OpenAI")).await.unwrap();
    let of = |url: &str, role: &str| json!([{"name": "w", "url": url, "class": "c", "role": role, "slots": 1}]);
    for (set, wanted) in [
        (of("ftp://x", "mixed"), "neither http: nor unix:"),
        (of("http://x", "prefill"), "only vLLM and SGLang hand their KV over"),
    ] {
        let (status, refusal) = gateway.put(set).await;
        let message = refusal["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(wanted), "{status} {message}");
    }
    assert_eq!(gateway.states().await, []);
    assert!(!dir.path().join("workers.json").exists());
    gateway.stop().await;

    let fixed = GatewayConfig { workers_api: false, ..config(dir.path(), "vLLM") };
    let gateway = Driven::with(dir.path(), fixed).await.unwrap();
    let (status, refusal) = gateway.put(json!([])).await;
    assert_eq!((status, &refusal["error"]["code"]), (409, &json!("WorkersFixed")));
    gateway.stop().await;
}
