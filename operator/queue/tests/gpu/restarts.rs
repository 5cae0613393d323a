//! Calls that were started are never started again, whoever is killed and in whatever order
//! the others come back.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent::{GpuAgent, Node, answer};
use crate::common::{TestQueue, until};
use crate::{call, config, request};

/// Runs `/hold` as `x` on one of two nodes, and then ends queue and links: the node that has
/// it, and the other.
async fn started_on_one_of_two(dir: &Path) -> (Arc<Mutex<Node>>, Arc<Mutex<Node>>) {
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let one = GpuAgent::connect(dir, Node::named("one")).await;
    let two = GpuAgent::connect(dir, Node::named("two")).await;
    drop(tokio::spawn(call(queue.client().await, request("x", "/hold"))));
    let has = |agent: &GpuAgent| agent.node.lock().unwrap().starts.contains(&"x".to_owned());
    until(|| async { (has(&one) || has(&two)).then_some(()) }).await;
    let first = has(&one);
    let (one, two) = (one.cut(), two.cut());
    queue.stop().await;
    if first { (one, two) } else { (two, one) }
}

fn starts(node: &Mutex<Node>) -> Vec<String> {
    node.lock().unwrap().starts.clone()
}

#[tokio::test]
async fn one_that_another_node_has_does_not_start_on_the_node_that_comes_back_first() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (has, other) = started_on_one_of_two(dir).await;
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let other = GpuAgent::connect(dir, other).await;
    let again = tokio::spawn(call(queue.client().await, request("x", "/hold")));
    // Its node takes calls already.
    assert_eq!(call(queue.client().await, request("y", "/score")).await.unwrap().status, 200);
    let has = GpuAgent::connect(dir, has).await;
    has.release("x");
    let answered = again.await.unwrap().unwrap();
    assert_eq!(answered.node, has.node.lock().unwrap().name);
    has.acknowledged("x").await;
    assert_eq!((starts(&has.node), starts(&other.node)), (vec!["x".into()], vec!["y".into()]));
    queue.stop().await;
}

#[tokio::test]
async fn the_answer_of_one_whose_engine_is_gone_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (has, other) = started_on_one_of_two(dir).await;
    {
        // It ended, then its engine did; nobody heard of either.
        let mut node = has.lock().unwrap();
        let (start, ended) = node.calls.get_mut("x").unwrap();
        *ended = Some(answer(start));
        node.engines.clear();
    }
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let _other = GpuAgent::connect(dir, other).await;
    let again = tokio::spawn(call(queue.client().await, request("x", "/hold")));
    let has = GpuAgent::connect(dir, has).await;
    assert_eq!(again.await.unwrap().unwrap().status, 200);
    has.acknowledged("x").await;
    queue.stop().await;
}

#[tokio::test]
async fn one_whose_agent_forgot_it_ends_with_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (has, other) = started_on_one_of_two(dir).await;
    has.lock().unwrap().calls.clear();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let other = GpuAgent::connect(dir, other).await;
    let again = tokio::spawn(call(queue.client().await, request("x", "/hold")));
    let _has = GpuAgent::connect(dir, has).await;
    for _ in 0..2 {
        let told = call(queue.client().await, request("x", "/hold")).await;
        assert_eq!(told, Err("AgentLost".to_owned()));
    }
    assert_eq!(again.await.unwrap(), Err("AgentLost".to_owned()));
    assert!(starts(&other.node).is_empty());
    queue.stop().await;
}

#[tokio::test]
async fn one_whose_node_stays_away_ends_with_a_fault_and_is_ended_when_the_node_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (has, other) = started_on_one_of_two(dir).await;
    let mut impatient = config(dir, 100);
    impatient.core.node_grace = Duration::from_millis(100);
    let queue = TestQueue::start(impatient, dir).await;
    let other = GpuAgent::connect(dir, other).await;
    let told = call(queue.client().await, request("x", "/hold")).await;
    assert_eq!(told, Err("NodeLost".to_owned()));
    let has = GpuAgent::connect(dir, has).await;
    has.acknowledged("x").await;
    // Of one that goes away while the queue lives the same is true.
    let node = has.cut();
    let starts_before = starts(&other.node);
    drop(other.cut());
    let only = GpuAgent::connect(dir, node).await;
    let held = tokio::spawn(call(queue.client().await, request("z", "/hold")));
    only.started("z").await;
    let node = only.cut();
    assert_eq!(held.await.unwrap(), Err("NodeLost".to_owned()));
    let only = GpuAgent::connect(dir, node).await;
    only.acknowledged("z").await;
    assert!(starts_before.is_empty());
    queue.stop().await;
}

#[tokio::test]
async fn one_that_has_ended_and_is_not_acknowledged_does_no_harm_to_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let agent = GpuAgent::connect(dir, Arc::default()).await;
    let mut calls = Vec::new();
    for id in ["x", "y"] {
        calls.push(tokio::spawn(call(queue.client().await, request(id, "/hold"))));
        agent.started(id).await;
    }
    let ended = agent.node.lock().unwrap().calls["x"].0.clone();
    agent.release("x");
    let (y, x) = (calls.pop().unwrap(), calls.pop().unwrap());
    assert_eq!(x.await.unwrap().unwrap().status, 200);
    agent.acknowledged("x").await;
    // As if the acknowledgement had been lost with the link.
    let node = agent.cut();
    let told = Some(answer(&ended));
    node.lock().unwrap().calls.insert("x".to_owned(), (ended, told));
    let agent = GpuAgent::connect(dir, node).await;
    until(|| async { (agent.node.lock().unwrap().calls.len() == 1).then_some(()) }).await;
    agent.release("y");
    assert_eq!(y.await.unwrap().map(|answer| answer.status), Ok(200));
    assert!(agent.node.lock().unwrap().stopped.is_empty());
    queue.stop().await;
}
