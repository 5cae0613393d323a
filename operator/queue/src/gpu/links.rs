//! Links to the agents: what comes from them about GPUs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pb::agent_message::Message as FromAgent;
use pb::queue_message::Message as ToAgent;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::{Adopted, Degree, EngineId, Event, Kind, Node, OrderId, Running};
use rollwright_core::ids::{ActionId, JobId, NodeId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::calls::{Run, Stage};
use super::pool;
use super::strays::Stray;
use super::wire;
use crate::fault;
use crate::mailbox::{Mailbox, Written};

/// How long past its own limit a call of an earlier queue is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The current link of a node.
pub(super) struct Link {
    epoch: u64,
    /// Id of the agent's state directory.
    agent: String,
    pool: usize,
    outbox: Arc<Mailbox<pb::QueueMessage>>,
}

impl Gpu {
    /// Whether an agent may link a node. Another one that is linked has the node's engines, of
    /// which this one knows nothing.
    pub(super) fn may_link(&self, node: &NodeId, agent: &str) -> Result<(), Fault> {
        if self.links.get(node).is_none_or(|link| link.agent == agent) {
            return Ok(());
        }
        let message = format!(
            "another agent is linked as node `{node}` and has its engines: end that agent, or give this one another name"
        );
        Err(fault::user("NodeTaken", message))
    }

    pub(super) fn link_up(
        &mut self,
        node: &NodeId,
        epoch: u64,
        gpu: &pb::GpuNode,
        answered: &[String],
        outbox: Arc<Mailbox<pb::QueueMessage>>,
    ) {
        if self.links.get(node).is_some_and(|link| link.epoch > epoch) {
            return;
        }
        if let Err(fault) = self.may_link(node, &gpu.agent) {
            // Both came at once.
            outbox.close(Some(fault));
            return;
        }
        let Some(at) = self.pools.iter().position(|pool| pool.name == gpu.pool) else {
            tracing::warn!(%node, pool = gpu.pool, "its GPUs are of no pool of this queue: they are not used");
            return;
        };
        tracing::info!(%node, gpus = gpu.gpus, fake = gpu.fake, engines = gpu.engines.len(), calls = gpu.calls.len(), "GPUs linked");
        let agent = gpu.agent.clone();
        self.links.insert(node.clone(), Link { epoch, agent, pool: at, outbox });
        self.away.remove(node);
        let now = self.now();
        let mut known = pool::Node {
            linked: true,
            gpus: gpu.gpus,
            memory: gpu.memory_bytes,
            host: gpu.host_bytes,
            lost: gpu.lost.iter().copied().collect(),
            fake: gpu.fake,
            strays: std::collections::BTreeMap::new(),
            leaving: None,
        };
        let mut engines = Vec::new();
        for live in &gpu.engines {
            let service = self.pools[at].service(&live.service);
            if let (Some(service), Ok(degree)) = (service, Degree::new(live.degree)) {
                engines.push(adopted(live, Kind { service, degree }, &gpu.calls, now));
            } else {
                // Its service is gone: so shall it, and its GPUs wait for that.
                known.strays.insert(live.engine, Stray::new(live, now));
            }
        }
        let lost: BTreeSet<u32> = known.withheld().collect();
        self.pools[at].nodes.insert(node.clone(), known);
        self.end_strays(now);
        for live in &gpu.calls {
            self.live_call(at, node, live, &engines, answered);
        }
        let joined = Node {
            name: node.clone(),
            gpus: gpu.gpus,
            memory: gpu.memory_bytes,
            host: gpu.host_bytes,
            lost: lost.into_iter().collect(),
            engines,
        };
        self.stays(at, node);
        self.events.push_back((at, Event::Joined(joined)));
        self.work();
        self.give_up_lost(at, node, &gpu.calls);
        self.end_answered(at, &gpu.calls, answered);
    }

    /// Calls that were started on a node, and that the core did not take in: it is not known
    /// whether they ran, so they are not started again.
    fn give_up_lost(&mut self, at: usize, node: &NodeId, live: &[pb::LiveCall]) {
        for action in self.calls_on(node) {
            // Its report follows.
            let ended = live.iter().any(|live| live.ended && live.action_id == action.as_str());
            if ended || self.pools[at].core.runs_on(&action).is_some() {
                continue;
            }
            let known = live.iter().any(|live| live.action_id == action.as_str());
            let (reason, message) = if known {
                ("EngineNotTakenOver", "the engine that the call ran on could not be taken over")
            } else {
                (
                    "AgentLost",
                    "agent or queue was restarted as the call was started, and the agent knows nothing of it",
                )
            };
            self.ended(&action, Err(fault::infrastructure(reason, message)));
            // It may wait there, where its caller asked again before its node was known.
            self.events.push_back((at, Event::Cancel(action)));
            self.work();
        }
    }

    /// Ends what an agent still runs of calls that were answered without it.
    fn end_answered(&mut self, at: usize, live: &[pb::LiveCall], answered: &[String]) {
        for live in live.iter().filter(|live| !live.ended) {
            let Ok(action) = ActionId::new(&live.action_id) else { continue };
            let call = self.calls.get(&action);
            let ended = call.is_some_and(|call| matches!(call.stage, Stage::Ended(_)));
            if ended || answered.contains(&live.action_id) {
                self.events.push_back((at, Event::Cancel(action)));
                self.work();
            }
        }
    }

    /// A call that an agent has.
    fn live_call(
        &mut self,
        at: usize,
        node: &NodeId,
        live: &pb::LiveCall,
        engines: &[Adopted],
        answered: &[String],
    ) {
        let Ok(action) = ActionId::new(&live.action_id) else { return };
        if answered.contains(&live.action_id) {
            return self.acknowledge(node, &action);
        }
        let engine = EngineId(live.engine);
        let on = engines.iter().find(|adopted| adopted.engine == engine);
        let (Some(on), Ok(job)) = (on, JobId::new(&live.job)) else { return };
        let degree = on.kind.degree.gpus();
        let (began, restored_for) = (self.now(), Duration::ZERO);
        let run = Run { engine, node: node.clone(), degree, began, restored_for };
        self.take_in(action, job, at, run, on.kind.service);
    }

    pub(super) fn link_down(&mut self, node: &NodeId, epoch: u64) {
        if self.links.get(node).is_none_or(|link| link.epoch != epoch) {
            return;
        }
        let Some(link) = self.links.remove(node) else { return };
        if let Some(known) = self.pools[link.pool].nodes.get_mut(node) {
            known.linked = false;
        }
        self.expect(node.clone());
        self.events.push_back((link.pool, Event::Left(node.clone())));
    }

    pub(super) fn link_batch(
        &mut self,
        node: &NodeId,
        epoch: u64,
        messages: Vec<pb::AgentMessage>,
    ) {
        let Some(link) = self.links.get(node).filter(|link| link.epoch == epoch) else { return };
        let at = link.pool;
        for message in messages.into_iter().filter_map(|message| message.message) {
            match message {
                FromAgent::EngineReport(report) => self.report(at, node, report),
                FromAgent::EngineBroke(broke) => {
                    let engine = EngineId(broke.engine);
                    if self.pools[at].is_at(engine, node) {
                        let trouble = wire::trouble(broke.trouble.unwrap_or_default());
                        tracing::warn!(%node, engine = engine.0, %trouble, "an engine broke");
                        self.events.push_back((at, Event::Broke(engine, trouble)));
                    }
                }
                FromAgent::GpuChanged(changed) => {
                    let (gpu, lost) = (changed.gpu, changed.lost);
                    if let Some(known) = self.pools[at].nodes.get_mut(node).filter(|n| gpu < n.gpus)
                    {
                        if lost {
                            known.lost.insert(gpu)
                        } else {
                            known.lost.remove(&gpu)
                        };
                        // A stray may have it still.
                        let lost = known.withheld().any(|withheld| withheld == gpu);
                        let node = node.clone();
                        self.events.push_back((at, Event::Gpu { node, gpu, lost }));
                    }
                }
                FromAgent::CallEnded(ended) => self.call_ended(at, node, ended),
                FromAgent::Leaving(leaving) => self.leaving(at, node, leaving.with_engines),
                _ => {}
            }
            // In order: what one leads to is done before the next.
            self.work();
        }
    }

    fn report(&mut self, at: usize, node: &NodeId, report: pb::EngineReport) {
        let (engine, now) = (EngineId(report.engine), self.now());
        if self.stray_report(at, node, &report) {
            return;
        }
        let pool = &mut self.pools[at];
        if !pool.is_at(engine, node) {
            return;
        }
        let Some(event) = wire::report(report) else { return };
        if let Event::Restored(_, _, Err(trouble))
        | Event::Evicted(_, _, Err(trouble))
        | Event::Stopped(_, _, Err(trouble)) = &event
        {
            tracing::warn!(%node, engine = engine.0, %trouble, "an order failed");
        }
        if let Some(moved) = pool.moves.get_mut(&engine) {
            let (took, kind) = (now.since(moved.ordered).as_secs_f64(), moved.kind);
            let metrics = &self.parts.metrics.gpu;
            match &event {
                Event::Restored(_, _, Ok(_)) => {
                    moved.restore = Some((moved.ordered, now));
                    let label = [pool.label(kind.service)];
                    metrics.restore_seconds.with_label_values(&label).observe(took);
                }
                Event::Evicted(_, _, Ok(_)) => {
                    let label = [pool.label(kind.service)];
                    metrics.evict_seconds.with_label_values(&label).observe(took);
                }
                _ => {}
            }
        }
        self.events.push_back((at, event));
        self.work();
        self.pools[at].tidy();
    }

    fn call_ended(&mut self, at: usize, node: &NodeId, ended: pb::CallEnded) {
        let Ok(action) = ActionId::new(&ended.action_id) else { return };
        let engine = EngineId(ended.engine);
        let result = match &ended.end {
            Some(pb::call_ended::End::Reply(_)) => Ok(()),
            Some(pb::call_ended::End::Fault(fault)) => Err(fault::from_proto(fault.clone())),
            None => Err(wire::lost()),
        };
        let here = |run: &Run| run.engine == engine && run.node == *node;
        let label = self.pools[at].core.engine(engine).map(|view| view.kind.service);
        let Some(call) =
            self.calls.get_mut(&action).filter(|call| call.run.as_ref().is_some_and(here))
        else {
            // Nobody waits for it any more. The engine is free all the same, if it is that node's.
            if self.pools[at].is_at(engine, node) {
                let action = action.clone();
                self.events.push_back((at, Event::Finished { action, engine, result }));
                self.work();
            }
            return self.acknowledge(node, &action);
        };
        if let Some(service) = label {
            let name = [self.pools[at].label(service)];
            self.parts.metrics.gpu.exec_seconds.with_label_values(&name).observe(ended.exec_s);
        }
        call.keeper = Some(node.clone());
        call.report = Some(ended);
        let event = Event::Finished { action: action.clone(), engine, result: result.clone() };
        self.events.push_back((at, event));
        self.work();
        // One whose engine was not taken over does not run in the core's books, but it may wait
        // there, since its caller has asked again.
        if self.pools[at].core.runs_on(&action).is_none() {
            self.ended(&action, result);
            self.events.push_back((at, Event::Cancel(action)));
            self.work();
        }
    }

    /// Lets an agent forget a call.
    pub(super) fn acknowledge(&mut self, node: &NodeId, action: &ActionId) {
        let action_id = action.as_str().to_owned();
        self.send(node, ToAgent::AckCall(pb::AckCall { action_id }));
    }

    /// Sends a message on the node's current link, if it has one.
    pub(super) fn send(&mut self, node: &NodeId, message: ToAgent) {
        let Some(link) = self.links.get(node) else { return };
        match link.outbox.write(pb::QueueMessage { message: Some(message) }, false) {
            Written::First => self.touched.push(Arc::clone(&link.outbox)),
            Written::More => {}
            Written::Closed | Written::Overflow => {
                let epoch = link.epoch;
                self.link_down(node, epoch);
            }
        }
    }
}

/// An engine as the core is told of it.
fn adopted(live: &pb::LiveEngine, kind: Kind, calls: &[pb::LiveCall], now: Time) -> Adopted {
    let on = calls.iter().filter(|call| call.engine == live.engine);
    let running = on.filter_map(|call| {
        let left = call.left.and_then(|left| Duration::try_from(left).ok());
        let deadline = now + left.unwrap_or_default() + PATIENCE;
        let action = ActionId::new(&call.action_id).ok()?;
        Some(Running { action, deadline, ended: call.ended })
    });
    Adopted {
        engine: EngineId(live.engine),
        kind,
        start: live.first_gpu,
        order: live.order.map(OrderId),
        proof: live.proof.as_ref().map(wire::proof),
        running: running.collect(),
    }
}
