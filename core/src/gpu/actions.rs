//! The life of an action: it waits, runs, and ends once.

use std::time::Duration;

use super::command::Command;
use super::pool::{Action, Pool, Timer};
use super::proof::Trouble;
use super::tenant::{EngineId, Kind, State};
use super::{Degree, Phase};
use crate::fault::{Fault, FaultKind};
use crate::ids::ActionId;
use crate::time::Time;

/// Reason of the fault of an action whose engine could not be reached.
pub const ENGINE_UNREACHABLE: &str = "EngineUnreachable";

impl Pool {
    pub(super) fn submit(&mut self, id: ActionId, kind: Kind, deadline: Time) {
        if self.actions.contains_key(&id) {
            return;
        }
        if let Err(fault) = self.admit(kind) {
            self.out.push(Command::Ended { action: id, result: Err(fault) });
            return;
        }
        self.submitted += 1;
        let seq = self.submitted;
        self.timers.insert((deadline, Timer::Deadline(id.clone())));
        self.waiting.entry(kind).or_default().insert(seq, id.clone());
        self.actions.insert(id, Action { kind, seq, deadline, on: None });
    }

    pub(super) fn cancel(&mut self, id: &ActionId, now: Time) {
        let fault = Fault::new(FaultKind::Cancelled, "Cancelled", "the action was cancelled");
        self.give_up(id, fault, now);
    }

    pub(super) fn late(&mut self, id: &ActionId, now: Time) {
        if self.actions.get(id).is_some_and(|action| action.on.is_none()) {
            self.deadline(id, now);
        }
    }

    pub(super) fn deadline(&mut self, id: &ActionId, now: Time) {
        let Some(action) = self.actions.get(id) else { return };
        let name = self.service(action.kind).map_or("", |service| &service.name);
        let fault = if action.on.is_some() {
            let message = format!("reward service `{name}` did not answer by the deadline");
            Fault::new(FaultKind::Timeout, "RewardTimeout", message)
        } else if let Some(ailing) = self.ailing.get(&action.kind) {
            // It says why it waited in vain.
            ailing.last.clone()
        } else {
            let nobody = if self.known_nodes().next().is_none() {
                ": no agent of the pool offers GPUs; start one on each of its nodes, and see in its log that it reaches this queue"
            } else if !self.known_nodes().any(|node| self.is_up(node)) {
                ": the agents of all nodes of the pool are away; start them again, and see in their logs that they reach this queue"
            } else {
                ""
            };
            let degree = action.kind.degree;
            let message =
                format!("reward service `{name}` got no {degree} GPUs by the deadline{nobody}");
            Fault::new(FaultKind::Timeout, "GpuDeadline", message)
        };
        self.give_up(id, fault, now);
    }

    pub(super) fn finished(
        &mut self,
        id: &ActionId,
        on: EngineId,
        result: Result<(), Fault>,
        now: Time,
    ) {
        let Some(engine) = self.engines.get_mut(&on) else { return };
        let Some(started) = engine.running.remove(id) else { return };
        let kind = engine.kind;
        self.settle(on);
        if let Some(tenant) = self.chunks.get_mut(on) {
            tenant.used = now;
        }
        if !self.is_on(id, on) {
            return;
        }
        if result.is_ok() {
            self.learned.measured(kind, Phase::Run, now.since(started));
        }
        let silent = result.as_ref().is_err_and(|fault| fault.reason == ENGINE_UNREACHABLE);
        self.end(id, result);
        if silent {
            // Its process lives, and serves nobody: the next call must not be sent there.
            self.broke(on, &Trouble::NoAnswer, now);
        }
    }

    /// A cancelled action did not end: its engine is of no use.
    pub(super) fn still_running(&mut self, on: EngineId, id: &ActionId, now: Time) {
        if self.engines.get(&on).is_some_and(|engine| engine.running.contains_key(id)) {
            self.broke(on, &Trouble::Hung, now);
        }
    }

    /// Reports the end of an action. What it runs on is not touched.
    pub(super) fn end(&mut self, id: &ActionId, result: Result<(), Fault>) {
        let Some(action) = self.actions.remove(id) else { return };
        self.timers.remove(&(action.deadline, Timer::Deadline(id.clone())));
        if action.on.is_none()
            && let Some(line) = self.waiting.get_mut(&action.kind)
        {
            line.remove(&action.seq);
            if line.is_empty() {
                self.waiting.remove(&action.kind);
            }
        }
        self.out.push(Command::Ended { action: id.clone(), result });
    }

    /// Starts up to `most` of those that wait for the engine's service.
    pub(super) fn run(&mut self, on: EngineId, most: usize, now: Time) {
        let Some(engine) = self.engines.get_mut(&on).filter(|e| e.state == State::Resident) else {
            return;
        };
        let Some(line) = self.waiting.get_mut(&engine.kind) else { return };
        let node = self.nodes[engine.chunk.node].name.clone();
        for _ in 0..most {
            let Some((_, id)) = line.pop_first() else { break };
            let Some(action) = self.actions.get_mut(&id) else { continue };
            action.on = Some(on);
            engine.running.insert(id.clone(), now);
            self.stats.runs += 1;
            let deadline = action.deadline;
            self.out.push(Command::Run { action: id, engine: on, node: node.clone(), deadline });
        }
        if line.is_empty() {
            self.waiting.remove(&engine.kind);
        }
        let kind = engine.kind;
        if self.chunks.get_mut(on).is_some_and(|tenant| std::mem::take(&mut tenant.fresh)) {
            let term = self.term(kind);
            self.engines.entry(on).and_modify(|engine| engine.term = now + term);
        }
        self.settle(on);
        self.mark_wanted(now);
    }

    /// How long a resident serves those that wait for it before it makes room: what it takes to
    /// put it to sleep and to wake it again.
    fn term(&self, kind: Kind) -> Duration {
        let moves = [Phase::Evict, Phase::Wake].map(|phase| self.expected(kind, phase));
        moves.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Ends an action that nobody needs any more. While it still runs, its GPUs are in use.
    fn give_up(&mut self, id: &ActionId, fault: Fault, now: Time) {
        let Some(action) = self.actions.get(id) else { return };
        if let Some(on) = action.on {
            self.cancel_on(on, id.clone(), now);
        }
        self.end(id, Err(fault));
    }

    /// Cancels what runs on an engine, and watches that it ends.
    pub(super) fn cancel_on(&mut self, on: EngineId, id: ActionId, now: Time) {
        let Some(engine) = self.engines.get(&on) else { return };
        let node = self.node_of(engine.chunk);
        self.timers.insert((now + self.config.grace, Timer::Cancelled(on, id.clone())));
        self.out.push(Command::Cancel { action: id, engine: on, node });
    }

    /// Whether an action that has not ended runs on this engine.
    pub(super) fn is_on(&self, id: &ActionId, engine: EngineId) -> bool {
        self.actions.get(id).is_some_and(|action| action.on == Some(engine))
    }

    /// Whether the pool could ever run it.
    fn admit(&self, kind: Kind) -> Result<(), Fault> {
        let user = |reason, message| Err(Fault::new(FaultKind::User, reason, message));
        let Some(service) = self.service(kind) else {
            let message = "the action names a reward service that the pool does not have".into();
            return user("UnknownRewardService", message);
        };
        let (name, degree) = (&service.name, kind.degree);
        let Some(need) = service.degrees.get(&degree) else {
            let offered: Vec<String> = service.degrees.keys().map(Degree::to_string).collect();
            let message = format!(
                "reward service `{name}` has no engine on {degree} GPUs: use one of {}",
                offered.join(", ")
            );
            return user("DegreeNotOffered", message);
        };
        if self.actions.len() >= self.config.max_actions {
            let message = format!(
                "the pool has {} actions, its most: try again later",
                self.config.max_actions
            );
            let retry_after = Some(self.config.backoff.first);
            let fault = Fault::new(FaultKind::Infrastructure, "QueueFull", message);
            return Err(Fault { retry_after, ..fault });
        }
        // Before any node is known, nothing is: then the deadline decides.
        let sizes: Vec<(u32, u64, u64)> = self
            .known_nodes()
            .filter_map(|node| {
                let (gpus, memory) = self.chunks.node(node)?;
                Some((gpus, memory, self.nodes[node].host))
            })
            .collect();
        if sizes.is_empty() {
            return Ok(());
        }
        let wide: Vec<_> = sizes.iter().filter(|(gpus, ..)| *gpus >= degree.gpus()).collect();
        if wide.is_empty() {
            let most = sizes.iter().map(|(gpus, ..)| *gpus).max().unwrap_or(0);
            let message = format!(
                "reward service `{name}` needs {degree} GPUs of one node, and the largest node of the pool has {most}: use a smaller degree"
            );
            return user("DegreeFitsNoChunk", message);
        }
        let roomy: Vec<_> = wide.iter().filter(|(_, memory, _)| *memory >= need.device).collect();
        if roomy.is_empty() {
            let message = format!(
                "reward service `{name}` needs {} bytes of each of {degree} GPUs, more than any has: use a larger degree",
                need.device
            );
            return user("DeviceMemoryShort", message);
        }
        if roomy.iter().all(|(.., host)| *host < need.host) {
            let message = format!(
                "reward service `{name}` keeps {} bytes of its node's memory, more than any node allows its engines: raise the budget",
                need.host
            );
            return user("HostMemoryShort", message);
        }
        Ok(())
    }
}
