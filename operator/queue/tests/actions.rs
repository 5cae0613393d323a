//! Actions end to end over real sockets, with simulated agents.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::simulated_agent::SimulatedAgent;
use common::{TestQueue, action, config, open, run, until};
use rollwright_proto::v1 as pb;
use tonic::Code;

async fn queue_with_agent(
    change: impl FnOnce(&mut rollwright_queue::QueueConfig),
) -> (tempfile::TempDir, TestQueue, SimulatedAgent) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    change(&mut config);
    let queue = TestQueue::start(config, dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 4, Arc::default()).await;
    (dir, queue, agent)
}

#[tokio::test]
async fn runs_once_for_a_hundred_submissions_and_returns_the_first_result() {
    let (_dir, queue, agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        calls.spawn(async move { run(&mut client, action("a", "t", "echo hello")).await });
    }
    while let Some(call) = calls.join_next().await {
        let (events, output) = call.unwrap().unwrap();
        assert_eq!(events.last(), Some(&"finished"));
        assert_eq!(output, b"hello");
    }
    agent.wait_acknowledged("a").await;
    // From the store now.
    let (events, output) = run(&mut client, action("a", "t", "echo hello")).await.unwrap();
    assert_eq!((events, output), (vec!["started", "output", "finished"], b"hello".to_vec()));
    assert_eq!(agent.node.lock().unwrap().starts["a"], 1);

    let error = run(&mut client, action("a", "other", "true")).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    queue.stop().await;
}

#[tokio::test]
async fn refusals_are_typed() {
    let (_dir, queue, _agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let change = |alter: fn(&mut pb::ExecuteRequest)| {
        let mut request = action("a", "t", "true");
        alter(&mut request);
        request
    };
    for (request, code, reason) in [
        (change(|r| r.trajectory_id = "nowhere".into()), Code::NotFound, "TrajectoryNotOpen"),
        (change(|r| r.action_id = "a b".into()), Code::InvalidArgument, "InvalidId"),
        (change(|r| r.profile = "none".into()), Code::InvalidArgument, "UnknownProfile"),
        (change(|r| r.command = None), Code::InvalidArgument, "InvalidCommand"),
        (change(|r| r.cpu_units = vec![1.5]), Code::InvalidArgument, "CpuUnits"),
        (change(|r| r.quota = [("q".into(), 1)].into()), Code::InvalidArgument, "UnknownQuota"),
    ] {
        let status = run(&mut client, request).await.unwrap_err();
        assert_eq!(status.code(), code, "{reason}: {status}");
        assert_eq!(rollwright_queue::fault::of_status(&status).unwrap().reason, reason);
    }
    queue.stop().await;
}

#[tokio::test]
async fn a_full_queue_says_so_and_when_to_return() {
    let (dir, queue, agent) = queue_with_agent(|config| config.core.max_waiting = 2).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let mut streams = Vec::new();
    // Four cores run, two wait.
    for index in 0..6 {
        let id = format!("a{index}");
        streams.push(client.execute(action(&id, "t", "hold")).await.unwrap().into_inner());
        if index < 4 {
            agent.wait_started(&id).await;
        }
    }
    let status = run(&mut client, action("late", "t", "true")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(rollwright_queue::fault::of_status(&status).unwrap().retry_after.is_some());
    let body = br#"{"action_id":"late","trajectory_id":"t","command":{"shell":"true"}}"#;
    let (status, head, _) = common::http(dir.path(), "POST", "/v1/actions", body).await;
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 1"), "{head}");
    queue.stop().await;
}

#[tokio::test]
async fn cancel_reaches_waiting_and_running_actions() {
    let (_dir, queue, agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let mut wide = action("running", "t", "hold");
    wide.cpu_units = vec![1.0];
    let mut running = client.execute(wide).await.unwrap().into_inner();
    agent.wait_started("running").await;
    for id in ["b", "c", "d", "waiting"] {
        drop(client.execute(action(id, "t", "hold")).await.unwrap());
    }
    for id in ["waiting", "running"] {
        let request = pb::CancelRequest { action_id: id.to_owned(), job: String::new() };
        assert!(client.cancel(request).await.unwrap().into_inner().cancelled);
    }
    let mut last = None;
    while let Some(event) = running.message().await.unwrap() {
        last = event.event;
    }
    assert!(matches!(last, Some(pb::action_event::Event::Cancelled(_))));
    let (events, _) = run(&mut client, action("waiting", "t", "hold")).await.unwrap();
    assert_eq!(events, ["cancelled"]);
    let request = pb::CancelRequest { action_id: "unknown".to_owned(), job: String::new() };
    assert!(!client.cancel(request).await.unwrap().into_inner().cancelled);
    queue.stop().await;
}

#[tokio::test]
async fn a_client_that_stops_reading_holds_up_nobody() {
    let (_dir, queue, agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let mut big = action("big", "t", "flood 40");
    big.output_limit = 32 << 20;
    // Its stream is open and nobody reads it.
    let lazy = client.execute(big.clone()).await.unwrap().into_inner();
    agent.wait_acknowledged("big").await;
    let mut other = queue.client().await;
    let (events, _) = run(&mut other, action("small", "t", "true")).await.unwrap();
    assert_eq!(events.last(), Some(&"finished"));
    // The same id brings the stored result.
    let (events, output) = run(&mut other, big).await.unwrap();
    assert_eq!((events.last(), output.len()), (Some(&"finished"), 40 << 20));
    drop(lazy);
    queue.stop().await;
}

#[tokio::test]
async fn batches_carry_many_actions_on_one_stream() {
    let (_dir, queue, _agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let requests = |from: usize| pb::ExecuteBatch {
        requests: (from..from + 50).map(|n| action(&format!("a{n}"), "t", "true")).collect(),
    };
    let mut bad = requests(100);
    bad.requests[0].profile = "none".to_owned();
    let batches = futures::stream::iter([requests(0), requests(50), bad]);
    let mut stream = client.execute_many(batches).await.unwrap().into_inner();
    let (mut finished, mut failed) = (0, 0);
    while let Some(batch) = stream.message().await.unwrap() {
        for event in batch.events {
            match event.event.unwrap() {
                pb::action_event::Event::Finished(_) => finished += 1,
                pb::action_event::Event::Failed(_) => failed += 1,
                _ => {}
            }
        }
    }
    assert_eq!((finished, failed), (149, 1));
    queue.stop().await;
}

#[tokio::test]
async fn results_expire() {
    let (_dir, queue, agent) =
        queue_with_agent(|config| config.keep_for = Duration::from_millis(200)).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    run(&mut client, action("a", "t", "true")).await.unwrap();
    agent.wait_acknowledged("a").await;
    // Once it is forgotten, the id is free again.
    until(|| async {
        run(&mut client.clone(), action("a", "t", "true")).await.unwrap();
        (agent.node.lock().unwrap().starts["a"] > 1).then_some(())
    })
    .await;
    queue.stop().await;
}

#[tokio::test]
async fn a_burst_of_one_job_starves_nobody() {
    let (_dir, queue, agent) = queue_with_agent(|_| {}).await;
    let mut client = queue.client().await;
    open(&mut client, "greedy", "greedy").await;
    open(&mut client, "modest", "modest").await;
    let mut streams = Vec::new();
    for index in 0..20 {
        let request = action(&format!("g{index}"), "greedy", "hold");
        streams.push(client.execute(request).await.unwrap());
    }
    agent.wait_started("g3").await;
    streams.push(client.execute(action("m0", "modest", "hold")).await.unwrap());
    agent.release("g0", 0);
    agent.wait_started("m0").await;
    let order = agent.node.lock().unwrap().order.clone();
    assert_eq!(order, ["g0", "g1", "g2", "g3", "m0"]);
    queue.stop().await;
}

#[tokio::test]
async fn a_repeated_acquire_keeps_what_the_first_gives_up() {
    use rollwright_core::{ids::QuotaName, quota::QuotaLimit};
    let limit = QuotaLimit { concurrency: Some(1), rate: None };
    let (_dir, queue, _agent) = queue_with_agent(|config| {
        config.core.quotas.insert(QuotaName::new("q").unwrap(), limit);
    })
    .await;
    let mut client = queue.client().await;
    let acquire = |permit: &str| pb::AcquireRequest {
        permit_id: permit.to_owned(),
        quota: "q".to_owned(),
        ..pb::AcquireRequest::default()
    };
    let release = |permit: &str| pb::ReleaseRequest {
        permit_id: permit.to_owned(),
        ..pb::ReleaseRequest::default()
    };
    client.acquire(acquire("held")).await.unwrap();
    let wait = |permit: &str| {
        let (mut client, request) = (client.clone(), acquire(permit));
        tokio::spawn(async move { client.acquire(request).await.map(drop) })
    };
    let (first, second) = (wait("p"), wait("p"));
    let third = wait("alone");
    until(|| async {
        let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        (stats.quotas[0].waiting == 2).then_some(())
    })
    .await;
    first.abort();
    third.abort();
    // The one nobody else waits for goes; the other stays.
    until(|| async {
        let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        (stats.quotas[0].waiting == 1).then_some(())
    })
    .await;
    client.release(release("held")).await.unwrap();
    second.await.unwrap().unwrap();
    let stats = client.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!((stats.quotas[0].running, stats.quotas[0].waiting), (1, 0));
    queue.stop().await;
}

#[tokio::test]
async fn unread_streams_of_one_job_refuse_nobody() {
    let (_dir, queue, agent) =
        queue_with_agent(|config| config.max_buffered_bytes = 24 << 20).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    let mut unread = Vec::new();
    for index in 0..10 {
        let id = format!("big-{index}");
        let mut big = action(&id, "t", "flood 6");
        big.output_limit = 4 << 20;
        unread.push(queue.client().await.execute(big).await.unwrap().into_inner());
        agent.wait_acknowledged(&id).await;
    }
    let (events, _) = run(&mut client, action("small", "t", "true")).await.unwrap();
    assert_eq!(events.last(), Some(&"finished"));
    // Those that were cut find their result in the store.
    let (events, output) = run(&mut client, action("big-0", "t", "flood 6")).await.unwrap();
    assert_eq!((events.last(), output.len()), (Some(&"finished"), 6 << 20));
    queue.stop().await;
}
