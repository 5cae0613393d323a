//! What a call is answered, and by whom.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb::agent_message::Message as ToQueue;
use pb::fault::Kind;
use rollwright_proto::v1 as pb;
use rollwright_queue::fault::of_status;
use tokio::net::UnixStream;

use crate::agent::{GpuAgent, Node, answer, send};
use crate::common::{TestQueue, http, http_on, until};
use crate::{call, config, request};

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
    // A try that failed is repeated; and that the GPU is well does not make it free.
    let report = |held| {
        let result = Some(pb::engine_report::Result::HeldBytes(held));
        let what = pb::engine_report::What::Stopped.into();
        ToQueue::EngineReport(pb::EngineReport { engine: 7, order: 0, what, result })
    };
    for lost in [true, false] {
        send(&agent.out, ToQueue::GpuChanged(pb::GpuChanged { gpu: 0, lost }));
    }
    send(&agent.out, report(5));
    until(|| async { (agent.node.lock().unwrap().stopped.len() == 2).then_some(()) }).await;
    assert!(agent.node.lock().unwrap().launched.is_empty());
    send(&agent.out, report(0));
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

#[tokio::test]
async fn a_service_in_trouble_says_why() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let client = queue.client().await;
    let agent = GpuAgent::connect(dir, Arc::default()).await;
    agent.node.lock().unwrap().refuses = Some("no image judge:1 here".to_owned());
    let patient = tokio::spawn(call(client.clone(), request("patient", "/score")));
    until(|| async {
        let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        stats.gpu_pools[0].services[0].trouble.contains("no image judge:1 here").then_some(())
    })
    .await;
    // Who does not wait until it is well again is told what is wrong, not that time is over.
    let timeout = Some(Duration::from_millis(50).try_into().unwrap());
    let impatient = pb::CallRequest { timeout, ..request("impatient", "/score") };
    let status = client.clone().call(impatient).await.unwrap_err();
    let fault = of_status(&status).unwrap();
    assert_eq!((fault.kind(), fault.reason.as_str()), (Kind::Infrastructure, "EngineRefused"));
    assert!(fault.message.contains("no image judge:1 here"), "{fault:?}");
    let stream = UnixStream::connect(dir.join("queue.sock")).await.unwrap();
    let limit = "x-rollwright-timeout: 0.05\r\n";
    let (status, head, body) =
        http_on(stream, "POST", "/v1/rewards/judge/score", limit, b"{}").await;
    assert!(status == 503 && head.contains("x-rollwright-fault: enginerefused"), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("no image judge:1 here"));
    agent.node.lock().unwrap().refuses = None;
    assert_eq!(patient.await.unwrap().unwrap().status, 200);
    queue.stop().await;
}

#[tokio::test]
async fn what_is_too_large_says_what_would_be_right() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let large = vec![b'x'; (4 << 20) + 1];
    let asked = pb::CallRequest { body: large.clone().into(), ..request("large", "/score") };
    let client = queue.client().await.max_encoding_message_size(16 << 20);
    let fault = of_status(&client.clone().call(asked).await.unwrap_err()).unwrap();
    assert_eq!(fault.reason, "BodyTooLarge");
    assert!(fault.message.contains("ask for less in one call"), "{fault:?}");
    let (status, _, body) = http(dir, "POST", "/v1/rewards/judge/score", &large).await;
    assert_eq!(status, 413);
    assert!(String::from_utf8_lossy(&body).contains("ask for less in one call"));
    // The largest that is allowed comes through, both ways.
    let largest = "x".repeat(4 << 20);
    let _agent = GpuAgent::connect(dir, Arc::default()).await;
    let path = "/echo";
    let asked = pb::CallRequest { body: largest.clone().into(), ..request("largest", path) };
    let client = client.max_decoding_message_size(16 << 20);
    assert_eq!(client.clone().call(asked).await.unwrap().into_inner().body, largest);
    let (status, _, body) = http(dir, "POST", "/v1/rewards/judge/echo", largest.as_bytes()).await;
    assert!(status == 200 && body == largest.as_bytes());
    queue.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_the_callers_fault_for_callers_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let agent = GpuAgent::connect(dir, Arc::default()).await;
    let path = dir.to_owned();
    let asked =
        tokio::spawn(async move { http(&path, "POST", "/v1/rewards/judge/hold", b"").await });
    let started = || async { agent.node.lock().unwrap().starts.first().cloned() };
    let id = until(started).await;
    let start = agent.node.lock().unwrap().calls[&id].0.clone();
    let fault = pb::Fault {
        kind: Kind::User.into(),
        reason: "AnswerTooLarge".to_owned(),
        message: "larger than 4 MiB: ask for less".to_owned(),
        retry_after: None,
    };
    let end = Some(pb::call_ended::End::Fault(fault));
    send(&agent.out, ToQueue::CallEnded(pb::CallEnded { end, ..answer(&start) }));
    // A status that no client tries again.
    let (status, head, body) = asked.await.unwrap();
    assert!(
        status == 400 && head.contains("x-rollwright-fault: answertoolarge"),
        "{status} {head}"
    );
    let told = String::from_utf8_lossy(&body).into_owned();
    assert!(told.contains("\"user\"") && told.contains("ask for less"), "{told}");
    queue.stop().await;
}
