//! Actions: orders to the runners, and what they report.

use std::sync::Arc;
use std::time::Instant;

use rollwright_core::fault::Fault;
use rollwright_init::protocol::MAX_OUTPUT_LIMIT;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::{
    ActionEnded, ActionOutput, ActionStarted, LiveAction, ResizeAction, StartAction, action_ended,
};
use tokio::sync::mpsc::error::TrySendError;

use super::actor::{Action, Actor, Entry};
use crate::runner::command::resolve;
use crate::runner::{ORDERS, Order, Report, failed};
use crate::{fault, policy};

/// Most actions at once in one sandbox: what its helper takes.
const MAX_ACTIONS: usize = 256;

impl Actor {
    pub(super) async fn start(&mut self, start: StartAction) {
        if let Some(known) = self.actions.get(&start.action_id) {
            let again = known.live.attempt < start.attempt && known.not_started();
            if !again {
                return self.say_again(&start.action_id).await;
            }
        }
        let (id, attempt) = (start.action_id.clone(), start.attempt);
        let live = LiveAction {
            action_id: id.clone(),
            attempt,
            trajectory_id: start.trajectory_id.clone(),
            cores: start.cores.clone(),
            cpu_units: start.cpu_units,
            ended: false,
        };
        let ordered = Instant::now();
        let action = Action {
            live,
            sandbox: Arc::from(""),
            ordered,
            started: false,
            outputs: Vec::new(),
            end: None,
        };
        self.actions.insert(id.clone(), action);
        if let Err((fault, not_started)) = self.order_start(start) {
            self.ended(failed(&id, attempt, &fault, not_started)).await;
        }
    }

    /// Checks a start and hands it to the sandbox's runner. The error says
    /// whether another try could do better.
    fn order_start(&mut self, mut start: StartAction) -> Result<(), (Fault, bool)> {
        let trajectory = start.trajectory_id.clone();
        let lost = |message: &str| (fault::infrastructure("SandboxLost", message), true);
        self.check_grant(&start.cores, start.cpu_units).map_err(|fault| (fault, false))?;
        let limit = self.ground.config.policy.max_output_bytes.min(MAX_OUTPUT_LIMIT);
        start.output_limit = start.output_limit.min(limit);
        let before = self.handover.before(&start.cores);
        let Some(Entry::Ready(ready)) = self.sandboxes.get_mut(&trajectory) else {
            return Err(lost("the trajectory has no sandbox on this node"));
        };
        if ready.running >= MAX_ACTIONS {
            let message =
                format!("{MAX_ACTIONS} actions run in this sandbox already: wait for one");
            return Err((fault::user("TooManyActions", message), false));
        }
        let sandbox = &ready.sandbox;
        let env = sandbox.action_env();
        let workdir = policy::workdir(&sandbox.spec);
        let command = start.command.take().unwrap_or_default();
        // A malleable one starts for the most that it may get here.
        let most = start.most_units.min(self.ground.cores.len() as f64);
        let command = resolve(command, start.cpu_units.max(most), &env, workdir);
        start.command = Some(command.map_err(|fault| (fault, false))?);
        let name = Arc::clone(&sandbox.name);
        let action_id = start.action_id.clone();
        let orders = before.into_iter().map(Order::Await);
        for order in orders.chain([Order::Start(Box::new(start))]) {
            match sandbox.orders_tx.try_send(order) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Err(lost("the sandbox has just ended")),
                Err(TrySendError::Full(_)) => return Err(lost("the sandbox takes no orders")),
            }
        }
        ready.running += 1;
        if let Some(action) = self.actions.get_mut(&action_id) {
            action.sandbox = name;
        }
        self.ground.metrics.actions_running.inc();
        self.touch(&trajectory);
        Ok(())
    }

    /// The queue is trusted with these cores only.
    fn check_grant(&self, cores: &[u32], units: f64) -> Result<(), Fault> {
        let foreign = cores.iter().find(|core| !self.ground.cores.iter().any(|own| own == **core));
        if let Some(core) = foreign {
            let message = format!("core {core} is not one that this node gives to actions");
            return Err(fault::user("InvalidGrant", message));
        }
        if cores.is_empty() || !units.is_finite() || units <= 0.0 {
            let message = format!("{} cores and {units} units: both must be above 0", cores.len());
            return Err(fault::user("InvalidGrant", message));
        }
        Ok(())
    }

    /// The queue asks for what it has asked for before.
    async fn say_again(&mut self, action_id: &str) {
        let Some(action) = self.actions.get(action_id) else { return };
        let mut messages: Vec<FromAgent> = Vec::new();
        if action.started {
            messages.push(started(action_id, action.live.attempt));
        }
        messages.extend(action.outputs.iter().cloned().map(FromAgent::ActionOutput));
        messages.extend(action.end.iter().map(|end| FromAgent::ActionEnded((**end).clone())));
        for message in messages {
            self.emit(message).await;
        }
    }

    pub(super) async fn resize(&mut self, resize: ResizeAction) {
        if let Err(fault) = self.check_grant(&resize.cores, resize.cpu_units) {
            tracing::warn!(action = resize.action_id, %fault, "an action is not resized");
            return;
        }
        let ResizeAction { action_id, cores, cpu_units } = resize;
        let Some(action) = self.actions.get_mut(&action_id) else { return };
        let taken: Vec<u32> =
            cores.iter().filter(|core| !action.live.cores.contains(core)).copied().collect();
        let before = self.handover.before(&taken);
        let left = self.handover.leave(&action.live.cores, &cores);
        action.live.cores.clone_from(&cores);
        action.live.cpu_units = cpu_units;
        for left in before {
            self.order(&action_id, Order::Await(left)).await;
        }
        self.order(&action_id.clone(), Order::Resize { action_id, cores, cpu_units, left }).await;
    }

    pub(super) async fn kill(&mut self, action_id: &str) {
        self.order(action_id, Order::Kill { action_id: action_id.to_owned() }).await;
    }

    pub(super) async fn ack(&mut self, action_id: &str) {
        let Some(action) = self.actions.get(action_id).filter(|action| action.end.is_some()) else {
            return;
        };
        let attempt = action.live.attempt;
        self.order(action_id, Order::Ack { action_id: action_id.to_owned(), attempt }).await;
        self.actions.remove(action_id);
    }

    /// Sends an order to the runner of an action, if its sandbox is still up.
    async fn order(&mut self, action_id: &str, order: Order) {
        let action = self.actions.get(action_id);
        let Some(Entry::Ready(ready)) =
            action.and_then(|action| self.sandboxes.get(&action.live.trajectory_id))
        else {
            return;
        };
        // A runner that has ended reports that itself.
        if let Err(TrySendError::Full(_)) = ready.sandbox.orders_tx.try_send(order) {
            let trajectory = action.map(|action| action.live.trajectory_id.clone());
            let message = format!("{ORDERS} orders wait: its runner is stuck");
            let fault = fault::infrastructure("SandboxStuck", message);
            self.lose(&trajectory.unwrap_or_default(), &fault).await;
        }
    }

    pub(super) async fn report(&mut self, sandbox: Arc<str>, report: Report) {
        match report {
            Report::Started { action_id, attempt } => self.started(&action_id, attempt).await,
            Report::Output(output) => self.output(output).await,
            Report::Ended(ended) => self.ended(*ended).await,
            Report::Lost(fault) => {
                if let Some(trajectory) = self.trajectories.get(&sandbox).cloned() {
                    self.lose(&trajectory, &fault).await;
                } else if let Some(made) = self.warm.remove(|made| made.sandbox.name == sandbox) {
                    self.remove_in_background(made.sandbox);
                    self.refill();
                }
            }
        }
    }

    async fn started(&mut self, action_id: &str, attempt: u32) {
        let Some(action) = self.actions.get_mut(action_id) else { return };
        if action.started || action.live.attempt != attempt {
            return;
        }
        action.started = true;
        self.ground.metrics.start_seconds.observe(action.ordered.elapsed().as_secs_f64());
        self.emit(started(action_id, attempt)).await;
    }

    async fn output(&mut self, output: ActionOutput) {
        let Some(action) = self.actions.get_mut(&output.action_id) else { return };
        if action.end.is_some() {
            return;
        }
        let length = output.output.as_ref().map_or(0, |output| output.data.len());
        self.ground.metrics.output_bytes.inc_by(length as u64);
        keep(&mut action.outputs, output.clone());
        self.emit(FromAgent::ActionOutput(output)).await;
    }

    /// An action ended: once, whoever says it first.
    async fn ended(&mut self, ended: ActionEnded) {
        let Some(action) = self.actions.get_mut(&ended.action_id) else { return };
        if action.end.is_some() || action.live.attempt != ended.attempt {
            return;
        }
        action.live.ended = true;
        action.end = Some(Box::new(ended.clone()));
        let (trajectory, had_runner) =
            (action.live.trajectory_id.clone(), !action.sandbox.is_empty());
        let metrics = &self.ground.metrics;
        metrics.actions_ended.with_label_values(&[end_word(&ended)]).inc();
        if had_runner {
            metrics.actions_running.dec();
            if let Some(Entry::Ready(ready)) = self.sandboxes.get_mut(&trajectory) {
                ready.running = ready.running.saturating_sub(1);
            }
            self.touch(&trajectory);
        }
        self.emit(FromAgent::ActionEnded(ended)).await;
    }

    /// Everything that runs in a sandbox ends in this fault.
    pub(super) async fn end_all(&mut self, sandbox: &Arc<str>, fault: &Fault) {
        let running: Vec<(String, u32)> = self
            .actions
            .values()
            .filter(|action| action.sandbox == *sandbox && action.end.is_none())
            .map(|action| (action.live.action_id.clone(), action.live.attempt))
            .collect();
        for (id, attempt) in running {
            self.ended(failed(&id, attempt, fault, false)).await;
        }
    }
}

impl Action {
    fn not_started(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.not_started)
    }
}

/// Output that comes in smaller pieces than this is kept joined: a program that writes
/// byte by byte must not cost a message of memory for each.
const KEPT_PIECE: usize = 4096;

/// Adds output to what is kept for a repeat.
fn keep(outputs: &mut Vec<ActionOutput>, output: ActionOutput) {
    if let Some(last) = outputs.last_mut()
        && let (Some(kept), Some(new)) = (&mut last.output, &output.output)
        && kept.stream == new.stream
        && new.dropped_before == 0
        && kept.data.len() + new.data.len() <= KEPT_PIECE
        && last.offset + kept.data.len() as u64 == output.offset
    {
        kept.data = [&kept.data[..], &new.data[..]].concat().into();
    } else {
        outputs.push(output);
    }
}

fn started(action_id: &str, attempt: u32) -> FromAgent {
    FromAgent::ActionStarted(ActionStarted { action_id: action_id.to_owned(), attempt })
}

/// How it ended, as a metric's label.
fn end_word(ended: &ActionEnded) -> &'static str {
    use rollwright_proto::v1::fault::Kind;
    match &ended.end {
        Some(action_ended::End::Finished(end)) if end.out_of_memory => "out_of_memory",
        Some(action_ended::End::Finished(end)) if end.signal.is_some() => "signal",
        Some(action_ended::End::Finished(_)) => "exit",
        Some(action_ended::End::Fault(fault)) => match fault.kind() {
            Kind::User => "user",
            Kind::Action => "action",
            Kind::Timeout => "timeout",
            Kind::Cancelled => "cancelled",
            Kind::Infrastructure | Kind::Stale | Kind::Unspecified => "infrastructure",
        },
        None => "infrastructure",
    }
}

#[cfg(test)]
mod tests {
    use rollwright_proto::v1::Output;

    use super::*;

    fn output(offset: u64, stream: i32, data: &str) -> ActionOutput {
        ActionOutput {
            action_id: "a".into(),
            output: Some(Output {
                stream,
                data: data.to_owned().into_bytes().into(),
                ..Output::default()
            }),
            offset,
        }
    }

    #[test]
    fn output_that_comes_byte_by_byte_is_kept_joined() {
        let mut kept = Vec::new();
        for offset in 0..10_000 {
            keep(&mut kept, output(offset, 1, "x"));
        }
        assert_eq!(kept.len(), 10_000_usize.div_ceil(KEPT_PIECE));
        // Another stream, or a cut before it, begins a new piece.
        keep(&mut kept, output(10_000, 2, "y"));
        let mut cut = output(10_001, 2, "z");
        cut.output.as_mut().unwrap().dropped_before = 7;
        keep(&mut kept, cut);
        assert_eq!(kept.len(), 10_000_usize.div_ceil(KEPT_PIECE) + 2);
        let mut at = 0;
        for piece in &kept[..3] {
            assert_eq!(piece.offset, at);
            at += piece.output.as_ref().unwrap().data.len() as u64;
        }
        assert_eq!(at, 10_000);
    }
}
