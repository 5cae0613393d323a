//! What the core decides, on its way to the agents.

use std::time::Duration;

use pb::queue_message::Message as ToAgent;
use rollwright_core::gpu::{Command, EngineId};
use rollwright_core::ids::{ActionId, NodeId};
use rollwright_core::time::Time;
use rollwright_proto::v1 as pb;

use super::actor::Gpu;
use super::calls::Run;
use super::pool::Move;
use super::wire;

impl Gpu {
    pub(super) fn carry_out(&mut self, at: usize, command: Command) {
        let now = self.now();
        match command {
            Command::Restore { engine, order, node, chunk, kind, launch, limit } => {
                let pool = &mut self.pools[at];
                pool.tallies[kind.service.0].restores += 1;
                pool.moves.insert(engine, Move { kind, ordered: now, restore: None });
                let how = if launch { "launch" } else { "wake" };
                let labels = [pool.label(kind.service), how];
                self.parts.metrics.gpu.restores.with_label_values(&labels).inc();
                let spec = wire::spec(&pool.services[kind.service.0], kind.degree);
                let restore = pb::RestoreEngine {
                    engine: engine.0,
                    order: order.0,
                    launch: launch.then_some(spec),
                    first_gpu: chunk.start(),
                    limit: wire::duration(limit),
                };
                self.send(&node, ToAgent::RestoreEngine(restore));
            }
            Command::Evict { engine, order, node, residue, limit } => {
                let pool = &mut self.pools[at];
                if let Some(view) = pool.core.engine(engine) {
                    let kind = view.kind;
                    pool.tallies[kind.service.0].evictions += 1;
                    pool.moves.insert(engine, Move { kind, ordered: now, restore: None });
                    let labels = [pool.label(kind.service)];
                    self.parts.metrics.gpu.evictions.with_label_values(&labels).inc();
                }
                let evict = pb::EvictEngine {
                    engine: engine.0,
                    order: order.0,
                    residue_bytes: residue,
                    limit: wire::duration(limit),
                };
                self.send(&node, ToAgent::EvictEngine(evict));
            }
            Command::Stop { engine, order, node, limit } => {
                let limit = wire::duration(limit);
                let stop = pb::StopEngine { engine: engine.0, order: order.0, limit };
                self.send(&node, ToAgent::StopEngine(stop));
            }
            Command::Run { action, engine, node, deadline } => {
                self.run_call(at, &action, engine, &node, deadline);
            }
            Command::Cancel { action, engine, node } => {
                self.cancel_run(at, action, engine, &node);
            }
            Command::Ended { action, result } => self.ended(&action, result),
            Command::Drained(node) => self.drained(at, &node),
            Command::Forgotten(node) => self.forgotten(at, &node),
        }
    }

    fn run_call(
        &mut self,
        at: usize,
        action: &ActionId,
        engine: EngineId,
        node: &NodeId,
        deadline: Time,
    ) {
        let now = self.now();
        let pool = &mut self.pools[at];
        let Some(call) = self.calls.get_mut(action) else { return };
        let Some(asked) = &call.asked else { return };
        let (service, job) = (call.service, call.job.clone());
        let restored_for = pool.restored_for(engine, call.submitted);
        let degree = pool.core.engine(engine).map_or(0, |view| view.kind.degree.gpus());
        call.run = Some(Run {
            engine,
            node: node.clone(),
            degree,
            began: now,
            restored_for: restored_for.unwrap_or(Duration::ZERO),
        });
        let tally = &mut pool.tallies[service.0];
        tally.calls += 1;
        tally.running += 1;
        tally.hits += u64::from(restored_for.is_none());
        let name = pool.label(service);
        let metrics = &self.parts.metrics.gpu;
        let resident = if restored_for.is_none() { "yes" } else { "no" };
        metrics.calls.with_label_values(&[name, resident]).inc();
        let waited = now.since(call.submitted).as_secs_f64();
        metrics.queue_seconds.with_label_values(&[name]).observe(waited);
        let limit = pool.services[service.0].timeout.min(deadline.since(now));
        let start = pb::StartCall {
            action_id: action.as_str().to_owned(),
            engine: engine.0,
            method: asked.request.method.clone(),
            path: asked.request.path.clone(),
            headers: asked.request.headers.clone(),
            body: asked.request.body.clone(),
            timeout: wire::duration(limit),
            job: job.as_str().to_owned(),
        };
        self.hold(action, start);
    }
}
