//! An agent that was killed and started again.

use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{ExecMode, SandboxSpec};

use crate::common::{TestNode, action, docker, finished, spec};

#[tokio::test]
async fn sandboxes_and_running_actions_are_found_again() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    node.open("dead", spec()).await.unwrap();
    let waiting = "echo before; until [ -e go ]; do sleep 0.05; done; echo after";
    node.say(FromQueue::StartAction(action("a", "t", waiting))).await;
    node.started("a").await;
    let removed = node.containers().into_iter().find(|name| {
        let format = "{{index .Config.Labels \"rollwright.dev/trajectory\"}}";
        docker(&["inspect", "-f", format, name]).as_deref() == Some("dead")
    });
    let id = std::fs::read_to_string(node.config.state_dir.join("id")).unwrap();
    docker(&[
        "run",
        "-d",
        "--network",
        "none",
        "--name",
        &format!("rollwright-{}", node.config.node),
        "--label",
        "rollwright.dev/managed=sandbox",
        "--label",
        &format!("rollwright.dev/agent={}", node.config.node),
        "--label",
        &format!("rollwright.dev/agent-id={id}"),
        crate::common::IMAGE,
        "sleep",
        "1000",
    ])
    .unwrap();
    let mut node = node.crash(&[&removed.unwrap()]).await;
    let live = &node.hello.actions[0];
    assert_eq!((live.action_id.as_str(), live.cores.as_slice()), ("a", &[0][..]));
    assert_eq!(node.hello.sandboxes.len(), 1);
    node.lost("dead").await;
    node.until_containers(1).await;
    let (_, ended) = node.run(action("b", "t", "touch go")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    let ended = node.ended("a").await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    assert_eq!(node.output("a"), "before\nafter\n");
    node.finish().await;
}

#[tokio::test]
async fn what_docker_exec_started_is_never_taken_over() {
    let Some(mut node) = TestNode::start().await else { return };
    let plain = SandboxSpec { exec_mode: ExecMode::Docker.into(), ..spec() };
    node.open("t", plain).await.unwrap();
    node.say(FromQueue::StartAction(action("a", "t", "sleep 1000"))).await;
    node.started("a").await;
    let mut node = node.crash(&[]).await;
    assert_eq!(node.hello.sandboxes, []);
    node.lost("t").await;
    node.until_containers(0).await;
    node.finish().await;
}
