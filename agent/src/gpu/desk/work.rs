//! The task behind the desk.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollwright_core::gpu::{Chunk, EngineId, Event, OrderId, Proof};
use rollwright_core::ids::ActionId;
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::queue_message::Message as FromQueue;
use tokio::sync::mpsc;

use super::calls::Calls;
use super::ending::Ending;
use super::{INBOX, Input, limits, wire};
use crate::gpu::driver::{Driver, Instruction};
use crate::gpu::spec::{Incident, Inventory};
use crate::gpu::{Caller, Station};

/// Instructions that wait for the driver before no more messages are taken.
const MOST_PENDING: usize = 4096;
/// Calls that run, or whose ends were not acknowledged.
const MOST_CALLS: usize = 4096;

/// An engine as the desk knows it.
#[derive(Debug)]
struct Known {
    service: String,
    chunk: Chunk,
    /// As it was verified last.
    proof: Option<Proof>,
    /// That is being carried out, or whose report may not have arrived.
    order: Option<OrderId>,
    report: Option<pb::EngineReport>,
}

/// A call until its end is acknowledged.
#[derive(Debug)]
struct Live {
    engine: EngineId,
    job: String,
    until: Instant,
    ended: Option<pb::CallEnded>,
}

/// The task's state.
pub(super) struct Work {
    inventory: Inventory,
    lost: BTreeSet<u32>,
    engines: BTreeMap<EngineId, Known>,
    live: HashMap<ActionId, Live>,
    calls: Arc<Calls>,
    driver: mpsc::Sender<Instruction>,
    /// For the driver; it is never waited for, since it waits for the desk.
    pending: VecDeque<Instruction>,
    link: Option<mpsc::Sender<pb::AgentMessage>>,
}

impl Work {
    /// Finds the engines of an earlier process of the agent, and works.
    pub(super) async fn open(station: Station, inbox: mpsc::Receiver<Input>) {
        let mut engines = BTreeMap::new();
        for found in station.found().await {
            tracing::info!(engine = found.engine.0, service = found.spec.service, at = %found.chunk, verified = found.proof.is_some(), "took over an engine");
            let (service, chunk, proof) = (found.spec.service.clone(), found.chunk, found.proof);
            engines
                .insert(found.engine, Known { service, chunk, proof, order: None, report: None });
        }
        let calls = Arc::new(Calls::default());
        // desk --instructions--> driver --events--> desk
        let (driver, instructions) = mpsc::channel(INBOX);
        let (events_tx, events) = mpsc::channel(INBOX);
        let Station { backend, device, inventory, incidents, care } = station;
        let caller = Arc::clone(&calls) as Arc<dyn Caller>;
        let of = Driver::new(Arc::clone(&backend), device, caller);
        let driving = tokio::spawn(of.run(instructions, events_tx));
        let work = Work {
            lost: inventory.lost.iter().copied().collect(),
            inventory,
            engines,
            live: HashMap::new(),
            calls,
            driver,
            pending: VecDeque::new(),
            link: None,
        };
        tokio::spawn(async move {
            if let Some(ending) = work.run(inbox, events, incidents).await {
                ending.carry_out(&*backend, driving).await;
            }
            drop(care);
        });
    }

    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        mut events: mpsc::Receiver<Event>,
        mut incidents: mpsc::Receiver<Incident>,
    ) -> Option<Ending> {
        let driver = self.driver.clone();
        loop {
            tokio::select! {
                input = inbox.recv(), if self.pending.len() < MOST_PENDING => match input {
                    Some(Input::Stop { clear, done }) => {
                        let engines = self.engines.into_keys().collect();
                        return Some(Ending { engines, clear, done });
                    }
                    Some(input) => self.input(input).await,
                    None => return None,
                },
                Some(event) = events.recv() => self.event(event).await,
                Some(incident) = incidents.recv() => self.incident(incident).await,
                permit = driver.reserve(), if !self.pending.is_empty() => match permit {
                    Ok(permit) => if let Some(next) = self.pending.pop_front() {
                        permit.send(next);
                    },
                    Err(_) => return None,
                },
            }
        }
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Queue(message) => self.message(*message).await,
            Input::Hello(reply) => {
                self.link = None;
                // A stream that has gone does not want it.
                let _ = reply.send(self.hello());
            }
            Input::Attach(outbox) => {
                self.link = Some(outbox);
                let reports = self.engines.values().filter_map(|known| known.report.clone());
                let reports = reports.map(FromAgent::EngineReport);
                let ended = self.live.values().filter_map(|live| live.ended.clone());
                let ended = ended.map(FromAgent::CallEnded);
                for message in reports.chain(ended).collect::<Vec<_>>() {
                    self.emit(message).await;
                }
            }
            Input::Detach => self.link = None,
            Input::Stop { .. } => {}
        }
    }

    async fn message(&mut self, message: FromQueue) {
        match message {
            FromQueue::RestoreEngine(restore) => self.restore(restore).await,
            FromQueue::EvictEngine(evict) => {
                let (engine, order) = (EngineId(evict.engine), OrderId(evict.order));
                let (residue, limit) = (evict.residue_bytes, limits::order(evict.limit));
                self.ordered(engine, order);
                self.pending.push_back(Instruction::Evict { engine, order, residue, limit });
            }
            FromQueue::StopEngine(stop) => {
                let (engine, order) = (EngineId(stop.engine), OrderId(stop.order));
                self.ordered(engine, order);
                // They are dropped with it, and nobody asks how they ended.
                self.live.retain(|action, live| {
                    let stays = live.engine != engine || live.ended.is_some();
                    if !stays {
                        self.calls.forget(action);
                    }
                    stays
                });
                let limit = limits::order(stop.limit);
                self.pending.push_back(Instruction::Stop { engine, order, limit });
            }
            FromQueue::StartCall(call) => self.start_call(call).await,
            FromQueue::CancelCall(cancel) => {
                let Ok(action) = ActionId::new(&cancel.action_id) else { return };
                let ended = self.live.get(&action).and_then(|live| live.ended.clone());
                if let Some(ended) = ended {
                    self.emit(FromAgent::CallEnded(ended)).await;
                } else {
                    let engine = EngineId(cancel.engine);
                    self.pending.push_back(Instruction::Cancel { action, engine });
                }
            }
            FromQueue::AckCall(ack) => {
                if let Ok(action) = ActionId::new(&ack.action_id)
                    && self.live.get(&action).is_some_and(|live| live.ended.is_some())
                {
                    self.live.remove(&action);
                }
            }
            // The node's own.
            _ => {}
        }
    }

    async fn restore(&mut self, restore: pb::RestoreEngine) {
        let (engine, order) = (EngineId(restore.engine), OrderId(restore.order));
        let limit = limits::order(restore.limit);
        let Some(spec) = restore.launch else {
            return self.wake(engine, order, restore.first_gpu, limit).await;
        };
        match wire::spec(spec)
            .and_then(|spec| Ok((wire::chunk(restore.first_gpu, spec.degree)?, spec)))
        {
            Ok((chunk, spec)) => {
                let service = spec.service.clone();
                let known = Known { service, chunk, proof: None, order: Some(order), report: None };
                self.engines.insert(engine, known);
                let spec = Arc::new(spec);
                self.pending.push_back(Instruction::Launch { engine, order, spec, chunk, limit });
            }
            Err(trouble) => {
                let report = wire::restored(engine, order, Err(trouble));
                self.emit(FromAgent::EngineReport(report)).await;
            }
        }
    }

    async fn wake(&mut self, engine: EngineId, order: OrderId, first: u32, limit: Duration) {
        let left = self.engines.get(&engine).map(|known| known.chunk);
        let elsewhere = left.filter(|left| left.start() != first);
        let to = elsewhere.map(|left| wire::chunk(first, left.degree().gpus())).transpose();
        self.ordered(engine, order);
        match to {
            Ok(to) => {
                if let Some((known, chunk)) = self.engines.get_mut(&engine).zip(to) {
                    known.chunk = chunk;
                }
                self.pending.push_back(Instruction::Wake { engine, order, to, limit });
            }
            Err(trouble) => {
                let report = wire::restored(engine, order, Err(trouble));
                if let Some(known) = self.engines.get_mut(&engine) {
                    known.report = Some(report.clone());
                }
                self.emit(FromAgent::EngineReport(report)).await;
            }
        }
    }

    /// What was verified before an order is not believed any more.
    fn ordered(&mut self, engine: EngineId, order: OrderId) {
        if let Some(known) = self.engines.get_mut(&engine) {
            (known.proof, known.order, known.report) = (None, Some(order), None);
        }
    }

    async fn start_call(&mut self, start: pb::StartCall) {
        let Ok(action) = ActionId::new(&start.action_id) else { return };
        let engine = EngineId(start.engine);
        // Its queue knows that the engine is resident: the report has arrived.
        if let Some(known) = self.engines.get_mut(&engine) {
            (known.order, known.report) = (None, None);
        }
        if let Some(live) = self.live.get(&action) {
            if let Some(ended) = live.ended.clone() {
                self.emit(FromAgent::CallEnded(ended)).await;
            }
            return;
        }
        if self.live.len() >= MOST_CALLS {
            let message = format!("the agent has {MOST_CALLS} calls: it takes no more");
            let fault = crate::fault::infrastructure("TooManyCalls", message);
            let ended = self.calls.ended(&action, engine, Err(fault));
            return self.emit(FromAgent::CallEnded(ended)).await;
        }
        let limit = limits::call(start.timeout);
        let (job, until) = (start.job.clone(), Instant::now() + limit);
        self.live.insert(action.clone(), Live { engine, job, until, ended: None });
        self.calls.put(action.clone(), start, limit);
        self.pending.push_back(Instruction::Run { action, engine });
    }

    async fn event(&mut self, event: Event) {
        let report = match event {
            Event::Restored(engine, order, result) => {
                self.verified(engine, order, result.as_ref().ok().copied());
                wire::restored(engine, order, result)
            }
            Event::Evicted(engine, order, result) => {
                self.verified(engine, order, result.as_ref().ok().copied());
                wire::evicted(engine, order, result)
            }
            Event::Stopped(engine, order, result) => {
                if matches!(result, Ok(0)) && self.is_last(engine, order) {
                    self.engines.remove(&engine);
                }
                wire::stopped(engine, order, result)
            }
            Event::Finished { action, engine, result } => {
                let ended = self.calls.ended(&action, engine, result);
                if let Some(live) = self.live.get_mut(&action) {
                    live.ended = Some(ended.clone());
                }
                return self.emit(FromAgent::CallEnded(ended)).await;
            }
            Event::Broke(engine, trouble) => {
                return self.incident(Incident::Broke(engine, trouble)).await;
            }
            // The driver says nothing else.
            _ => return,
        };
        if let Some(known) = self.engines.get_mut(&EngineId(report.engine))
            && known.order == Some(OrderId(report.order))
        {
            known.report = Some(report.clone());
        }
        self.emit(FromAgent::EngineReport(report)).await;
    }

    fn is_last(&self, engine: EngineId, order: OrderId) -> bool {
        self.engines.get(&engine).is_some_and(|known| known.order == Some(order))
    }

    fn verified(&mut self, engine: EngineId, order: OrderId, proof: Option<Proof>) {
        if self.is_last(engine, order)
            && let Some(known) = self.engines.get_mut(&engine)
        {
            known.proof = proof;
        }
    }

    async fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Broke(engine, trouble) => {
                tracing::warn!(engine = engine.0, %trouble, "an engine broke");
                if let Some(known) = self.engines.get_mut(&engine) {
                    known.proof = None;
                    // A report that was to be sent again is not true any more; of an order
                    // that is being carried out one is still to come.
                    if known.report.take().is_some() {
                        known.order = None;
                    }
                }
                let trouble = Some(wire::trouble(&trouble));
                self.emit(FromAgent::EngineBroke(pb::EngineBroke { engine: engine.0, trouble }))
                    .await;
            }
            Incident::Gpu { gpu, lost } => {
                tracing::warn!(gpu, lost, "a GPU changed");
                if lost {
                    self.lost.insert(gpu);
                } else {
                    self.lost.remove(&gpu);
                }
                self.emit(FromAgent::GpuChanged(pb::GpuChanged { gpu, lost })).await;
            }
        }
    }

    fn hello(&self) -> pb::GpuNode {
        let engines = self.engines.iter().map(|(engine, known)| pb::LiveEngine {
            engine: engine.0,
            service: known.service.clone(),
            degree: known.chunk.degree().gpus(),
            first_gpu: known.chunk.start(),
            order: known.order.map(|order| order.0),
            proof: known.proof.map(wire::proof),
        });
        let now = Instant::now();
        let calls = self.live.iter().map(|(action, live)| pb::LiveCall {
            action_id: action.as_str().to_owned(),
            engine: live.engine.0,
            ended: live.ended.is_some(),
            left: live.until.saturating_duration_since(now).try_into().ok(),
            job: live.job.clone(),
        });
        pb::GpuNode {
            pool: String::new(),
            gpus: self.inventory.gpus,
            memory_bytes: self.inventory.memory,
            host_bytes: self.inventory.host,
            lost: self.lost.iter().copied().collect(),
            engines: engines.collect(),
            calls: calls.collect(),
            fake: self.inventory.fake,
            agent: String::new(),
        }
    }

    async fn emit(&mut self, message: FromAgent) {
        if let Some(link) = &self.link
            && link.send(pb::AgentMessage { message: Some(message) }).await.is_err()
        {
            self.link = None;
        }
    }
}
