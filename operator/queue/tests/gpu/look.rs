//! Those who look at the id of a call are told where it stands.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::GpuAgent;
use crate::common::{TestQueue, http, until};
use crate::{call, config, request};

async fn look(dir: &std::path::Path, path: &str) -> (u16, Value) {
    let (status, _, body) = http(dir, "GET", &format!("/v1/actions/{path}"), b"").await;
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn a_call_is_looked_at_as_an_action_is() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let queue = TestQueue::start(config(dir, 100), dir).await;
    let (status, told) = look(dir, "a").await;
    assert_eq!((status, &told["fault"]["reason"]), (404, &"ActionNotFound".into()));
    // Nobody has GPUs yet.
    let held = tokio::spawn(call(queue.client().await, request("a", "/hold")));
    let waits = until(|| async {
        let (status, told) = look(dir, "a").await;
        (status == 200).then_some(told)
    })
    .await;
    assert_eq!((&waits["state"], &waits["service"]), (&"queued".into(), &"judge".into()));
    let agent = GpuAgent::connect(dir, Arc::default()).await;
    agent.started("a").await;
    let (_, runs) = look(dir, "a").await;
    assert_eq!((&runs["state"], &runs["started"]["node"]), (&"running".into(), &"gpus".into()));
    assert_eq!(runs["started"]["degree"], 1);
    let waited = async { look(dir, "a?wait=true").await };
    let released = async { agent.release("a") };
    let ((status, ended), ()) = tokio::join!(waited, released);
    assert_eq!((status, &ended["state"]), (200, &"finished".into()));
    assert_eq!(ended["finished"]["status"], 200);
    assert_eq!(ended["finished"]["text"], "POST /hold 5");
    assert_eq!(held.await.unwrap().unwrap().status, 200);
    assert_eq!(look(dir, "a").await, (200, ended));

    let held = tokio::spawn(call(queue.client().await, request("b", "/hold")));
    agent.started("b").await;
    let (status, _, _) = http(dir, "POST", "/v1/actions/b/cancel", b"").await;
    assert_eq!((status, held.await.unwrap()), (200, Err("Cancelled".to_owned())));
    assert_eq!(look(dir, "b").await.1["state"], "cancelled");
    queue.stop().await;
}
