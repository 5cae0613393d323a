//! What is said of the engines of a node whose agent is away.

use std::sync::Arc;

use rollwright_proto::v1 as pb;

use crate::agent::GpuAgent;
use crate::common::{Client, TestQueue, until};
use crate::{call, config, request};

/// Nodes that are linked, engines of the first service that count as resident, and what is said
/// of the only engine.
async fn told(client: &Client) -> (u32, u32, String) {
    let stats = client.clone().stats(pb::StatsRequest {}).await.unwrap().into_inner();
    let pool = &stats.gpu_pools[0];
    let [engine] = pool.engines.as_slice() else { panic!("{:?}", pool.engines) };
    (pool.nodes, pool.services[0].residents, engine.residency.clone())
}

#[tokio::test]
async fn an_engine_is_resident_only_as_long_as_its_agent_says_so() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let client = queue.client().await;
    let agent = GpuAgent::connect(dir, Arc::default()).await;
    assert_eq!(call(client.clone(), request("a", "/score")).await.unwrap().status, 200);
    assert_eq!(told(&client).await, (1, 1, "Resident".to_owned()));
    let node = agent.cut();
    until(|| async { (told(&client).await.0 == 0).then_some(()) }).await;
    assert_eq!(told(&client).await, (0, 0, "Unknown".to_owned()));
    let _back = GpuAgent::connect(dir, node).await;
    until(|| async { (told(&client).await.0 == 1).then_some(()) }).await;
    assert_eq!(told(&client).await, (1, 1, "Resident".to_owned()));
    queue.stop().await;
}
