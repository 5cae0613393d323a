//! A simulated agent with one GPU.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb::agent_message::Message as ToQueue;
use pb::queue_message::Message as FromQueue;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_link_client::AgentLinkClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::DEVICE;
use crate::common::{self, until};

/// What outlives a link: engines, calls, and what was told.
pub struct Node {
    pub name: String,
    /// Id of its agent's state directory.
    pub agent: String,
    pub engines: BTreeMap<u64, pb::LiveEngine>,
    pub calls: BTreeMap<String, (pb::StartCall, Option<pb::CallEnded>)>,
    pub starts: Vec<String>,
    pub launched: Vec<u64>,
    pub stopped: Vec<u64>,
    pub acknowledged: Vec<String>,
    /// Orders to end an engine are not obeyed.
    pub holds_stops: bool,
    /// No engine is launched, for this reason.
    pub refuses: Option<String>,
    /// The queue has let it end.
    pub released: bool,
}

impl Node {
    pub fn named(name: &str) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { name: name.to_owned(), ..Self::default() }))
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: "gpus".to_owned(),
            agent: "one".to_owned(),
            engines: BTreeMap::new(),
            calls: BTreeMap::new(),
            starts: Vec::new(),
            launched: Vec::new(),
            stopped: Vec::new(),
            acknowledged: Vec::new(),
            holds_stops: false,
            refuses: None,
            released: false,
        }
    }
}

/// A link of a simulated agent with one GPU. A call is answered with its own path at once, but
/// for one of `/hold`, which waits for [`GpuAgent::release`].
pub struct GpuAgent {
    pub node: Arc<Mutex<Node>>,
    pub out: mpsc::UnboundedSender<pb::AgentBatch>,
    task: JoinHandle<()>,
}

pub fn send(out: &mpsc::UnboundedSender<pb::AgentBatch>, message: ToQueue) {
    let messages = vec![pb::AgentMessage { message: Some(message) }];
    // A link that has gone takes nothing.
    drop(out.send(pb::AgentBatch { messages }));
}

impl GpuAgent {
    pub async fn connect(dir: &Path, node: Arc<Mutex<Node>>) -> Self {
        Self::try_connect(dir, node).await.unwrap()
    }

    pub async fn try_connect(dir: &Path, node: Arc<Mutex<Node>>) -> Result<Self, tonic::Status> {
        let channel = common::channel(dir.join("agents.sock")).await;
        let (out, messages) = mpsc::unbounded_channel();
        let (name, gpu, again) = {
            let node = node.lock().unwrap();
            let calls = node.calls.values().map(|(start, ended)| pb::LiveCall {
                action_id: start.action_id.clone(),
                engine: start.engine,
                ended: ended.is_some(),
                left: start.timeout,
                job: start.job.clone(),
            });
            let gpu = pb::GpuNode {
                gpus: 1,
                memory_bytes: 10,
                host_bytes: 100,
                engines: node.engines.values().cloned().collect(),
                calls: calls.collect(),
                agent: node.agent.clone(),
                ..pb::GpuNode::default()
            };
            let ended = node.calls.values().filter_map(|(_, ended)| ended.clone());
            (node.name.clone(), gpu, ended.collect::<Vec<_>>())
        };
        let hello = pb::Hello {
            node: name,
            pool: "judges".to_owned(),
            gpu: Some(gpu),
            ..pb::Hello::default()
        };
        send(&out, ToQueue::Hello(hello));
        for ended in again {
            send(&out, ToQueue::CallEnded(ended));
        }
        let stream = UnboundedReceiverStream::new(messages);
        let client = AgentLinkClient::new(channel).max_decoding_message_size(16 << 20);
        let mut link = client.max_encoding_message_size(16 << 20).link(stream).await?.into_inner();
        let (state, back) = (Arc::clone(&node), out.clone());
        let task = tokio::spawn(async move {
            let mut welcomed = false;
            let mut heartbeat = tokio::time::interval(Duration::from_millis(500));
            loop {
                let batch = tokio::select! {
                    batch = link.message() => batch,
                    _ = heartbeat.tick() => {
                        send(&back, ToQueue::Heartbeat(pb::Heartbeat::default()));
                        continue;
                    }
                };
                let Ok(Some(batch)) = batch else { return };
                for message in batch.messages.into_iter().filter_map(|message| message.message) {
                    assert!(welcomed || matches!(message, FromQueue::Welcome(_)), "{message:?}");
                    welcomed = true;
                    obey(&state, &back, message);
                }
            }
        });
        Ok(Self { node, out, task })
    }

    /// Ends a call of `/hold`.
    pub fn release(&self, id: &str) {
        let mut node = self.node.lock().unwrap();
        let (start, ended) = node.calls.get_mut(id).unwrap();
        *ended = Some(answer(start));
        send(&self.out, ToQueue::CallEnded(answer(start)));
    }

    /// Says that it will end.
    pub fn leave(&self, with_engines: bool) {
        send(&self.out, ToQueue::Leaving(pb::Leaving { with_engines }));
    }

    pub async fn released(&self) {
        until(|| async { self.node.lock().unwrap().released.then_some(()) }).await;
    }

    /// Cuts the link; what runs goes on.
    pub fn cut(self) -> Arc<Mutex<Node>> {
        self.task.abort();
        self.node
    }

    pub async fn started(&self, id: &str) {
        until(|| async {
            self.node.lock().unwrap().starts.iter().any(|of| of == id).then_some(())
        })
        .await;
    }

    pub async fn acknowledged(&self, id: &str) {
        until(|| async {
            self.node.lock().unwrap().acknowledged.iter().any(|of| of == id).then_some(())
        })
        .await;
    }
}

pub fn answer(start: &pb::StartCall) -> pb::CallEnded {
    let body = format!("{} {} {}", start.method, start.path, start.body.len());
    let status = if start.path == "/broken" { 500 } else { 200 };
    let header = pb::CallHeader { name: "content-type".into(), value: "text/plain".into() };
    let body = if start.path == "/echo" { start.body.clone() } else { body.into() };
    let reply = pb::CallReply { status, headers: vec![header], body };
    pb::CallEnded {
        action_id: start.action_id.clone(),
        engine: start.engine,
        end: Some(pb::call_ended::End::Reply(reply)),
        exec_s: 0.25,
    }
}

fn obey(node: &Mutex<Node>, out: &mpsc::UnboundedSender<pb::AgentBatch>, message: FromQueue) {
    use pb::engine_report::{Result as Said, What};
    let mut node = node.lock().unwrap();
    let report = |engine, order, what: What, said| {
        let report = pb::EngineReport { engine, order, what: what.into(), result: Some(said) };
        send(out, ToQueue::EngineReport(report));
    };
    match message {
        FromQueue::RestoreEngine(restore) => {
            if let Some(detail) = node.refuses.clone() {
                let kind = pb::engine_trouble::Kind::Refused.into();
                let order = pb::engine_trouble::Order::Launch.into();
                let trouble = pb::EngineTrouble { kind, order, detail, ..Default::default() };
                let said = Said::Trouble(trouble);
                return report(restore.engine, restore.order, What::Restored, said);
            }
            let proof = pb::EngineProof {
                asleep: false,
                held_bytes: DEVICE,
                answers: true,
                movable: false,
            };
            if let Some(spec) = restore.launch {
                assert_eq!((spec.degree, spec.image.as_str()), (1, "judge:1"));
                node.launched.push(restore.engine);
                let live = pb::LiveEngine {
                    engine: restore.engine,
                    service: spec.service,
                    degree: spec.degree,
                    ..pb::LiveEngine::default()
                };
                node.engines.insert(restore.engine, live);
            }
            node.engines.get_mut(&restore.engine).unwrap().proof = Some(proof);
            report(restore.engine, restore.order, What::Restored, Said::Proof(proof));
        }
        FromQueue::EvictEngine(evict) => {
            let proof =
                pb::EngineProof { asleep: true, held_bytes: 1, answers: false, movable: false };
            node.engines.get_mut(&evict.engine).unwrap().proof = Some(proof);
            report(evict.engine, evict.order, What::Evicted, Said::Proof(proof));
        }
        FromQueue::StopEngine(stop) => {
            node.stopped.push(stop.engine);
            if !node.holds_stops {
                node.engines.remove(&stop.engine);
                report(stop.engine, stop.order, What::Stopped, Said::HeldBytes(0));
            }
        }
        FromQueue::StartCall(start) => {
            node.starts.push(start.action_id.clone());
            let ended = (!start.path.starts_with("/hold")).then(|| answer(&start));
            if let Some(ended) = &ended {
                send(out, ToQueue::CallEnded(ended.clone()));
            }
            node.calls.insert(start.action_id.clone(), (start, ended));
        }
        FromQueue::AckCall(ack) => {
            node.calls.remove(&ack.action_id);
            node.acknowledged.push(ack.action_id);
        }
        FromQueue::Released(_) => node.released = true,
        FromQueue::CancelCall(cancel) => {
            let fault = pb::Fault { reason: "Cancelled".into(), ..pb::Fault::default() };
            let end = Some(pb::call_ended::End::Fault(fault));
            let (action_id, engine) = (cancel.action_id, cancel.engine);
            send(out, ToQueue::CallEnded(pb::CallEnded { action_id, engine, end, exec_s: 0.0 }));
        }
        _ => {}
    }
}
