//! Sandboxes go for good, and only their own agent takes them.

use std::path::Path;
use std::sync::Arc;

use rollwright_agent::metrics::Metrics;
use rollwright_agent::node;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{CloseSandbox, Network, OpenSandbox, SetupCommand};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::{IMAGE, TestNode, action, docker, finished, shell, spec, until};

const ENGINE: &str = "/var/run/docker.sock";

/// A way to the engine, until it is shut.
struct Door {
    shut: CancellationToken,
    open: JoinHandle<()>,
}

impl Door {
    fn open(path: &Path) -> Self {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let shut = CancellationToken::new();
        let told = shut.clone();
        let open = tokio::spawn(async move {
            let mut pipes = tokio::task::JoinSet::new();
            while let Some(Ok((mut near, _))) = told.run_until_cancelled(listener.accept()).await {
                pipes.spawn(async move {
                    let mut far = UnixStream::connect(ENGINE).await.unwrap();
                    // Either end may hang up.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
            pipes.shutdown().await;
        });
        Self { shut, open }
    }

    /// Returns when nothing goes through any more.
    async fn shut(self) {
        self.shut.cancel();
        self.open.await.unwrap();
    }
}

fn owned(node: &TestNode, name: &str) {
    let id = std::fs::read_to_string(node.config.state_dir.join("id")).unwrap();
    let label = |label: &str, value: &str| format!("rollwright.dev/{label}={value}");
    let labels =
        [label("managed", "sandbox"), label("agent", &node.config.node), label("agent-id", &id)];
    let mut args = vec!["run", "-d", "--network", "none", "--name", name];
    for label in &labels {
        args.extend(["--label", label]);
    }
    docker(&[&args[..], &[IMAGE, "sleep", "1000"]].concat()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_closed_only_when_it_is_gone() {
    let dir = tempfile::Builder::new().prefix("rwt").tempdir().unwrap();
    let socket = dir.path().join("docker.sock");
    let door = Door::open(&socket);
    let start = TestNode::start_with(|config| config.docker_socket.clone_from(&socket));
    let Some(mut node) = start.await else { return };
    node.open("t", spec()).await.unwrap();
    let name = node.containers().remove(0);
    door.shut().await;
    node.say(FromQueue::CloseSandbox(CloseSandbox { trajectory_id: "t".into() })).await;
    // Its processes end without Docker; the container is still there and not given up.
    let running = || docker(&["inspect", "-f", "{{.State.Running}}", &name]);
    until(|| running().as_deref() == Some("false")).await;
    assert_eq!(node.containers(), std::slice::from_ref(&name));
    node.relink().await;
    let stray = format!("rollwright-{}", node.config.node);
    owned(&node, &stray);
    Door::open(&socket);
    let closed = |message: &FromAgent| matches!(message, FromAgent::SandboxClosed(_)).then_some(());
    node.expect(closed).await;
    assert_eq!(docker(&["inspect", &name]), None);
    // What is this agent's and nobody holds goes when the engine is back.
    node.until_containers(0).await;
    node.finish().await;
}

#[tokio::test]
async fn agents_of_one_name_leave_each_others_sandboxes() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let mut config = node.config.clone();
    let metrics = || Arc::new(Metrics::new().unwrap());
    let error = node::start(config.clone(), metrics()).await.unwrap_err().to_string();
    assert!(error.contains("another agent uses the state directory"), "{error}");
    let dir = tempfile::Builder::new().prefix("rwt").tempdir().unwrap();
    config.state_dir = dir.path().to_owned();
    let other = node::start(config, metrics()).await.unwrap();
    other.stop().await;
    assert_eq!(node.containers().len(), 1);
    let (_, ended) = node.run(action("a", "t", "true")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    node.finish().await;
}

#[tokio::test]
async fn an_opening_is_closed_only_when_its_container_is_gone() {
    let Some(mut node) = TestNode::start().await else { return };
    let mut slow = spec();
    slow.setup = vec![SetupCommand { command: Some(shell("sleep 1000")), timeout: None }];
    let open = OpenSandbox { trajectory_id: "t".into(), spec: Some(slow) };
    node.say(FromQueue::OpenSandbox(open)).await;
    node.until_containers(1).await;
    node.close("t").await;
    assert!(node.containers().is_empty());
    node.finish().await;
}

#[tokio::test]
async fn an_end_in_the_midst_of_many_resets_leaves_nothing() {
    let Some(node) = TestNode::start().await else { return };
    let network = Some(Network { enabled: true, allow: vec!["10.9.8.7/32:1".into()] });
    for i in 0..12 {
        let spec = rollwright_proto::v1::SandboxSpec { network: network.clone(), ..spec() };
        let open = OpenSandbox { trajectory_id: format!("t{i}"), spec: Some(spec) };
        node.say(FromQueue::OpenSandbox(open)).await;
    }
    until(|| node.containers().len() >= 2).await;
    let filter = format!("label=rollwright.dev/agent={}", node.config.node);
    node.finish().await;
    let networks = docker(&["network", "ls", "-q", "--filter", &filter]);
    assert_eq!(networks.as_deref(), Some(""));
    let rules = std::process::Command::new("iptables").arg("-S").output().unwrap();
    assert!(!String::from_utf8_lossy(&rules.stdout).contains("10.9.8.7/32"));
}
