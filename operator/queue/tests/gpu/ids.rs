//! An id is that of one call: with another content it is refused.

use std::sync::Arc;
use std::time::Duration;

use rollwright_proto::v1 as pb;
use rollwright_queue::fault::of_status;

use crate::agent::GpuAgent;
use crate::common::{Client, TestQueue};
use crate::{call, config, request};

/// Requests that are not `asked`, though of its id.
fn others(asked: &pb::CallRequest) -> Vec<pb::CallRequest> {
    vec![
        pb::CallRequest { path: "/hold?other".to_owned(), ..asked.clone() },
        pb::CallRequest { body: "54321".into(), ..asked.clone() },
        pb::CallRequest { method: "GET".to_owned(), ..asked.clone() },
        pb::CallRequest { degrees: vec![1], ..asked.clone() },
    ]
}

/// Each is refused, with what is wrong and what would be right.
async fn refuses(client: &Client, asked: &pb::CallRequest) {
    for other in others(asked) {
        let status = client.clone().call(other.clone()).await.unwrap_err();
        let fault = of_status(&status).unwrap();
        assert_eq!(fault.reason, "ActionIdReused", "{other:?}");
        assert_eq!(status.code(), tonic::Code::AlreadyExists);
        for said in ["another method, path, body or degrees", "choose a new id"] {
            assert!(fault.message.contains(said), "{}", fault.message);
        }
    }
}

#[tokio::test]
async fn an_id_with_another_content_is_refused_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    let agent = GpuAgent::connect(dir.path(), Arc::default()).await;
    let (ended, runs) = (request("ended", "/hold"), request("runs", "/hold"));
    let first = tokio::spawn(call(queue.client().await, ended.clone()));
    agent.started("ended").await;
    refuses(&queue.client().await, &ended).await;
    agent.release("ended");
    let first = first.await.unwrap().unwrap();
    refuses(&queue.client().await, &ended).await;
    // The same call with other time limits and headers is the same call.
    let header = pb::CallHeader { name: "traceparent".into(), value: "1".into() };
    let timeout = Some(Duration::from_secs(9).try_into().unwrap());
    let again = pb::CallRequest {
        headers: vec![header],
        timeout,
        method: "POST".to_owned(),
        ..ended.clone()
    };
    assert_eq!(call(queue.client().await, again.clone()).await.as_ref(), Ok(&first));

    drop(tokio::spawn(call(queue.client().await, runs.clone())));
    agent.started("runs").await;
    let node = agent.cut();
    queue.stop().await;
    let queue = TestQueue::start(config(dir.path(), 100), dir.path()).await;
    refuses(&queue.client().await, &ended).await;
    refuses(&queue.client().await, &runs).await;
    let agent = GpuAgent::connect(dir.path(), node).await;
    refuses(&queue.client().await, &runs).await;
    agent.release("runs");
    assert_eq!(call(queue.client().await, runs).await.unwrap().status, 200);
    assert_eq!(call(queue.client().await, again).await, Ok(first));
    assert_eq!(agent.node.lock().unwrap().starts, ["ended", "runs"]);
    queue.stop().await;
}
