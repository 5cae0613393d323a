//! An agent without Docker: it answers the link's messages by itself. `true`
//! ends at once, `took S` too and says that it ran for S seconds, `hold` runs until it is released or killed, `echo TEXT` writes
//! TEXT, `flood N` writes N MiB.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pb::agent_message::Message as ToQueue;
use pb::queue_message::Message as FromQueue;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

/// What outlives a link.
#[derive(Default)]
pub struct Node {
    pub sandboxes: Vec<String>,
    pub live: HashMap<String, Live>,
    /// How often each action was really started.
    pub starts: HashMap<String, u32>,
    /// In the order of starts.
    pub order: Vec<String>,
    pub acknowledged: Vec<String>,
    /// Transfers that the queue ended.
    pub cut_files: usize,
    pub files: HashMap<String, Vec<u8>>,
    puts: HashMap<u64, String>,
}

pub struct Live {
    pub start: pb::StartAction,
    pub output: Vec<u8>,
    pub ended: Option<pb::ActionEnded>,
}

/// One link of a simulated node.
pub struct SimulatedAgent {
    pub node: Arc<Mutex<Node>>,
    out: mpsc::UnboundedSender<pb::AgentBatch>,
    /// Ends with the link; true when the queue ended it with an error.
    pub task: JoinHandle<bool>,
    pub epoch: u64,
}

impl SimulatedAgent {
    pub async fn connect(dir: &Path, name: &str, cores: u32, node: Arc<Mutex<Node>>) -> Self {
        Self::over(super::channel(dir.join("agents.sock")).await, name, cores, node).await
    }

    /// Over a connection that stands.
    pub async fn over(channel: Channel, name: &str, cores: u32, node: Arc<Mutex<Node>>) -> Self {
        let (out, messages) = mpsc::unbounded_channel();
        let hello = hello(name, cores, &node.lock().unwrap());
        send(&out, vec![ToQueue::Hello(hello)]);
        let stream = UnboundedReceiverStream::new(messages);
        let mut link = AgentLinkClient::new(channel).link(stream).await.unwrap().into_inner();
        let first = link.message().await.unwrap().unwrap();
        let mut messages = first.messages.into_iter();
        let Some(FromQueue::Welcome(welcome)) = messages.next().unwrap().message else {
            panic!("the first message must be welcome");
        };
        let (state, back) = (Arc::clone(&node), out.clone());
        let task = tokio::spawn(async move {
            // What ended while the link was away is said again.
            let again: Vec<ToQueue> = {
                let node = state.lock().unwrap();
                node.live.values().flat_map(report).collect()
            };
            send(&back, again);
            let rest: Vec<_> = messages.collect();
            handle(&state, &back, rest);
            let mut heartbeat = tokio::time::interval(Duration::from_millis(500));
            loop {
                tokio::select! {
                    batch = link.message() => match batch {
                        Ok(Some(batch)) => handle(&state, &back, batch.messages),
                        Ok(None) => return false,
                        Err(_) => return true,
                    },
                    _ = heartbeat.tick() => send(&back, vec![ToQueue::Heartbeat(pb::Heartbeat::default())]),
                }
            }
        });
        Self { node, out, task, epoch: welcome.epoch }
    }

    /// Says hello, and breaks the connection before the answer.
    pub async fn hello_and_gone(dir: &Path, name: &str) {
        let channel = super::channel(dir.join("agents.sock")).await;
        let (out, messages) = mpsc::unbounded_channel();
        send(&out, vec![ToQueue::Hello(hello(name, 2, &Node::default()))]);
        let mut client = AgentLinkClient::new(channel);
        let link = client.link(UnboundedReceiverStream::new(messages));
        drop(tokio::time::timeout(Duration::from_micros(500), link).await);
    }

    /// Ends a held action.
    pub fn release(&self, action: &str, code: i32) {
        let mut node = self.node.lock().unwrap();
        let live = node.live.get_mut(action).expect("it runs");
        let ended = finished(&live.start, code);
        live.ended = Some(ended.clone());
        send(&self.out, vec![ToQueue::ActionEnded(ended)]);
    }

    pub fn send(&self, message: ToQueue) {
        send(&self.out, vec![message]);
    }

    /// Cuts the link; what runs goes on.
    pub fn cut(self) -> Arc<Mutex<Node>> {
        self.task.abort();
        self.node
    }

    pub async fn wait_started(&self, action: &str) {
        super::until(|| async {
            self.node.lock().unwrap().starts.contains_key(action).then_some(())
        })
        .await;
    }

    pub async fn wait_acknowledged(&self, action: &str) {
        super::until(|| async {
            let node = self.node.lock().unwrap();
            node.acknowledged.iter().any(|id| id == action).then_some(())
        })
        .await;
    }
}

fn hello(name: &str, cores: u32, node: &Node) -> pb::Hello {
    let actions = node.live.values().map(|live| pb::LiveAction {
        action_id: live.start.action_id.clone(),
        attempt: live.start.attempt,
        trajectory_id: live.start.trajectory_id.clone(),
        cores: live.start.cores.clone(),
        cpu_units: live.start.cpu_units,
        ended: live.ended.is_some(),
    });
    let sandboxes = node.sandboxes.iter().map(|id| pb::LiveSandbox {
        trajectory_id: id.clone(),
        template: "box".to_owned(),
        memory_bytes: 1 << 20,
    });
    pb::Hello {
        node: name.to_owned(),
        pool: "cpu".to_owned(),
        incarnation: 1,
        numa: vec![pb::NumaNode { cores: (0..cores).collect() }],
        memory_bytes: 1 << 30,
        sandboxes: sandboxes.collect(),
        actions: actions.collect(),
        gpu: None,
    }
}

fn send(out: &mpsc::UnboundedSender<pb::AgentBatch>, messages: Vec<ToQueue>) {
    let messages: Vec<_> =
        messages.into_iter().map(|message| pb::AgentMessage { message: Some(message) }).collect();
    // A message of the protocol is at most 4 MiB.
    for messages in messages.chunks(32) {
        // A closed link is noticed by its reader.
        let _closed = out.send(pb::AgentBatch { messages: messages.to_vec() });
    }
}

fn finished(start: &pb::StartAction, code: i32) -> pb::ActionEnded {
    let shell = shell(start);
    let exec_s = shell.strip_prefix("took ").map_or(0.001, |seconds| seconds.parse().unwrap());
    let usage = pb::Usage { exec_s, ..pb::Usage::default() };
    let finished =
        pb::Finished { exit_code: Some(code), usage: Some(usage), ..pb::Finished::default() };
    pb::ActionEnded {
        action_id: start.action_id.clone(),
        attempt: start.attempt,
        end: Some(pb::action_ended::End::Finished(finished)),
        not_started: false,
    }
}

fn shell(start: &pb::StartAction) -> String {
    match start.command.as_ref().and_then(|command| command.program.as_ref()) {
        Some(pb::command::Program::Shell(shell)) => shell.clone(),
        _ => String::new(),
    }
}

/// Everything about an action, from its beginning.
fn report(live: &Live) -> Vec<ToQueue> {
    let started =
        pb::ActionStarted { action_id: live.start.action_id.clone(), attempt: live.start.attempt };
    let mut messages = vec![ToQueue::ActionStarted(started)];
    for (index, piece) in live.output.chunks(64 << 10).enumerate() {
        let output = pb::Output {
            stream: pb::output::Stream::Stdout.into(),
            data: Bytes::copy_from_slice(piece),
            dropped_before: 0,
        };
        messages.push(ToQueue::ActionOutput(pb::ActionOutput {
            action_id: live.start.action_id.clone(),
            output: Some(output),
            offset: (index * (64 << 10)) as u64,
        }));
    }
    messages.extend(live.ended.clone().map(ToQueue::ActionEnded));
    messages
}

fn handle(
    node: &Mutex<Node>,
    out: &mpsc::UnboundedSender<pb::AgentBatch>,
    messages: Vec<pb::QueueMessage>,
) {
    let mut node = node.lock().unwrap();
    let mut answers = Vec::new();
    for message in messages.into_iter().filter_map(|message| message.message) {
        match message {
            FromQueue::OpenSandbox(open) => {
                node.sandboxes.push(open.trajectory_id.clone());
                answers.push(ToQueue::SandboxReady(pb::SandboxReady {
                    trajectory_id: open.trajectory_id,
                    ..pb::SandboxReady::default()
                }));
            }
            FromQueue::CloseSandbox(close) => {
                node.sandboxes.retain(|id| *id != close.trajectory_id);
                let trajectory_id = close.trajectory_id;
                answers.push(ToQueue::SandboxClosed(pb::SandboxClosed { trajectory_id }));
            }
            FromQueue::StartAction(start) => start_action(&mut node, &mut answers, start),
            FromQueue::KillAction(kill) => {
                if let Some(live) = node.live.get_mut(&kill.action_id)
                    && live.ended.is_none()
                {
                    let fault = pb::Fault {
                        kind: pb::fault::Kind::Cancelled.into(),
                        reason: "Killed".to_owned(),
                        ..pb::Fault::default()
                    };
                    let mut ended = finished(&live.start, 0);
                    ended.end = Some(pb::action_ended::End::Fault(fault));
                    live.ended = Some(ended.clone());
                    answers.push(ToQueue::ActionEnded(ended));
                }
            }
            FromQueue::AckAction(ack) => {
                node.live.remove(&ack.action_id);
                node.acknowledged.push(ack.action_id);
            }
            FromQueue::FileOpen(open) => file_open(&mut node, &mut answers, open),
            FromQueue::FileDone(_) => node.cut_files += 1,
            FromQueue::FileData(data) => file_data(&mut node, &mut answers, &data),
            _ => {}
        }
    }
    send(out, answers);
}

fn start_action(node: &mut Node, answers: &mut Vec<ToQueue>, start: pb::StartAction) {
    let shell = shell(&start);
    *node.starts.entry(start.action_id.clone()).or_default() += 1;
    node.order.push(start.action_id.clone());
    let mut live = Live { start, output: Vec::new(), ended: None };
    match shell.split_once(' ') {
        Some(("echo", text)) => live.output = text.as_bytes().to_vec(),
        Some(("flood", mib)) => live.output = vec![b'x'; mib.parse::<usize>().unwrap() << 20],
        _ => {}
    }
    if shell != "hold" {
        live.ended = Some(finished(&live.start, 0));
    }
    answers.extend(report(&live));
    node.live.insert(live.start.action_id.clone(), live);
}

fn file_open(node: &mut Node, answers: &mut Vec<ToQueue>, open: pb::FileOpen) {
    let target = open.target.unwrap();
    let transfer = open.transfer;
    if open.put {
        node.files.insert(target.path.clone(), Vec::new());
        node.puts.insert(transfer, target.path);
    } else if let Some(data) = node.files.get(&target.path) {
        let data = Bytes::copy_from_slice(data);
        answers.push(ToQueue::FileData(pb::FileData { transfer, data, last: true }));
    } else {
        let fault = pb::Fault {
            kind: pb::fault::Kind::User.into(),
            reason: "FileNotFound".to_owned(),
            message: "no such file".to_owned(),
            retry_after: None,
        };
        answers.push(ToQueue::FileDone(pb::FileDone { transfer, fault: Some(fault) }));
    }
}

fn file_data(node: &mut Node, answers: &mut Vec<ToQueue>, data: &pb::FileData) {
    let transfer = data.transfer;
    let Some(path) = node.puts.get(&transfer).cloned() else { return };
    node.files.entry(path).or_default().extend_from_slice(&data.data);
    if data.last {
        answers.push(ToQueue::FileDone(pb::FileDone { transfer, fault: None }));
    } else {
        let bytes = data.data.len() as u64;
        answers.push(ToQueue::FileCredit(pb::FileCredit { transfer, bytes }));
    }
}
