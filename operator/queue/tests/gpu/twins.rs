//! Two agents that say they are one node.

use std::sync::{Arc, Mutex};

use rollwright_queue::fault::of_status;

use crate::agent::{GpuAgent, Node};
use crate::common::{TestQueue, until};
use crate::{call, config, request};

fn twin() -> Arc<Mutex<Node>> {
    Arc::new(Mutex::new(Node { agent: "two".to_owned(), ..Node::default() }))
}

#[tokio::test]
async fn the_second_is_refused_as_long_as_the_first_is_linked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let first = GpuAgent::connect(dir, Arc::default()).await;
    let held = tokio::spawn(call(queue.client().await, request("x", "/hold")));
    first.started("x").await;
    let refused = GpuAgent::try_connect(dir, twin()).await.err().expect("it is refused");
    let fault = of_status(&refused).expect("a fault");
    assert_eq!(fault.reason, "NodeTaken");
    assert!(fault.message.contains("`gpus`"), "{}", fault.message);
    // The first has its engine and what runs there.
    first.release("x");
    assert_eq!(held.await.unwrap().map(|answer| answer.status), Ok(200));
    assert_eq!(call(queue.client().await, request("y", "/score")).await.unwrap().status, 200);
    {
        let node = first.node.lock().unwrap();
        assert_eq!((node.launched.len(), node.stopped.len()), (1, 0));
    }
    // When it has gone, the node is the second's, and it comes back in vain.
    let node = first.cut();
    let second = until(|| async { GpuAgent::try_connect(dir, twin()).await.ok() }).await;
    assert_eq!(call(queue.client().await, request("z", "/score")).await.unwrap().status, 200);
    assert_eq!(second.node.lock().unwrap().launched.len(), 1);
    assert!(GpuAgent::try_connect(dir, node).await.is_err());
    queue.stop().await;
}

#[tokio::test]
async fn an_agent_whose_link_is_dead_and_was_not_missed_yet_is_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let before = GpuAgent::connect(dir, Arc::default()).await;
    assert_eq!(call(queue.client().await, request("x", "/score")).await.unwrap().status, 200);
    // Its first link is open still.
    let again = GpuAgent::connect(dir, Arc::clone(&before.node)).await;
    assert_eq!(call(queue.client().await, request("y", "/score")).await.unwrap().status, 200);
    assert_eq!(again.node.lock().unwrap().launched.len(), 1);
    queue.stop().await;
}
