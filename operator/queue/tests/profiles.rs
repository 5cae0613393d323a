//! What was learned of actions outlives the queue.
// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::simulated_agent::{Node, SimulatedAgent};
use common::{TestQueue, action, config, open, run};
use rollwright_proto::v1 as pb;
use rollwright_queue::{Profile, QueueConfig};

fn with_profiles(dir: &Path) -> QueueConfig {
    let mut config = config(dir);
    for name in ["long", "short"] {
        config.profiles.insert(name.to_owned(), Profile::default());
    }
    config
}

fn of(profile: &str, id: &str, shell: &str) -> pb::ExecuteRequest {
    pb::ExecuteRequest { profile: profile.to_owned(), ..action(id, "t", shell) }
}

/// Submits a long action and then a short one while the one core is taken; the first of them
/// that starts.
async fn first_of(queue: &TestQueue, agent: &SimulatedAgent, round: usize) -> String {
    let mut client = queue.client().await;
    let blocker = client.execute(action(&format!("hold-{round}"), "t", "hold")).await.unwrap();
    agent.wait_started(&format!("hold-{round}")).await;
    let mut ends = Vec::new();
    for profile in ["long", "short"] {
        let mut client = client.clone();
        let request = of(profile, &format!("{profile}-{round}"), "true");
        let mut stream = client.execute(request).await.unwrap().into_inner();
        let queued = stream.message().await.unwrap().unwrap();
        assert!(matches!(queued.event, Some(pb::action_event::Event::Queued(_))));
        ends.push(stream);
    }
    agent.release(&format!("hold-{round}"), 0);
    drop(blocker);
    for mut stream in ends {
        while stream.message().await.unwrap().is_some() {}
    }
    let order = agent.node.lock().unwrap().order.clone();
    order
        .into_iter()
        .rfind(|id| *id == format!("long-{round}") || *id == format!("short-{round}"))
        .map(|last| if last.starts_with("long") { "short" } else { "long" }.to_owned())
        .unwrap()
}

#[tokio::test]
async fn what_was_learned_is_known_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node: Arc<std::sync::Mutex<Node>> = Arc::default();
    let queue = TestQueue::start(with_profiles(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 1, Arc::clone(&node)).await;
    let mut client = queue.client().await;
    open(&mut client, "t", "job").await;
    assert_eq!(first_of(&queue, &agent, 0).await, "long", "nothing is known: as they came");
    for n in 0..5 {
        run(&mut client, of("long", &format!("l{n}"), "took 100")).await.unwrap();
        run(&mut client, of("short", &format!("s{n}"), "took 0.5")).await.unwrap();
    }
    assert_eq!(first_of(&queue, &agent, 1).await, "short", "it was learned");
    let node = agent.cut();
    drop(client);
    queue.stop().await;

    let queue = TestQueue::start(with_profiles(dir.path()), dir.path()).await;
    let agent = SimulatedAgent::connect(dir.path(), "node-1", 1, node).await;
    assert_eq!(first_of(&queue, &agent, 2).await, "short", "it is still known");
    agent.cut();
    queue.stop().await;
}
