//! An agent that says that it will end: what runs ends first, and nothing new starts there.

use rollwright_proto::v1 as pb;

use crate::agent::{GpuAgent, Node};
use crate::common::{Client, TestQueue, until};
use crate::{call, config, request};

/// Calls that wait for the first service.
async fn waiting(client: &Client) -> u64 {
    let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
    stats.gpu_pools[0].services[0].waiting
}

#[tokio::test]
async fn calls_end_before_their_agent_and_their_engine_stays_for_the_next() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let client = queue.client().await;
    let one = GpuAgent::connect(dir, Node::named("one")).await;
    let first = tokio::spawn(call(client.clone(), request("first", "/hold")));
    one.started("first").await;
    one.leave(false);
    // Its engine has room, and yet the next one waits for another node.
    let next = tokio::spawn(call(client.clone(), request("next", "/score")));
    until(|| async { (waiting(&client).await == 1).then_some(()) }).await;
    assert!(!one.node.lock().unwrap().released);
    let two = GpuAgent::connect(dir, Node::named("two")).await;
    assert_eq!(next.await.unwrap().unwrap().node, "two");
    one.release("first");
    assert_eq!(first.await.unwrap().unwrap().node, "one");
    one.released().await;
    drop(two.cut());
    let node = one.cut();
    {
        let node = node.lock().unwrap();
        assert_eq!(
            (node.starts.as_slice(), node.stopped.len()),
            (["first".to_owned()].as_slice(), 0)
        );
        assert_eq!(node.acknowledged, ["first"]);
    }
    let one = GpuAgent::connect(dir, node).await;
    assert_eq!(call(client, request("last", "/score")).await.unwrap().node, "one");
    assert_eq!(one.node.lock().unwrap().launched.len(), 1);
    queue.stop().await;
}

#[tokio::test]
async fn engines_that_end_with_their_agent_end_before_it() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let client = queue.client().await;
    let one = GpuAgent::connect(dir, Node::named("one")).await;
    let held = tokio::spawn(call(client.clone(), request("held", "/hold")));
    one.started("held").await;
    one.leave(true);
    let next = tokio::spawn(call(client.clone(), request("next", "/score")));
    until(|| async { (waiting(&client).await == 1).then_some(()) }).await;
    assert!(one.node.lock().unwrap().stopped.is_empty(), "it executes");
    one.release("held");
    assert_eq!(held.await.unwrap().unwrap().status, 200);
    one.released().await;
    {
        let node = one.node.lock().unwrap();
        assert!(node.engines.is_empty() && node.stopped == node.launched);
    }
    // The next agent of the node has everything again.
    let one = GpuAgent::connect(dir, one.cut()).await;
    assert_eq!(next.await.unwrap().unwrap().node, "one");
    assert_eq!(one.node.lock().unwrap().launched.len(), 2);
    queue.stop().await;
}
