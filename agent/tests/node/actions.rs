//! Actions through the helper, each in a cgroup of its own.

use std::time::Duration;

use rollwright_agent::session::Session;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use rollwright_proto::v1::{
    AckAction, Command, FileData, FileOpen, FileTarget, KillAction, ResizeAction,
};

use crate::common::{TestNode, action, env, fault, finished, shell, spec};

#[tokio::test]
async fn programs_get_what_they_are_given_and_say_how_they_ended() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let mut start = action("a", "t", "cat; echo $X ${parallel_num} $ROLLWRIGHT_CPUS; pwd; exit 3");
    start.command = Some(Command {
        stdin: "in\n".into(),
        env: env(&[("X", "own")]),
        ..start.command.take().unwrap()
    });
    start.cpu_units = 2.0;
    let (output, ended) = node.run(start).await;
    assert_eq!(output, "in\nown 2 2\n/workspace\n");
    assert_eq!(finished(&ended).exit_code, Some(3));
    assert_eq!(finished(&ended).usage.unwrap().output_bytes, output.len() as u64);

    let (_, ended) = node.run(action("killed", "t", "kill -9 $$")).await;
    assert_eq!(finished(&ended).signal, Some(9));
    assert!(!finished(&ended).out_of_memory);
    let (_, ended) = node.run(action("137", "t", "exit 137")).await;
    assert_eq!((finished(&ended).exit_code, finished(&ended).out_of_memory), (Some(137), false));
    let (_, ended) = node.run(action("oom", "t", "tail -c 200000000 /dev/zero")).await;
    assert!(finished(&ended).out_of_memory, "{ended:?}");

    let mut missing = action("missing", "t", "");
    missing.command = Some(Command {
        program: Some(rollwright_proto::v1::command::Program::Argv(rollwright_proto::v1::Argv {
            args: vec!["no-such-program".into()],
        })),
        ..Default::default()
    });
    let (_, ended) = node.run(missing).await;
    assert_eq!(fault(&ended).reason, "CommandNotFound");
    let mut elsewhere = action("core", "t", "true");
    elsewhere.cores = vec![4000];
    let (_, ended) = node.run(elsewhere).await;
    assert_eq!((fault(&ended).kind(), fault(&ended).reason.as_str()), (Kind::User, "InvalidGrant"));
    node.finish().await;
}

#[tokio::test]
async fn a_time_out_or_a_kill_ends_the_whole_tree() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let daemons = "setsid sh -c 'sleep 1000 & sleep 1000' & echo begun; sleep 1000";
    let mut slow = action("slow", "t", daemons);
    slow.timeout = Some(Duration::from_millis(500).try_into().unwrap());
    let (output, ended) = node.run(slow).await;
    assert_eq!(output, "begun\n");
    assert_eq!((fault(&ended).kind(), ended.not_started), (Kind::Timeout, false));
    node.say(FromQueue::StartAction(action("gone", "t", daemons))).await;
    node.started("gone").await;
    node.say(FromQueue::KillAction(KillAction { action_id: "gone".into() })).await;
    assert_eq!(fault(&node.ended("gone").await).kind(), Kind::Cancelled);
    let (output, _) = node.run(action("look", "t", "ps | grep -c '[s]leep 1000'")).await;
    assert_eq!(output, "0\n");
    node.finish().await;
}

#[tokio::test]
async fn cores_follow_the_grant() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let two =
        node.hello.numa.iter().flat_map(|numa| numa.cores.clone()).take(2).collect::<Vec<_>>();
    let wait = "until [ -e go ]; do sleep 0.05; done; grep Cpus_allowed_list /proc/self/status";
    let mut start = action("a", "t", wait);
    start.cores = vec![two[0]];
    node.say(FromQueue::StartAction(start)).await;
    node.started("a").await;
    let resize = ResizeAction { action_id: "a".into(), cores: vec![two[1]], cpu_units: 1.0 };
    node.say(FromQueue::ResizeAction(resize)).await;
    let (_, ended) = node.run(action("b", "t", "touch go")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    node.ended("a").await;
    assert_eq!(node.output("a"), format!("Cpus_allowed_list:\t{}\n", two[1]));
    node.finish().await;
}

#[tokio::test]
async fn a_new_stream_hears_all_that_was_not_acknowledged() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let (first, ended) = node.run(action("a", "t", "seq 1 1000")).await;
    node.relink().await;
    assert!(node.hello.actions.iter().any(|live| live.action_id == "a" && live.ended));
    assert_eq!(node.hello.sandboxes[0].trajectory_id, "t");
    assert_eq!(node.ended("a").await, ended);
    assert_eq!(node.output("a"), first);
    // The same order again runs nothing.
    let (again, same) = node.run(action("a", "t", "seq 1 1000")).await;
    assert_eq!((again.len(), same), (first.len() * 2, ended));
    node.say(FromQueue::AckAction(AckAction { action_id: "a".into() })).await;
    node.relink().await;
    assert!(node.hello.actions.is_empty());
    node.finish().await;
}

#[tokio::test]
async fn files_go_in_and_out() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let target = |path: &str| {
        Some(FileTarget { trajectory_id: "t".into(), path: path.into(), ..Default::default() })
    };
    let open = |transfer, path: &str, put| {
        FromQueue::FileOpen(FileOpen { transfer, target: target(path), put })
    };
    let content: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
    node.say(open(1, "/workspace/sub/file", true)).await;
    for chunk in content.chunks(100_000) {
        let data = FileData { transfer: 1, data: chunk.to_vec().into(), last: false };
        node.say(FromQueue::FileData(data)).await;
    }
    let last = FileData { transfer: 1, data: Vec::new().into(), last: true };
    node.say(FromQueue::FileData(last)).await;
    let done = |number| {
        move |message: &FromAgent| match message {
            FromAgent::FileDone(done) if done.transfer == number => Some(done.fault.clone()),
            _ => None,
        }
    };
    assert_eq!(node.expect(done(1)).await, None);
    node.say(open(2, "/workspace/sub/file", false)).await;
    let mut read = Vec::new();
    loop {
        let piece = node
            .expect(|message| match message {
                FromAgent::FileData(data) if data.transfer == 2 => Some(data.clone()),
                _ => None,
            })
            .await;
        read.extend_from_slice(&piece.data);
        if piece.last {
            break;
        }
    }
    assert_eq!(node.expect(done(2)).await, None);
    assert!(read == content, "content differs");
    node.say(open(3, "/workspace/none", false)).await;
    assert_eq!(node.expect(done(3)).await.unwrap().reason, "FileNotFound");
    let (output, _) = node.run(action("own", "t", "ls -ln sub/file")).await;
    assert!(output.contains("1000     1000"), "{output}");
    let _ = shell("");
    node.finish().await;
}

#[tokio::test]
async fn a_broken_connection_to_the_helper_costs_no_action() {
    let Some(mut node) = TestNode::start().await else { return };
    node.open("t", spec()).await.unwrap();
    let script = "echo begun; until [ -e go ]; do sleep 0.05; done; echo done; exit 4";
    node.say(FromQueue::StartAction(action("a", "t", script))).await;
    node.started("a").await;
    // Whoever connects last has the helper; the agent may take it back at once.
    drop(Session::connect(&node.helper_socket()).await);
    let (_, ended) = node.run(action("b", "t", "touch go")).await;
    assert_eq!(finished(&ended).exit_code, Some(0));
    let ended = node.ended("a").await;
    assert_eq!(finished(&ended).exit_code, Some(4));
    assert_eq!(node.output("a"), "begun\ndone\n");
    node.finish().await;
}
