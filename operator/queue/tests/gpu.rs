//! Calls of reward services, with a simulated agent that has GPUs.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Client, TestQueue, http, until};
use pb::agent_message::Message as ToQueue;
use pb::queue_message::Message as FromQueue;
use rollwright_core::gpu::{Degree, Footprint, Limits, Service};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use rollwright_queue::fault::of_status;
use rollwright_queue::{GpuPool, GpuService, QueueConfig};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Bytes of an engine that is awake.
const DEVICE: u64 = 6;

fn config(dir: &Path, max_calls: usize) -> QueueConfig {
    let limits = Limits {
        launch: Duration::from_mins(1),
        wake: Duration::from_mins(1),
        evict: Duration::from_mins(1),
        stop: Duration::from_mins(1),
    };
    let footprint = Footprint { device: DEVICE, residue: 1, host: 1, expected: limits };
    let service = |name: &str| GpuService {
        core: Service {
            name: name.to_owned(),
            batch: 8,
            pinned: 0,
            degrees: BTreeMap::from([(Degree::new(1).unwrap(), footprint)]),
            limits,
            timeout: Duration::from_mins(5),
        },
        engine: pb::EngineSpec { image: "judge:1".to_owned(), ..pb::EngineSpec::default() },
        timeout: Duration::from_mins(5),
    };
    let services = vec![service("judge"), service("other")];
    let mut config = QueueConfig::new("test", dir.join("store"));
    config.gpu_pools = vec![GpuPool { name: "judges".to_owned(), services, max_calls }];
    config
}

/// What outlives a link: engines, calls, and what was told.
#[derive(Default)]
struct Node {
    engines: BTreeMap<u64, pb::LiveEngine>,
    calls: BTreeMap<String, (pb::StartCall, Option<pb::CallEnded>)>,
    starts: Vec<String>,
    launched: Vec<u64>,
    stopped: Vec<u64>,
    acknowledged: Vec<String>,
    /// Orders to end an engine are not obeyed.
    holds_stops: bool,
}

/// A link of a simulated agent with one GPU. A call is answered with its own path at once, but
/// for one of `/hold`, which waits for [`GpuAgent::release`].
struct GpuAgent {
    node: Arc<Mutex<Node>>,
    out: mpsc::UnboundedSender<pb::AgentBatch>,
    task: JoinHandle<()>,
}

fn send(out: &mpsc::UnboundedSender<pb::AgentBatch>, message: ToQueue) {
    let messages = vec![pb::AgentMessage { message: Some(message) }];
    // A link that has gone takes nothing.
    drop(out.send(pb::AgentBatch { messages }));
}

impl GpuAgent {
    async fn connect(dir: &Path, node: Arc<Mutex<Node>>) -> Self {
        let channel = common::channel(dir.join("agents.sock")).await;
        let (out, messages) = mpsc::unbounded_channel();
        let (gpu, again) = {
            let node = node.lock().unwrap();
            let calls = node.calls.values().map(|(start, ended)| pb::LiveCall {
                action_id: start.action_id.clone(),
                engine: start.engine,
                ended: ended.is_some(),
                left: start.timeout,
                job: start.job.clone(),
            });
            let gpu = pb::GpuNode {
                gpus: 1,
                memory_bytes: 10,
                host_bytes: 100,
                engines: node.engines.values().cloned().collect(),
                calls: calls.collect(),
                ..pb::GpuNode::default()
            };
            let ended = node.calls.values().filter_map(|(_, ended)| ended.clone());
            (gpu, ended.collect::<Vec<_>>())
        };
        let hello = pb::Hello {
            node: "gpus".to_owned(),
            pool: "judges".to_owned(),
            gpu: Some(gpu),
            ..pb::Hello::default()
        };
        send(&out, ToQueue::Hello(hello));
        for ended in again {
            send(&out, ToQueue::CallEnded(ended));
        }
        let stream = UnboundedReceiverStream::new(messages);
        let mut link = AgentLinkClient::new(channel).link(stream).await.unwrap().into_inner();
        let (state, back) = (Arc::clone(&node), out.clone());
        let task = tokio::spawn(async move {
            let mut welcomed = false;
            let mut heartbeat = tokio::time::interval(Duration::from_millis(500));
            loop {
                let batch = tokio::select! {
                    batch = link.message() => batch,
                    _ = heartbeat.tick() => {
                        send(&back, ToQueue::Heartbeat(pb::Heartbeat::default()));
                        continue;
                    }
                };
                let Ok(Some(batch)) = batch else { return };
                for message in batch.messages.into_iter().filter_map(|message| message.message) {
                    assert!(welcomed || matches!(message, FromQueue::Welcome(_)), "{message:?}");
                    welcomed = true;
                    obey(&state, &back, message);
                }
            }
        });
        Self { node, out, task }
    }

    /// Ends a call of `/hold`.
    fn release(&self, id: &str) {
        let mut node = self.node.lock().unwrap();
        let (start, ended) = node.calls.get_mut(id).unwrap();
        *ended = Some(answer(start));
        send(&self.out, ToQueue::CallEnded(answer(start)));
    }

    /// Cuts the link; what runs goes on.
    fn cut(self) -> Arc<Mutex<Node>> {
        self.task.abort();
        self.node
    }

    async fn started(&self, id: &str) {
        until(|| async {
            self.node.lock().unwrap().starts.iter().any(|of| of == id).then_some(())
        })
        .await;
    }

    async fn acknowledged(&self, id: &str) {
        until(|| async {
            self.node.lock().unwrap().acknowledged.iter().any(|of| of == id).then_some(())
        })
        .await;
    }
}

fn answer(start: &pb::StartCall) -> pb::CallEnded {
    let body = format!("{} {} {}", start.method, start.path, start.body.len());
    let status = if start.path == "/broken" { 500 } else { 200 };
    let header = pb::CallHeader { name: "content-type".into(), value: "text/plain".into() };
    let reply = pb::CallReply { status, headers: vec![header], body: body.into() };
    pb::CallEnded {
        action_id: start.action_id.clone(),
        engine: start.engine,
        end: Some(pb::call_ended::End::Reply(reply)),
        exec_s: 0.25,
    }
}

fn obey(node: &Mutex<Node>, out: &mpsc::UnboundedSender<pb::AgentBatch>, message: FromQueue) {
    use pb::engine_report::{Result as Said, What};
    let mut node = node.lock().unwrap();
    let report = |engine, order, what: What, said| {
        let report = pb::EngineReport { engine, order, what: what.into(), result: Some(said) };
        send(out, ToQueue::EngineReport(report));
    };
    match message {
        FromQueue::RestoreEngine(restore) => {
            let proof = pb::EngineProof { asleep: false, held_bytes: DEVICE, answers: true };
            if let Some(spec) = restore.launch {
                assert_eq!((spec.degree, spec.image.as_str()), (1, "judge:1"));
                node.launched.push(restore.engine);
                let live = pb::LiveEngine {
                    engine: restore.engine,
                    service: spec.service,
                    degree: spec.degree,
                    ..pb::LiveEngine::default()
                };
                node.engines.insert(restore.engine, live);
            }
            node.engines.get_mut(&restore.engine).unwrap().proof = Some(proof);
            report(restore.engine, restore.order, What::Restored, Said::Proof(proof));
        }
        FromQueue::EvictEngine(evict) => {
            let proof = pb::EngineProof { asleep: true, held_bytes: 1, answers: false };
            node.engines.get_mut(&evict.engine).unwrap().proof = Some(proof);
            report(evict.engine, evict.order, What::Evicted, Said::Proof(proof));
        }
        FromQueue::StopEngine(stop) => {
            node.stopped.push(stop.engine);
            if !node.holds_stops {
                node.engines.remove(&stop.engine);
                report(stop.engine, stop.order, What::Stopped, Said::HeldBytes(0));
            }
        }
        FromQueue::StartCall(start) => {
            node.starts.push(start.action_id.clone());
            let ended = (!start.path.starts_with("/hold")).then(|| answer(&start));
            if let Some(ended) = &ended {
                send(out, ToQueue::CallEnded(ended.clone()));
            }
            node.calls.insert(start.action_id.clone(), (start, ended));
        }
        FromQueue::AckCall(ack) => {
            node.calls.remove(&ack.action_id);
            node.acknowledged.push(ack.action_id);
        }
        FromQueue::CancelCall(cancel) => {
            let fault = pb::Fault { reason: "Cancelled".into(), ..pb::Fault::default() };
            let end = Some(pb::call_ended::End::Fault(fault));
            let (action_id, engine) = (cancel.action_id, cancel.engine);
            send(out, ToQueue::CallEnded(pb::CallEnded { action_id, engine, end, exec_s: 0.0 }));
        }
        _ => {}
    }
}

fn request(id: &str, path: &str) -> pb::CallRequest {
    pb::CallRequest {
        action_id: id.to_owned(),
        service: "judge".to_owned(),
        path: path.to_owned(),
        body: "12345".into(),
        ..pb::CallRequest::default()
    }
}

async fn call(mut client: Client, request: pb::CallRequest) -> Result<pb::CallResponse, String> {
    let answer = client.call(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| {
        of_status(&status).map_or_else(|| "BrokenOff".to_owned(), |fault| fault.reason)
    })
}

#[tokio::test]
async fn over_http_an_engines_answer_and_a_fault_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    let _agent = GpuAgent::connect(dir.path(), Arc::default()).await;
    let dir = dir.path();
    let (status, head, body) =
        http(dir, "POST", "/v1/rewards/judge/v1/score?a=b", b"{\"x\": 1}").await;
    assert_eq!((status, body.as_slice()), (200, b"POST /v1/score?a=b 8".as_slice()), "{head}");
    let head = head.to_ascii_lowercase();
    for ours in ["x-rollwright-degree: 1", "x-rollwright-node: gpus", "x-rollwright-exec-s: 0.25"] {
        assert!(head.contains(ours), "{head}");
    }
    let (status, _, body) = http(dir, "GET", "/v1/rewards/judge/models", b"").await;
    assert_eq!((status, body.as_slice()), (200, b"GET /models 0".as_slice()));
    // What the engine says is passed on, also when it is no success.
    let (status, head, _) = http(dir, "POST", "/v1/rewards/judge/broken", b"").await;
    assert!(status == 500 && !head.to_ascii_lowercase().contains("x-rollwright-fault"), "{head}");
    let stream = b"{\"stream\": true}";
    for (path, body, wanted, reason) in [
        ("/v1/rewards/judge/v1/chat/completions", stream.as_slice(), 501, "StreamingUnsupported"),
        ("/v1/rewards/nobody/score", b"", 404, "RewardServiceNotFound"),
    ] {
        let (status, head, body) = http(dir, "POST", path, body).await;
        let head = head.to_ascii_lowercase();
        let fault = format!("x-rollwright-fault: {}", reason.to_ascii_lowercase());
        assert!(status == wanted && head.contains(&fault), "{status} {head}");
        assert!(String::from_utf8_lossy(&body).contains(reason));
    }
    let (status, _, body) = http(dir, "GET", "/v1/stats", b"").await;
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let judge = &told["gpu_pools"][0]["services"][0];
    assert_eq!((status, &judge["calls"], &judge["restores"]), (200, &3.into(), &1.into()));
    assert_eq!(told["gpu_pools"][0]["engines"][0]["residency"], "Resident");
    queue.stop().await;
}

#[tokio::test]
async fn an_id_runs_once_over_restarts_of_link_and_queue() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    let agent = GpuAgent::connect(dir.path(), Arc::default()).await;
    let held = request("a", "/hold");
    let first = tokio::spawn(call(queue.client().await, held.clone()));
    agent.started("a").await;
    let second = tokio::spawn(call(queue.client().await, held.clone()));
    // Another service, or another job, has no part in it.
    let other = pb::CallRequest { service: "other".to_owned(), ..held.clone() };
    assert_eq!(call(queue.client().await, other).await, Err("ActionIdReused".to_owned()));
    // It ends while the link is away.
    let node = agent.cut();
    {
        let mut node = node.lock().unwrap();
        let (start, ended) = node.calls.get_mut("a").unwrap();
        *ended = Some(answer(start));
    }
    let agent = GpuAgent::connect(dir.path(), node).await;
    let answered = first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().as_ref(), Ok(&answered));
    assert_eq!((answered.status, answered.body.as_ref()), (200, b"POST /hold 5".as_slice()));
    agent.acknowledged("a").await;
    assert_eq!(call(queue.client().await, held.clone()).await.as_ref(), Ok(&answered));

    // One runs while the queue is replaced; another ended and was never acknowledged.
    for id in ["b", "c"] {
        drop(tokio::spawn(call(queue.client().await, request(id, "/hold"))));
        agent.started(id).await;
    }
    let node = agent.cut();
    queue.stop().await;
    {
        let mut node = node.lock().unwrap();
        let (start, ended) = node.calls.get_mut("c").unwrap();
        *ended = Some(answer(start));
    }
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    // Asked for before the agent is back.
    let again = tokio::spawn(call(queue.client().await, request("b", "/hold")));
    let agent = GpuAgent::connect(dir.path(), node).await;
    agent.acknowledged("c").await;
    assert_eq!(call(queue.client().await, request("c", "/hold")).await.unwrap().status, 200);
    agent.release("b");
    assert_eq!(again.await.unwrap().unwrap().status, 200);
    agent.acknowledged("b").await;
    assert_eq!(call(queue.client().await, held).await, Ok(answered));
    let launched = {
        let node = agent.node.lock().unwrap();
        assert_eq!(node.starts, ["a", "b", "c"]);
        assert_eq!((node.launched.len(), node.stopped.len()), (1, 0));
        node.launched[0]
    };
    // A number that was given once is not given again.
    let other = pb::CallRequest { service: "other".to_owned(), ..request("d", "/score") };
    assert_eq!(call(queue.client().await, other).await.unwrap().status, 200);
    assert!(agent.node.lock().unwrap().launched[1] > launched);
    queue.stop().await;
}

#[tokio::test]
async fn an_engine_of_no_service_leaves_before_its_gpu_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    let node: Arc<Mutex<Node>> = Arc::default();
    {
        let mut node = node.lock().unwrap();
        node.holds_stops = true;
        let service = "removed".to_owned();
        let live = pb::LiveEngine { engine: 7, service, degree: 1, ..pb::LiveEngine::default() };
        node.engines.insert(7, live);
    }
    let agent = GpuAgent::connect(dir.path(), node).await;
    let waits = tokio::spawn(call(queue.client().await, request("a", "/score")));
    until(|| async { agent.node.lock().unwrap().stopped.contains(&7).then_some(()) }).await;
    let mut client = queue.client().await;
    until(|| async {
        let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        (stats.gpu_pools[0].services[0].waiting == 1).then_some(())
    })
    .await;
    assert!(agent.node.lock().unwrap().launched.is_empty());
    let result = Some(pb::engine_report::Result::HeldBytes(0));
    let what = pb::engine_report::What::Stopped.into();
    let gone = pb::EngineReport { engine: 7, order: 0, what, result };
    send(&agent.out, ToQueue::EngineReport(gone));
    assert_eq!(waits.await.unwrap().unwrap().status, 200);
    // Another job's cancel ends nothing; its own does.
    let held = tokio::spawn(call(queue.client().await, request("b", "/hold")));
    agent.started("b").await;
    let cancel = |job: &str| pb::CancelRequest { action_id: "b".to_owned(), job: job.to_owned() };
    assert!(!client.cancel(cancel("another")).await.unwrap().into_inner().cancelled);
    assert!(client.cancel(cancel("")).await.unwrap().into_inner().cancelled);
    assert_eq!(held.await.unwrap(), Err("Cancelled".to_owned()));
    queue.stop().await;
}

#[tokio::test]
async fn a_job_leaves_half_of_the_places_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path(), 4), dir.path()).await;
    let agent = GpuAgent::connect(dir.path(), Arc::default()).await;
    let of = |job: &str, n: usize| pb::CallRequest {
        job: job.to_owned(),
        ..request(&format!("{job}-{n}"), "/hold")
    };
    let mut held = Vec::new();
    for n in 0..2 {
        held.push(tokio::spawn(call(queue.client().await, of("greedy", n))));
        agent.started(&format!("greedy-{n}")).await;
    }
    assert_eq!(call(queue.client().await, of("greedy", 2)).await, Err("QueueFull".to_owned()));
    held.push(tokio::spawn(call(queue.client().await, of("modest", 0))));
    agent.started("modest-0").await;
    for id in ["greedy-0", "greedy-1", "modest-0"] {
        agent.release(id);
    }
    for answered in held {
        assert_eq!(answered.await.unwrap().unwrap().status, 200);
    }
    // The refused one may come again.
    let again = tokio::spawn(call(queue.client().await, of("greedy", 2)));
    agent.started("greedy-2").await;
    agent.release("greedy-2");
    assert_eq!(again.await.unwrap().unwrap().status, 200);
    queue.stop().await;
}
