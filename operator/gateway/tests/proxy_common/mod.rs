//! A gateway on a loopback port before simulated engines.

// Each program of tests uses a part of it.
#![allow(dead_code)]

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use rollwright_core::ids::{Class, WorkerId};
use rollwright_core::router::{Role, WorkerSpec};
use rollwright_core::version::Version;
use rollwright_crds::job::RolloutJob;
use rollwright_engine_sim::{Config, EngineSim};
use rollwright_gateway::{AuthConfig, Gateway, GatewayConfig, Listen, Listeners, WorkerConfig};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Never reached by a test that passes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The job's key.
pub(crate) const KEY: &str = "0123456789abcdef-key";

/// A running gateway.
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) client: reqwest::Client,
    pub(crate) engines: Vec<EngineSim>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<Result<(), rollwright_gateway::GatewayError>>,
    _dir: tempfile::TempDir,
}

/// Engines that are all alike.
pub(crate) async fn engines(count: usize, config: &Config) -> Vec<EngineSim> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(EngineSim::start(config.clone()).await.unwrap());
    }
    engines
}

impl Job {
    /// Before `engines`, with settings changed by `change`.
    pub(crate) async fn start(
        engines: Vec<EngineSim>,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Self {
        let urls = engines.iter().map(EngineSim::url).collect();
        let mut job = Self::before(urls, "vLLM", change).await;
        job.engines = engines;
        job
    }

    /// Before whatever is at `urls`.
    pub(crate) async fn before(
        urls: Vec<String>,
        dialect: &str,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manifest: RolloutJob = serde_json::from_value(json!({
            "apiVersion": "rollwright.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": "job"},
            "spec": {
                "model": {"path": "engine-sim"},
                "engine": {"type": dialect, "image": "engine-sim"},
                "allocation": {"fixed": {"groups": [{"pool": "p", "degree": 1, "workers": 1}]}},
                "rollout": {"groupSize": 1, "batchGroups": 1,
                    "scheduling": {"policy": "Fcfs"}, "placement": {"policy": "LeastLoaded"}},
            },
        }))
        .unwrap();
        let mut config = GatewayConfig::from_manifests(&manifest, &[], &[], dir.path()).unwrap();
        config.limits.threads = 2;
        config.watch.interval = Duration::from_millis(50);
        for (index, url) in urls.into_iter().enumerate() {
            let spec = WorkerSpec {
                class: Class::new("h20").unwrap(),
                role: Role::Mixed,
                slots: 64,
                version: Some(Version(0)),
            };
            let worker = WorkerId::new(&format!("w{index}")).unwrap();
            config.workers.push(WorkerConfig { worker, url, spec, bootstrap_port: None });
        }
        change(&mut config);
        let keys: PathBuf = dir.path().join("keys");
        std::fs::write(&keys, format!("job:{KEY}\nother:fedcba9876543210-key\n")).unwrap();
        let listeners = Listeners {
            callers: Listen::Tcp("127.0.0.1:0".parse().unwrap()),
            auth: AuthConfig::api_keys(keys),
            metrics: None,
        };
        let workers = config.workers.len();
        let gateway = Gateway::start(config, listeners).await.unwrap();
        let Listen::Tcp(address) = gateway.address().clone() else { unreachable!() };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(gateway.serve(stop.clone()));
        let job = Self {
            url: format!("http://{address}"),
            client: reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap(),
            engines: Vec::new(),
            stop,
            serving,
            _dir: dir,
        };
        until("all workers take requests", || async {
            let status = job.get("/rollout/v1/status").await.1;
            let ready = |worker: &&Value| worker["state"] == "ready";
            status["workers"]
                .as_array()
                .is_some_and(|all| all.iter().filter(ready).count() == workers)
        })
        .await;
        job
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let reply = self.client.get(format!("{}{path}", self.url)).bearer_auth(KEY).send().await;
        let reply = reply.unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap_or_default())
    }

    pub(crate) fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).bearer_auth(KEY).json(body)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let reply = self.request(path, body).send().await.unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap_or_default())
    }

    /// The only trajectory of a new group of one.
    pub(crate) async fn trajectory(&self) -> String {
        let (status, group) = self.post("/rollout/v1/groups", &json!({"rollouts": 1})).await;
        assert_eq!(status, 201, "{group}");
        group["trajectories"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Ends a trajectory, and takes the batch that it makes.
    pub(crate) async fn batch(&self, trajectory: &str) -> Value {
        let path = format!("/rollout/v1/trajectories/{trajectory}/complete");
        let (status, reply) = self.post(&path, &json!({"reward": 1.0})).await;
        assert_eq!(status, 202, "{reply}");
        let (status, batch) =
            self.post("/rollout/v1/batches/take", &json!({"groups": 1, "wait": 20})).await;
        assert_eq!(status, 200, "{batch}");
        batch["groups"][0]["trajectories"][0].clone()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.serving).await.unwrap().unwrap().unwrap();
    }
}

/// Waits for a condition.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "never: {what}");
}

/// A chat of one message.
pub(crate) fn chat(text: &str) -> Value {
    json!({"model": "engine-sim", "messages": [{"role": "user", "content": text}], "max_tokens": 24})
}

/// The data of all events.
pub(crate) fn events(body: &str) -> Vec<&str> {
    body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
}

/// The text of a streamed chat.
pub(crate) fn streamed_text(body: &str) -> String {
    let text = |data: &&str| {
        let event: Value = serde_json::from_str(data).ok()?;
        event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
    };
    events(body).iter().filter_map(text).collect()
}
