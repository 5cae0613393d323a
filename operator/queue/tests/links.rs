//! Agents' links and the queue's own death, with simulated agents.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::process::{Child, Command};
use std::sync::Arc;

use common::simulated_agent::SimulatedAgent;
use common::{PATIENCE, TestQueue, action, client, config, listeners, open, run, until};
use rollwright_proto::v1 as pb;
use rollwright_queue::QueueServer;
use tokio_util::sync::CancellationToken;

const DIR: &str = "ROLLWRIGHT_TEST_QUEUE_DIR";

/// Not a test: the queue's process, which `queue_process` below starts and kills.
#[tokio::test]
#[ignore = "started by other tests in a process of its own"]
async fn queue_in_a_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = std::path::PathBuf::from(dir);
    let server = QueueServer::start(config(&dir), listeners(&dir)).await.unwrap();
    server.serve(CancellationToken::new()).await.unwrap();
}

struct QueueProcess(Child);

fn queue_process(dir: &std::path::Path) -> QueueProcess {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "queue_in_a_process"])
        .env(DIR, dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    QueueProcess(child)
}

impl QueueProcess {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        std::mem::forget(self);
    }
}

impl Drop for QueueProcess {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn ends_with(
    client: &mut common::Client,
    request: pb::ExecuteRequest,
) -> (Vec<&'static str>, Vec<u8>) {
    tokio::time::timeout(PATIENCE, run(client, request)).await.unwrap().unwrap()
}

#[tokio::test]
async fn nothing_is_lost_or_run_twice_when_the_queue_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let process = queue_process(dir.path());
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = client(dir.path()).await;
    open(&mut caller, "t", "job").await;
    ends_with(&mut caller, action("done", "t", "echo kept")).await;
    agent.wait_acknowledged("done").await;
    // Two run, one waits; all three are durable once `queued` has come.
    for id in ["run-1", "run-2", "waits"] {
        let mut stream = caller.execute(action(id, "t", "hold")).await.unwrap().into_inner();
        until_queued(&mut stream).await;
    }
    agent.wait_started("run-2").await;
    process.kill();
    let epoch = agent.epoch;
    let node = agent.cut();

    let process = queue_process(dir.path());
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, node).await;
    assert!(agent.epoch > epoch);
    let mut caller = client(dir.path()).await;
    let (_, output) = ends_with(&mut caller, action("done", "t", "echo kept")).await;
    assert_eq!(output, b"kept");
    agent.release("run-1", 0);
    agent.wait_started("waits").await;
    agent.release("run-2", 3);
    agent.release("waits", 0);
    for id in ["run-1", "run-2", "waits"] {
        let (events, _) = ends_with(&mut caller, action(id, "t", "hold")).await;
        assert_eq!(events.last(), Some(&"finished"), "{id}");
    }
    let starts = agent.node.lock().unwrap().starts.clone();
    assert!(starts.values().all(|count| *count == 1), "{starts:?}");
    process.kill();
}

async fn until_queued(stream: &mut tonic::Streaming<pb::ActionEvent>) {
    while let Some(event) = stream.message().await.unwrap() {
        if matches!(event.event, Some(pb::action_event::Event::Queued(_))) {
            return;
        }
    }
    panic!("the stream ended before `queued`");
}

#[tokio::test]
async fn what_an_agent_has_and_no_record_knows_is_taken_in() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let node = agent.cut();
    // As if the queue had died between the order and the record.
    let start = pb::StartAction {
        action_id: "orphan".to_owned(),
        attempt: 1,
        trajectory_id: "t".to_owned(),
        cores: vec![0],
        cpu_units: 1.0,
        ..pb::StartAction::default()
    };
    let live = common::simulated_agent::Live { start, output: b"half".to_vec(), ended: None };
    node.lock().unwrap().live.insert("orphan".to_owned(), live);
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, node).await;
    agent.release("orphan", 0);
    let (events, output) = ends_with(&mut caller, action("orphan", "t", "true")).await;
    assert_eq!((events.last(), output), (Some(&"finished"), b"half".to_vec()));
    assert!(!agent.node.lock().unwrap().starts.contains_key("orphan"));
    queue.stop().await;
}

#[tokio::test]
async fn a_newer_link_replaces_the_older_whose_messages_are_void() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let old = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let stream = caller.execute(action("a", "t", "hold")).await.unwrap();
    old.wait_started("a").await;
    let new = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::clone(&old.node)).await;
    assert!(new.epoch > old.epoch);
    // The old link is closed with a fault, and what it still says counts for nothing.
    old.send(pb::agent_message::Message::ActionEnded(pb::ActionEnded {
        action_id: "a".to_owned(),
        attempt: 1,
        end: Some(pb::action_ended::End::Finished(pb::Finished {
            exit_code: Some(99),
            ..pb::Finished::default()
        })),
        not_started: false,
    }));
    assert!(old.task.await.unwrap(), "the queue ends it with an error");
    new.release("a", 7);
    let mut stream = stream.into_inner();
    let mut code = None;
    while let Some(event) = stream.message().await.unwrap() {
        if let Some(pb::action_event::Event::Finished(finished)) = event.event {
            code = finished.exit_code;
        }
    }
    assert_eq!(code, Some(7));
    queue.stop().await;
}

#[tokio::test]
async fn a_node_that_stays_away_is_a_typed_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.core.node_grace = std::time::Duration::from_millis(100);
    let queue = TestQueue::start(config, dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let mut stream = caller.execute(action("a", "t", "hold")).await.unwrap().into_inner();
    agent.wait_started("a").await;
    drop(agent.cut());
    let mut reason = None;
    while let Some(event) = stream.message().await.unwrap() {
        if let Some(pb::action_event::Event::Failed(fault)) = event.event {
            assert_eq!(fault.kind(), pb::fault::Kind::Infrastructure);
            reason = Some(fault.reason);
        }
    }
    assert_eq!(reason.as_deref(), Some("NodeLost"));
    until(|| async {
        let stats = caller.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        (stats.trajectories == 0 && stats.running == 0).then_some(())
    })
    .await;
    queue.stop().await;
}

#[tokio::test]
async fn large_starts_and_parallel_uploads_do_not_cut_the_link() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let node = Arc::<std::sync::Mutex<common::simulated_agent::Node>>::default();
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 32, node).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    // All of them can start in one round.
    let requests = (0..32).map(|index| {
        let mut request = action(&format!("a{index}"), "t", "true");
        if let Some(command) = &mut request.command {
            command.stdin = vec![b'x'; 1 << 20].into();
        }
        pb::ExecuteBatch { requests: vec![request] }
    });
    let requests = futures::stream::iter(requests.collect::<Vec<_>>());
    let mut uploads = tokio::task::JoinSet::new();
    for index in 0..24 {
        let mut caller = caller.clone();
        uploads.spawn(async move {
            use pb::put_file_request::Part;
            let target = pb::FileTarget {
                trajectory_id: "t".to_owned(),
                path: format!("/f{index}"),
                ..pb::FileTarget::default()
            };
            let data = vec![Part::Data(vec![b'y'; 512 << 10].into()); 4];
            let parts = std::iter::once(Part::Target(target)).chain(data);
            let parts = parts.map(|part| pb::PutFileRequest { part: Some(part) });
            let parts = futures::stream::iter(parts.collect::<Vec<_>>());
            caller.put_file(parts).await.unwrap().into_inner().bytes
        });
    }
    let mut stream = caller.execute_many(requests).await.unwrap().into_inner();
    let mut finished = 0;
    while let Some(batch) = stream.message().await.unwrap() {
        finished += batch
            .events
            .iter()
            .filter(|event| matches!(event.event, Some(pb::action_event::Event::Finished(_))))
            .count();
    }
    assert_eq!(finished, 32);
    while let Some(bytes) = uploads.join_next().await {
        assert_eq!(bytes.unwrap(), 2 << 20);
    }
    assert!(!agent.task.is_finished(), "the first link is still up");
    queue.stop().await;
}

#[tokio::test]
async fn a_link_that_breaks_at_once_leaves_no_connected_node() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let mut caller = queue.client().await;
    for _ in 0..20 {
        SimulatedAgent::hello_and_gone(dir.path(), "node-1").await;
    }
    until(|| async {
        let stats = caller.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
        stats.nodes.iter().all(|node| !node.connected).then_some(())
    })
    .await;
    // And it can come back.
    let _agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    open(&mut caller, "t", "job").await;
    queue.stop().await;
}

#[tokio::test]
async fn what_was_cancelled_while_it_waited_stays_so_when_the_queue_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let process = queue_process(dir.path());
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 1, Arc::default()).await;
    let mut caller = client(dir.path()).await;
    open(&mut caller, "t", "job").await;
    let mut streams = Vec::new();
    for id in ["runs", "waits"] {
        let mut stream = caller.execute(action(id, "t", "hold")).await.unwrap().into_inner();
        until_queued(&mut stream).await;
        streams.push(stream);
    }
    agent.wait_started("runs").await;
    let request = pb::CancelRequest { action_id: "waits".to_owned(), job: String::new() };
    assert!(caller.cancel(request).await.unwrap().into_inner().cancelled);
    process.kill();
    let node = agent.cut();

    let process = queue_process(dir.path());
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 1, node).await;
    agent.release("runs", 0);
    let mut caller = client(dir.path()).await;
    let (events, _) = ends_with(&mut caller, action("waits", "t", "hold")).await;
    assert_eq!(events, ["cancelled"]);
    ends_with(&mut caller, action("runs", "t", "hold")).await;
    assert!(!agent.node.lock().unwrap().starts.contains_key("waits"));
    // A trajectory whose close was answered is not there after a death either.
    let close = pb::CloseTrajectoryRequest { trajectory_id: "t".to_owned(), job: String::new() };
    caller.close_trajectory(close).await.unwrap();
    process.kill();
    drop(agent.cut());
    let process = queue_process(dir.path());
    let mut caller = client(dir.path()).await;
    let stats = caller.stats(pb::StatsRequest {}).await.unwrap().into_inner();
    assert_eq!(stats.trajectories, 0);
    process.kill();
}

#[tokio::test]
async fn an_upload_whose_caller_goes_ends_at_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let target = pb::FileTarget {
        trajectory_id: "t".to_owned(),
        path: "/f".to_owned(),
        ..pb::FileTarget::default()
    };
    let part = Some(pb::put_file_request::Part::Target(target));
    let parts = futures::stream::iter([pb::PutFileRequest { part }]);
    let parts = futures::StreamExt::chain(parts, futures::stream::pending());
    let upload = tokio::spawn(async move { caller.put_file(parts).await.map(drop) });
    let node = Arc::clone(&agent.node);
    until(|| async { node.lock().unwrap().files.contains_key("/f").then_some(()) }).await;
    upload.abort();
    until(|| async { (node.lock().unwrap().cut_files == 1).then_some(()) }).await;
    queue.stop().await;
}

#[tokio::test]
async fn what_surely_never_started_is_started_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let mut stream = caller.execute(action("a", "t", "hold")).await.unwrap().into_inner();
    until_queued(&mut stream).await;
    agent.wait_started("a").await;
    drop((stream, caller));
    queue.stop().await;
    let node = agent.cut();
    {
        let fault = pb::Fault {
            kind: pb::fault::Kind::Infrastructure.into(),
            reason: "NoMemory".to_owned(),
            ..pb::Fault::default()
        };
        let mut node = node.lock().unwrap();
        let live = node.live.get_mut("a").unwrap();
        live.ended = Some(pb::ActionEnded {
            action_id: "a".to_owned(),
            attempt: live.start.attempt,
            end: Some(pb::action_ended::End::Fault(fault)),
            not_started: true,
        });
    }
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, node).await;
    let mut caller = queue.client().await;
    let stream = caller.execute(action("a", "t", "hold")).await.unwrap();
    until(|| async { (agent.node.lock().unwrap().starts["a"] == 2).then_some(()) }).await;
    agent.release("a", 5);
    let mut stream = stream.into_inner();
    let mut last = None;
    while let Some(event) = stream.message().await.unwrap() {
        last = event.event;
    }
    assert!(matches!(last, Some(pb::action_event::Event::Finished(_))), "{last:?}");
    queue.stop().await;
}

#[tokio::test]
async fn a_node_has_no_say_in_actions_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 2, Arc::default()).await;
    let mut caller = queue.client().await;
    open(&mut caller, "t", "job").await;
    let stream = caller.execute(action("a", "t", "hold")).await.unwrap();
    agent.wait_started("a").await;
    let other = SimulatedAgent::connect(dir.path(), "node-2", 2, Arc::default()).await;
    other.send(pb::agent_message::Message::ActionEnded(pb::ActionEnded {
        action_id: "a".to_owned(),
        attempt: 1,
        end: Some(pb::action_ended::End::Finished(pb::Finished {
            exit_code: Some(99),
            ..pb::Finished::default()
        })),
        not_started: false,
    }));
    other.wait_acknowledged("a").await;
    agent.release("a", 7);
    let mut stream = stream.into_inner();
    let mut code = None;
    while let Some(event) = stream.message().await.unwrap() {
        if let Some(pb::action_event::Event::Finished(finished)) = event.event {
            code = finished.exit_code;
        }
    }
    assert_eq!(code, Some(7));
    agent.wait_acknowledged("a").await;
    queue.stop().await;
}
