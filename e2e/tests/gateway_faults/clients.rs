//! Clients that are slow, or have no engine to wait for.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_core::ids::{Class, WorkerId};
use rollwright_core::router::{Role, WorkerSpec};
use rollwright_e2e::gateway::{Gateway, KEY, LIMIT, Setup, chat, engines, ensure_rules_kept, slow};
use rollwright_e2e::wait;
use rollwright_engine_sim::{Capacity, Config, EngineSim, Latency, Outcome};
use rollwright_gateway::{AuthConfig, GatewayConfig, Listen, Listeners, WorkerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// A client that asks for a long stream, reads its first bytes, and then nothing more.
async fn reads_no_more(gateway: &Gateway, path: &str, body: &Value) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(gateway.address()?).await?;
    let mut body = body.clone();
    body["stream"] = json!(true);
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    ensure!(&start == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&start));
    Ok(stream)
}

/// Tokens of a reply that never ends within a test.
const LONG: usize = 1_000_000;

/// An engine that makes them faster than a client that does not read can take them.
fn steady() -> Config {
    let latency = Latency { step: Duration::from_millis(1), ..Latency::default() };
    let capacity = Capacity { context: LONG * 2, ..Capacity::default() };
    Config { latency, capacity, mean_tokens: 0, ..Config::default() }
}

/// Bytes that the kernel holds for a client of the gateway, as `/proc/net/tcp` tells.
fn unsent(gateway: &Gateway, client: &TcpStream) -> anyhow::Result<u64> {
    let (from, to) = (gateway.address()?.port(), client.local_addr()?.port());
    let ports = (format!(":{from:04X}"), format!(":{to:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let queue = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let ours = fields.next()?.ends_with(&ports.0) && fields.next()?.ends_with(&ports.1);
        ours.then(|| fields.nth(1)?.split(':').next())?
    });
    Ok(u64::from_str_radix(queue.context("no such connection")?, 16)?)
}

/// Waits until the gateway can send a client nothing more, while its engine goes on.
async fn until_stuck(
    gateway: &Gateway,
    client: &TcpStream,
    engine: &EngineSim,
) -> anyhow::Result<()> {
    let (mut last, mut since) = (0, 0);
    wait::until("the reply is stuck", LIMIT, async || {
        ensure!(engine.load().0 == 1, "the reply has ended");
        let made = engine.requests().last().map_or(0, |request| request.tokens);
        let held = unsent(gateway, client)?;
        if held != last {
            (last, since) = (held, made);
        }
        Ok(held > 0 && made > since + 300)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_reached_by_an_abort() -> anyhow::Result<()> {
    let engines = engines(1, &steady()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let open = gateway.open(&json!({})).await?;
    let path = format!("/t/{}/v1/chat/completions", open[0]);
    let unread = reads_no_more(&gateway, &path, &chat("hello", LONG)).await?;
    until_stuck(&gateway, &unread, &engines[0]).await?;
    let (status, reply) = gateway.tell(&open[0], "abort", &json!({})).await?;
    ensure!(status == 200, "{reply}");
    gateway.until_empty().await?;
    wait::until("the engine is idle", LIMIT, async || Ok(engines[0].load() == (0, 0))).await?;
    drop(unread);
    gateway.stop().await
}

async fn holds_up_no_update(recorded: bool) -> anyhow::Result<()> {
    let engines = engines(1, &steady()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let path = if recorded {
        let open = gateway.open(&json!({})).await?;
        format!("/t/{}/v1/chat/completions", open[0])
    } else {
        "/v1/chat/completions".to_owned()
    };
    let unread = reads_no_more(&gateway, &path, &chat("hello", LONG)).await?;
    until_stuck(&gateway, &unread, &engines[0]).await?;
    gateway.publish(1).await.context("the commit waits for a client that does not read")?;
    ensure_rules_kept(&engines)?;
    drop(unread);
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_stream_that_is_not_read_holds_up_no_update() -> anyhow::Result<()> {
    holds_up_no_update(true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayed_stream_that_is_not_read_holds_up_no_update() -> anyhow::Result<()> {
    holds_up_no_update(false).await
}

/// In this process, for limits that the command line does not have.
struct Here {
    address: std::net::SocketAddr,
    stop: tokio_util::sync::CancellationToken,
    serving: tokio::task::JoinHandle<Result<(), rollwright_gateway::GatewayError>>,
    _dir: tempfile::TempDir,
}

impl Here {
    async fn start(engine: &str, change: impl FnOnce(&mut GatewayConfig)) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let job = serde_json::from_value(Setup::default().job())?;
        let mut config = GatewayConfig::from_manifests(&job, &[], &[], dir.path())?;
        config.watch.interval = Duration::from_millis(50);
        let spec =
            WorkerSpec { class: Class::new("h20")?, role: Role::Mixed, slots: 64, version: None };
        let worker = WorkerId::new("engine-0")?;
        let url = engine.to_owned();
        config.workers.push(WorkerConfig { worker, url, spec, bootstrap_port: None });
        change(&mut config);
        let keys = dir.path().join("keys");
        std::fs::write(&keys, format!("job:{KEY}\n"))?;
        let callers = Listen::Tcp("127.0.0.1:0".parse()?);
        let auth = AuthConfig::api_keys(keys);
        let listeners = Listeners { callers, auth, metrics: None };
        let gateway = rollwright_gateway::Gateway::start(config, listeners).await?;
        let Listen::Tcp(address) = gateway.address().clone() else { anyhow::bail!("no address") };
        let stop = tokio_util::sync::CancellationToken::new();
        let serving = tokio::spawn(gateway.serve(stop.clone()));
        Ok(Self { address, stop, serving, _dir: dir })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        Ok(tokio::time::timeout(LIMIT, self.serving).await???)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_engine_a_request_is_refused_at_last_with_503() -> anyhow::Result<()> {
    let engine = EngineSim::start(slow()).await?;
    let url = engine.url();
    drop(engine);
    let gateway = Here::start(&url, |config| {
        config.rollout.router.max_wait = Duration::from_millis(200);
    })
    .await?;
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    for stream in [false, true] {
        let mut body = chat("hello", 4);
        body["stream"] = json!(stream);
        let url = format!("http://{}/v1/chat/completions", gateway.address);
        let reply = client.post(url).bearer_auth(KEY).json(&body).send().await?;
        ensure!(reply.status() == 503, "{}", reply.status());
        let error: Value = reply.json().await?;
        ensure!(error["error"]["type"] == "infrastructure", "{error}");
        ensure!(error["error"]["code"] == "NoWorker", "{error}");
    }
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_slowly_takes_no_slot_and_is_cut() -> anyhow::Result<()> {
    let engine = EngineSim::start(slow()).await?;
    let gateway = Here::start(&engine.url(), |config| {
        config.limits.body_timeout = Duration::from_millis(200);
    })
    .await?;
    // An id in a header, and one that is looked for in the body.
    for id in ["X-Session-ID: s\r\n", ""] {
        let mut stream = TcpStream::connect(gateway.address).await?;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\
             {id}Content-Length: 1000\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut reply = Vec::new();
        tokio::time::timeout(LIMIT, stream.read_to_end(&mut reply)).await??;
        let reply = String::from_utf8_lossy(&reply);
        ensure!(reply.starts_with("HTTP/1.1 408") || reply.starts_with("HTTP/1.1 504"), "{reply}");
    }
    ensure!(engine.requests().iter().all(|made| made.outcome != Outcome::Running));
    wait::until("the engine is idle", LIMIT, async || Ok(engine.load() == (0, 0))).await?;
    gateway.stop().await
}
