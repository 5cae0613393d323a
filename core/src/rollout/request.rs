//! Generation requests: from arrival to answer, and the token log of those recorded.

use super::turn::{self, Turn};
use super::{Ask, Command, Rollout};
use crate::fault::{Fault, FaultKind};
use crate::router::{self, Outcome};
use crate::time::Time;
use crate::tokens::{Finish, TokenFault};
use crate::trajectory::{self, Purpose};
use crate::version::{RequestId, Version};

impl Rollout {
    pub(super) fn arrived(&mut self, request: RequestId, ask: Ask, now: Time) -> Result<(), Fault> {
        let mut routed = router::Ask {
            trajectory: ask.trajectory,
            task: ask.task,
            priority: 0,
            at_least: None,
            pinned: None,
        };
        let group = routed.trajectory.as_ref().and_then(|trajectory| {
            let group = self.trajectories.trajectory(trajectory.as_str())?.group();
            self.trajectories.group(group.as_str())
        });
        if let (Some(group), Some(trajectory)) = (group, routed.trajectory.clone()) {
            routed.task = group.task().clone();
            let recorded = group.settings().recorded;
            if let Purpose::Evaluation { pinned } = group.settings().purpose {
                routed.pinned = Some(pinned);
            }
            let log = self.logs.get(&trajectory);
            if recorded && log.is_some_and(|log| log.in_turn()) {
                return Err(Fault::from(&TokenFault::TurnOpen));
            }
            routed.at_least = log.and_then(|log| log.newest_version());
            let began = trajectory::Event::TurnBegan { trajectory: trajectory.clone(), request };
            self.live(began, now)?;
            self.turns.insert(request, Turn::new(trajectory, recorded));
        }
        let arrived = self.route(router::Event::Arrived { request, ask: routed }, now);
        if arrived.is_err() {
            self.lose_turn(request, now);
        }
        arrived
    }

    pub(super) fn prompted(&mut self, request: RequestId, prompt: &[u32]) -> Result<(), Fault> {
        let cap = self.config.cap;
        let turn = self.turns.get_mut(&request).ok_or_else(over)?;
        let log = self.logs.entry(turn.trajectory.clone()).or_insert_with(|| turn::begin(cap));
        if turn.prompted {
            // Sent again: the engine must see what it saw before, and what it has made since.
            if prompt == log.context() {
                return Ok(());
            }
            if prompt == prefix_of_turn(log) {
                return log.restart_turn().map_err(|fault| Fault::from(&fault));
            }
            let message = "the engine sees another prompt than before for the same turn";
            return Err(Fault::new(FaultKind::Infrastructure, "PromptChanged", message));
        }
        log.begin_turn(prompt).map_err(|fault| Fault::from(&fault))?;
        turn.prompted = true;
        Ok(())
    }

    pub(super) fn generated(
        &mut self,
        request: RequestId,
        ids: &[u32],
        logprobs: &[f32],
        said: Option<Version>,
        now: Time,
    ) -> Result<(), Fault> {
        let turn = self.turns.get_mut(&request).ok_or_else(over)?;
        let version = turn.version.ok_or_else(over)?;
        if let Some(said) = said.filter(|said| *said != version) {
            let message = format!(
                "the engine says that version {said} made these tokens, and it should hold {version}"
            );
            return Err(Fault::new(FaultKind::Infrastructure, "EngineVersionMismatch", message));
        }
        if turn.restart {
            return Ok(());
        }
        let log = self.logs.get_mut(&turn.trajectory).ok_or_else(over)?;
        log.append(ids, logprobs, version).map_err(|fault| Fault::from(&fault))?;
        if !ids.is_empty() && turn.noted.replace(version) != Some(version) {
            let trajectory = turn.trajectory.clone();
            return self.live(trajectory::Event::Generated { trajectory, version }, now);
        }
        Ok(())
    }

    pub(super) fn restarted(&mut self, request: RequestId) -> Result<(), Fault> {
        let turn = self.turns.get_mut(&request).ok_or_else(over)?;
        turn.restart = false;
        match self.logs.get_mut(&turn.trajectory) {
            Some(log) if turn.prompted => log.restart_turn().map_err(|fault| Fault::from(&fault)),
            _ => Ok(()),
        }
    }

    pub(super) fn ended(
        &mut self,
        request: RequestId,
        outcome: Outcome,
        finish: Option<Finish>,
        now: Time,
    ) -> Result<(), Fault> {
        if let Outcome::Done(usage) = &outcome
            && let Some(turn) = self.turns.remove(&request)
        {
            let brought = match self.logs.get_mut(&turn.trajectory) {
                Some(log) if turn.recorded && turn.prompted => {
                    log.end_turn(finish.unwrap_or(Finish::Other))
                        .map_err(|fault| Fault::from(&fault))?;
                    trajectory::Turn::Recorded(turn::state(log))
                }
                _ if turn.recorded => trajectory::Turn::Lost,
                _ => trajectory::Turn::Unrecorded {
                    prompt_tokens: usage.prompt_tokens.into(),
                    generated_tokens: usage.output_tokens.into(),
                },
            };
            self.turn_ended(request, turn, brought, now);
        }
        self.route(router::Event::Ended { request, outcome }, now)
    }

    /// The request's client gets no answer: what it has brought is dropped.
    pub(super) fn lose_turn(&mut self, request: RequestId, now: Time) {
        let Some(turn) = self.turns.remove(&request) else { return };
        if turn.prompted
            && let Some(log) = self.logs.get_mut(&turn.trajectory)
            && log.in_turn()
        {
            let abandoned = log.abandon_turn();
            debug_assert!(abandoned.is_ok(), "{abandoned:?}");
        }
        self.turn_ended(request, turn, trajectory::Turn::Lost, now);
    }

    fn turn_ended(&mut self, request: RequestId, of: Turn, turn: trajectory::Turn, now: Time) {
        let ended = trajectory::Event::TurnEnded { trajectory: of.trajectory, request, turn };
        let done = self.live(ended, now);
        debug_assert!(done.is_ok(), "{done:?}");
    }

    /// Gives the router an event, and carries its commands on.
    pub(super) fn route(&mut self, event: router::Event, now: Time) -> Result<(), Fault> {
        for command in self.router.on_event(event, now)? {
            match command {
                router::Command::Send { request, worker, prefill, moved } => {
                    let version = self.router.version(&worker);
                    if let Some(turn) = self.turns.get_mut(&request) {
                        turn.version = version.or_else(|| Some(self.weights.current()));
                        if std::mem::take(&mut turn.restart)
                            && let Some(log) = self.logs.get_mut(&turn.trajectory)
                            && log.in_turn()
                        {
                            let restarted = log.restart_turn();
                            debug_assert!(restarted.is_ok(), "{restarted:?}");
                        }
                    }
                    self.out.push(Command::Send { request, worker, prefill, moved });
                }
                router::Command::Refuse { request, fault } => {
                    self.lose_turn(request, now);
                    self.out.push(Command::Refuse { request, fault });
                }
                router::Command::Abort { request, worker, restart } => {
                    if let Some(turn) = self.turns.get_mut(&request) {
                        turn.restart |= restart;
                    }
                    self.out.push(Command::TakeBack { request, worker, restart });
                }
                router::Command::Idle { worker } => {
                    if self.router.drains(&worker) {
                        self.out.push(Command::Drained(worker.clone()));
                    }
                    self.idle.push_back(worker);
                }
                router::Command::Lacks(role) => self.out.push(Command::Lacks(role)),
                router::Command::Fallback { task, wanted, got } => {
                    self.out.push(Command::Fallback { task, wanted, got });
                }
            }
        }
        Ok(())
    }
}

/// The open turn's prompt.
fn prefix_of_turn(log: &crate::tokens::TokenLog) -> &[u32] {
    let context = log.context();
    &context[..context.len() - log.turn_tokens().len()]
}

/// Tokens of a request that is answered or withdrawn already.
fn over() -> Fault {
    Fault::new(FaultKind::Cancelled, "TurnOver", "the turn has ended already")
}
