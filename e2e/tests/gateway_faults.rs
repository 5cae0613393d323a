//! Faults around a real gateway process: engines that die and come back, the gateway killed
//! and started twice, clients that are slow. Engines and the reward service are simulators.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_core::ids::{Class, WorkerId};
use rollwright_core::router::{Role, WorkerSpec};
use rollwright_e2e::client::{shell, until_output};
use rollwright_e2e::gateway::{Gateway, Judge, KEY, LIMIT, Record, Setup, chat, in_state};
use rollwright_e2e::stack::Stack;
use rollwright_e2e::wait;
use rollwright_engine_sim::{Capacity, Config, EngineSim, Latency, Outcome};
use rollwright_gateway::{AuthConfig, GatewayConfig, Listen, Listeners, WorkerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// Replies end at `max_tokens` only, a token every few milliseconds.
fn slow() -> Config {
    let latency = Latency { step: Duration::from_millis(5), ..Latency::default() };
    Config { latency, mean_tokens: 0, ..Config::default() }
}

async fn engines(count: usize, config: &Config) -> anyhow::Result<Vec<EngineSim>> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(EngineSim::start(config.clone()).await?);
    }
    Ok(engines)
}

fn ensure_rules_kept<'a>(engines: impl IntoIterator<Item = &'a EngineSim>) -> anyhow::Result<()> {
    for engine in engines {
        let violations = engine.violations();
        ensure!(violations.is_empty(), "{violations:?}");
    }
    Ok(())
}

/// A trajectory's whole turn, not streamed.
async fn turn(gateway: &Gateway, trajectory: &str, body: &Value) -> anyhow::Result<String> {
    let path = format!("/t/{trajectory}/v1/chat/completions");
    let reply = gateway.expect(200, &path, body).await?;
    let text = reply["choices"][0]["message"]["content"].as_str().context("no text")?;
    Ok(text.to_owned())
}

/// A group of one, rolled out to its reward; its id.
async fn rolled_out(gateway: &Gateway, id: &str) -> anyhow::Result<()> {
    let open = gateway.open(&json!({"id": id, "rollouts": 1})).await?;
    turn(gateway, &open[0], &chat(id, 8)).await?;
    gateway.complete(&open[0], 1.0).await
}

/// Prompt and reply as an engine alone makes them.
async fn alone(body: &Value) -> anyhow::Result<Vec<u32>> {
    let engine = EngineSim::start(Config { mean_tokens: 0, ..Config::default() }).await?;
    let mut body = body.clone();
    body["return_token_ids"] = json!(true);
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{}/v1/chat/completions", engine.url());
    let reply: Value = client.post(url).json(&body).send().await?.json().await?;
    engine.stop().await;
    let ids = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let all = [ids(&reply["prompt_token_ids"]), ids(&reply["choices"][0]["token_ids"])].concat();
    Ok(all.iter().filter_map(Value::as_u64).map(|id| id as u32).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_engine_is_killed_goes_on_token_for_token() -> anyhow::Result<()> {
    const TOKENS: usize = 1000;
    let mut engines = engines(2, &slow()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let body = chat("hello", TOKENS);
    let expected = alone(&body).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &body).await?;
    stream.until_length(20).await?;
    let busy = engines.iter().position(|engine| engine.load().0 == 1).context("nobody")?;
    engines[busy].kill();
    let text = stream.end().await.done()?;
    ensure!(text.len() == TOKENS, "{} of {TOKENS}", text.len());
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.ids == expected, "other tokens than without the kill");
    ensure!(record.text() == text);
    gateway.acknowledge(&batch).await?;

    // A commit goes on without it, and it comes back with the weights of its start.
    gateway.publish(1).await?;
    let dead = engines.remove(busy);
    let again = EngineSim::start(Config { port: dead.addr().port(), ..slow() }).await?;
    ensure!(again.version() == 0);
    let mut asked = 0;
    wait::until("it takes requests again", LIMIT, async || {
        let (status, reply) = gateway.post("/v1/chat/completions", &chat("more", 4)).await?;
        ensure!(status == 200, "{reply}");
        asked += 1;
        Ok(!again.requests().is_empty())
    })
    .await?;
    gateway.until_ready().await?;
    for made in again.requests() {
        ensure!(made.versions == [1], "after {asked} requests: {made:?}");
    }
    ensure!(again.version() == 1);
    engines.push(again);
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_restarted_in_place_takes_no_turn_with_its_old_weights() -> anyhow::Result<()> {
    let engines = engines(2, &slow()).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    gateway.publish(1).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &chat("hello", 600)).await?;
    stream.until_length(20).await?;
    let busy = engines.iter().find(|engine| engine.load().0 == 1).context("nobody")?;
    let before = busy.requests().len();
    // So fast that no health check need have failed.
    busy.restart(0);
    let text = stream.end().await.done()?;
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.text() == text);
    ensure!(record.versions() == [1], "{:?}", record.versions());
    wait::until("it holds the current version", LIMIT, async || Ok(busy.version() == 1)).await?;
    for made in &busy.requests()[before..] {
        ensure!(!made.versions.contains(&0), "{made:?}");
    }
    gateway.until_ready().await?;
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

/// Waits until the gateway sends no more to any engine.
async fn until_gone(gateway: &Gateway) -> anyhow::Result<()> {
    wait::until("every engine is known to be gone", LIMIT, async || {
        let report = gateway.status().await?;
        let workers = report["workers"].as_array().context("no workers")?;
        Ok(workers.iter().all(|worker| worker["state"] == "unhealthy"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_while_every_engine_is_gone() -> anyhow::Result<()> {
    let engines = engines(2, &slow()).await?;
    let port = engines[1].addr().port();
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let open = gateway.open(&json!({"rollouts": 2})).await?;
    drop(engines);
    until_gone(&gateway).await?;
    let body = chat("hello", 40);
    let expected = alone(&body).await?;
    let path = |trajectory: &str| format!("/t/{trajectory}/v1/chat/completions");
    let calls: Vec<_> = open
        .iter()
        .map(|trajectory| tokio::spawn(gateway.request(&path(trajectory), &body).send()))
        .collect();
    wait::until("both wait", LIMIT, async || Ok(gateway.status().await?["pending"] == 2)).await?;
    let back = EngineSim::start(Config { port, ..slow() }).await?;
    for (call, trajectory) in calls.into_iter().zip(&open) {
        let reply = call.await??;
        ensure!(reply.status() == 200, "{}", reply.text().await?);
        gateway.complete(trajectory, 1.0).await?;
    }
    let batch = gateway.take(1).await?;
    for number in 0..2 {
        let record = Record::check(&batch["groups"][0]["trajectories"][number])?;
        ensure!(record.ids == expected, "other tokens than with engines that live");
    }
    ensure_rules_kept([&back])?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_whose_engines_are_all_gone_goes_on_when_one_is_back() -> anyhow::Result<()> {
    const TOKENS: usize = 400;
    let engines = engines(2, &slow()).await?;
    let port = engines[1].addr().port();
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let body = chat("hello", TOKENS);
    let expected = alone(&body).await?;
    let open = gateway.open(&json!({})).await?;
    let mut stream = gateway.stream(&open[0], &body).await?;
    stream.until_length(20).await?;
    drop(engines);
    let reading = tokio::spawn(stream.end());
    until_gone(&gateway).await?;
    let back = EngineSim::start(Config { port, ..slow() }).await?;
    let text = reading.await?.done()?;
    ensure!(text.len() == TOKENS, "{} of {TOKENS}", text.len());
    gateway.complete(&open[0], 1.0).await?;
    let batch = gateway.take(1).await?;
    let record = Record::check(&batch["groups"][0]["trajectories"][0])?;
    ensure!(record.ids == expected, "other tokens than with engines that live");
    ensure_rules_kept([&back])?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_gives_the_same_batch_until_it_is_acknowledged() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let rollout = json!({"batchGroups": 2, "stalenessBound": 2});
    let mut gateway = Gateway::start(Setup::before(&engines).rollout(rollout)).await?;
    for id in ["a", "b", "c", "d"] {
        rolled_out(&gateway, id).await?;
        gateway.until_state(&format!("{id}.0"), "settled").await?;
    }
    let content = |batch: &Value| (batch["id"].clone(), batch["groups"].clone());
    let first = gateway.take(2).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    let same = gateway.take(2).await?;
    ensure!(content(&same) == content(&first), "{same}\n{first}");
    gateway.kill().await?;
    gateway.start_again().await?;
    gateway.acknowledge(&first).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    // Acknowledged once and for all.
    gateway.acknowledge(&first).await?;
    let second = gateway.take(2).await?;
    ensure!(second["id"].as_u64() > first["id"].as_u64());
    let ids = |batch: &Value| -> Vec<Value> {
        let groups = batch["groups"].as_array().into_iter().flatten();
        groups.map(|group| group["id"].clone()).collect()
    };
    ensure!(ids(&first) == ["a", "b"] && ids(&second) == ["c", "d"], "{second}");
    gateway.acknowledge(&second).await?;
    let take = json!({"groups": 1, "wait": 0});
    gateway.expect(204, "/rollout/v1/batches/take", &take).await?;
    // A version number survives as well, and with it what engines must hold.
    gateway.publish(1).await?;
    gateway.kill().await?;
    gateway.start_again().await?;
    gateway.until_ready().await?;
    ensure!(gateway.status().await?["version"] == 1);
    ensure_rules_kept(&engines)?;
    gateway.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_keeps_what_was_scored_and_replaces_the_rest() -> anyhow::Result<()> {
    let (stack, judge) = (Stack::start("gw-kill").await?, Judge::start().await?);
    let mut client = stack.client().await?;
    let engines = engines(1, &slow()).await?;
    let setup = Setup {
        reward: Some(judge.url.clone()),
        queue: Some(stack.socket()),
        ..Setup::before(&engines).rollout(json!({"groupSize": 3}))
    };
    let mut gateway = Gateway::start(setup).await?;
    let body = json!({"id": "g", "payload": {"question": 7}});
    let open = gateway.open(&body).await?;
    let [scored, scoring, running] = &open[..] else { anyhow::bail!("{open:?}") };
    let kept = turn(&gateway, scored, &chat("one", 8)).await?;
    gateway.complete(scored, 0.25).await?;
    gateway.until_state(scored, "scored").await?;
    turn(&gateway, scoring, &chat("two", 8)).await?;
    let (status, reply) = gateway.tell(scoring, "complete", &json!({})).await?;
    ensure!(status == 202, "{reply}");
    wait::until("the reward is asked for", LIMIT, async || Ok(judge.begun() == 1)).await?;
    let mut stream = gateway.stream(running, &chat("three", 20_000)).await?;
    stream.until_length(20).await?;
    client.open(running, "box").await?;
    let mut action = client.submit(shell("a", running, "echo running; sleep 1000")).await?;
    until_output(&mut action, "running").await?;

    gateway.kill().await?;
    stream.end().await.failed()?;
    wait::until("the engine is idle", LIMIT, async || Ok(engines[0].load() == (0, 0))).await?;
    gateway.start_again().await?;
    let group = gateway.group("g").await?;
    ensure!(group["state"] == "open" && group["needed"] == 3, "{group}");
    ensure!(in_state(&group, "scored") == [scored.clone()], "{group}");
    ensure!(group["trajectories"][0]["reward"] == 0.25, "{group}");
    // Whoever drove the lost ones learns it.
    let lost = in_state(&group, "aborted");
    ensure!(lost == open[1..], "{group}");
    let aborted = gateway.until_state(running, "aborted").await?;
    ensure!(aborted["fault"]["type"] == "infrastructure", "{aborted}");
    let path = format!("/t/{running}/v1/chat/completions");
    let (status, refused) = gateway.post(&path, &chat("three", 8)).await?;
    ensure!((400..500).contains(&status), "{status}: {refused}");
    ensure!(refused["error"]["code"] == "Aborted", "{status}: {refused}");
    // Their sandboxes are gone, and the new ones are named to whoever opens it again.
    client.wait_until_empty().await?;
    let again = gateway.expect(200, "/rollout/v1/groups", &body).await?;
    let replacements = in_state(&again, "running");
    ensure!(replacements.len() == 2, "{again}");
    ensure!(replacements.iter().all(|id| !open.contains(id)), "{replacements:?}");
    judge.answer(0.5);
    for trajectory in &replacements {
        turn(&gateway, trajectory, &chat("again", 8)).await?;
        let (status, reply) = gateway.tell(trajectory, "complete", &json!({})).await?;
        ensure!(status == 202, "{reply}");
    }
    let batch = gateway.take(1).await?;
    let group = &batch["groups"][0];
    ensure!(group["payload"] == body["payload"], "{group}");
    let records = group["trajectories"].as_array().context("no trajectories")?;
    let got: Vec<(&str, f64)> = records
        .iter()
        .filter_map(|record| Some((record["id"].as_str()?, record["reward"].as_f64()?)))
        .collect();
    let mut expected = vec![(scored.as_str(), 0.25)];
    expected.extend(replacements.iter().map(|id| (id.as_str(), 0.5)));
    ensure!(got == expected, "{got:?}");
    ensure!(Record::check(&records[0])?.text() == kept);
    gateway.acknowledge(&batch).await?;
    let take = json!({"groups": 1, "wait": 0});
    gateway.expect(204, "/rollout/v1/batches/take", &take).await?;
    gateway.until_empty().await?;
    gateway.stop().await?;
    stack.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_one_state_directory_ends_with_a_sentence() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    let mut second = gateway.command("second.log")?.spawn()?;
    let status = tokio::time::timeout(LIMIT, second.wait()).await??;
    let log = gateway.log("second.log");
    ensure!(!status.success(), "{log}");
    ensure!(log.contains("state") && log.contains("another"), "{log}");
    ensure!(!log.contains("panicked"), "{log}");
    // The first is none the worse.
    rolled_out(&gateway, "g").await?;
    gateway.take(1).await?;
    gateway.stop().await
}

/// Rules of time rest on the monotonic clock; only event ids begin with the wall clock, so
/// that they grow from one start to the next. A clock that was set back between must not
/// hide events from a client that comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_id_of_a_clock_that_was_set_back_is_answered_with_a_gap() -> anyhow::Result<()> {
    let engines = engines(1, &Config { mean_tokens: 0, ..Config::default() }).await?;
    let gateway = Gateway::start(Setup::before(&engines)).await?;
    rolled_out(&gateway, "g").await?;
    let mut stream = TcpStream::connect(gateway.address()?).await?;
    let head = format!(
        "GET /rollout/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\
         Last-Event-ID: {}\r\n\r\n",
        u64::MAX - 1
    );
    stream.write_all(head.as_bytes()).await?;
    let mut read = Vec::new();
    wait::until("a gap", LIMIT, async || {
        ensure!(stream.read_buf(&mut read).await? > 0, "it was closed");
        Ok(String::from_utf8_lossy(&read).contains("event: gap"))
    })
    .await?;
    drop(stream);
    gateway.stop().await
}

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
