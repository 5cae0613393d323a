//! The rollouts of one job: one event in, commands out.
//!
//! [`Router`], [`Trajectories`], [`Rewards`], [`Buffer`] and [`Weights`] each decide their
//! own part and know nothing of each other; here their commands become each other's events.
//! So one abort reaches the request in flight, the actions, the sandbox and the reward
//! call, and a new version reaches the workers, the running trajectories and the buffer.

mod command;
mod config;
mod event;
mod life;
mod request;
#[cfg(test)]
mod tests;
mod turn;
mod update;

use std::collections::{BTreeMap, HashMap, VecDeque};

pub use command::Command;
pub use config::Config;
pub use event::{Ask, Event, Recovered};

use self::turn::Turn;
use crate::buffer::{self, Buffer};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, TrajectoryId, WorkerId};
use crate::reward::{self, Rewards};
use crate::router::{self, Router};
use crate::time::Time;
use crate::tokens::TokenLog;
use crate::trajectory::{self, OpenGroup, Purpose, Trajectories};
use crate::version::{RequestId, Version};
use crate::weights::{self, Weights};

/// The state of a job's rollouts.
///
/// Memory: what its parts hold, and the token logs of the trajectories that are not
/// scored yet.
#[derive(Debug)]
pub struct Rollout {
    config: Config,
    router: Router,
    trajectories: Trajectories,
    rewards: Rewards,
    buffer: Buffer,
    weights: Weights,
    /// Turns of trajectories that groups opened, from arrival to answer.
    turns: HashMap<RequestId, Turn>,
    /// Logs of trajectories that generate or are being scored.
    logs: HashMap<TrajectoryId, Box<TokenLog>>,
    /// Evaluations that hold a version.
    pins: BTreeMap<GroupId, Version>,
    /// Held workers that have become idle. The weights hear of it when the commands that
    /// they have given are all carried out: their state is ahead of the router's until then.
    idle: VecDeque<WorkerId>,
    out: Vec<Command>,
}

impl Rollout {
    /// Nothing is open, no worker is there, and the version is 0.
    pub fn new(config: Config) -> Self {
        let version = Version::default();
        Self {
            router: Router::new(config.router.clone()),
            trajectories: Trajectories::new(config.trajectory.clone(), version),
            rewards: Rewards::new(config.reward.clone()),
            buffer: Buffer::new(config.buffer.clone()),
            weights: Weights::new(config.weights.clone(), version, weights::Source::Launch),
            turns: HashMap::new(),
            logs: HashMap::new(),
            pins: BTreeMap::new(),
            idle: VecDeque::new(),
            out: Vec::new(),
            config,
        }
    }

    /// Handles one event. A refused one changes nothing.
    pub fn on_event(&mut self, event: Event, now: Time) -> Result<Vec<Command>, Fault> {
        let handled = self.handle(event, now).and_then(|()| self.tell_idle(now));
        // What a refused event has set off all the same comes with the next one.
        handled.map(|()| std::mem::take(&mut self.out))
    }

    fn handle(&mut self, event: Event, now: Time) -> Result<(), Fault> {
        match event {
            Event::Recovered(found) => self.recover(found, now),
            Event::WorkerJoined { worker, spec } => self.worker_joined(worker, spec, now),
            Event::WorkerLeft(worker) => self.worker_left(&worker, now),
            Event::WorkerDrains(worker) => self.route(router::Event::Drain(worker), now),
            Event::WorkerStays(worker) => self.route(router::Event::Stay(worker), now),
            Event::WorkerResized { worker, slots } => {
                self.route(router::Event::Slots { worker, slots }, now)
            }
            Event::WorkerHealthy(worker) => self.route(router::Event::Healthy(worker), now),
            Event::WorkerUnhealthy { worker, reason } => {
                self.route(router::Event::Unhealthy { worker, reason }, now)
            }
            Event::WorkerRestarted { worker, version } => {
                self.worker_restarted(worker, version, now)
            }

            Event::Arrived { request, ask } => self.arrived(request, ask, now),
            Event::Prompted { request, prompt } => self.prompted(request, &prompt),
            Event::Generated { request, ids, logprobs, said } => {
                self.generated(request, &ids, &logprobs, said, now)
            }
            Event::Restarted(request) => self.restarted(request),
            Event::Prefilled(request) => self.route(router::Event::Prefilled(request), now),
            Event::Ended { request, outcome, finish } => self.ended(request, outcome, finish, now),
            Event::Withdrawn(request) => {
                self.lose_turn(request, now);
                self.route(router::Event::Withdrawn(request), now)
            }

            Event::OpenGroup(open) => self.open_group(open, now),
            Event::AbortGroup(group) => {
                let fault = Fault::new(FaultKind::Cancelled, "Aborted", "the group was aborted");
                self.live(trajectory::Event::AbortGroup { group, fault }, now)
            }
            Event::Step(trajectory) => self.live(trajectory::Event::Step(trajectory), now),
            Event::TokensGiven { trajectory, prompt, ids, logprobs, version } => {
                self.tokens_given(trajectory, &prompt, &ids, &logprobs, version, now)
            }
            Event::Complete { trajectory, reward } => self.complete(trajectory, reward, now),
            Event::AbortTrajectory { trajectory, fault } => {
                self.live(trajectory::Event::AbortTrajectory { trajectory, fault }, now)
            }
            Event::Kept { trajectory, result } => {
                self.live(trajectory::Event::Kept { trajectory, result }, now)
            }
            Event::RewardEnded { call, outcome } => {
                self.score(reward::Event::Ended { call, outcome }, now)
            }

            Event::Take { taker, groups } => self.store(buffer::Event::Take { taker, groups }, now),
            Event::Leave(taker) => self.store(buffer::Event::Leave(taker), now),
            Event::Ack(batch) => self.store(buffer::Event::Ack(batch), now),

            Event::Weights(event) => self.update(event, now),
            Event::Tick => {
                self.route(router::Event::Tick, now)?;
                self.live(trajectory::Event::Tick, now)?;
                self.score(reward::Event::Tick, now)?;
                self.update(weights::Event::Tick, now)
            }
        }
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_deadline(&self) -> Option<Time> {
        [
            self.router.next_deadline(),
            self.trajectories.next_deadline(),
            self.rewards.next_deadline(),
            self.weights.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The workers and the requests.
    pub const fn router(&self) -> &Router {
        &self.router
    }

    /// Groups and trajectories.
    pub const fn trajectories(&self) -> &Trajectories {
        &self.trajectories
    }

    /// Reward services.
    pub const fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    /// What waits for the trainer.
    pub const fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Versions.
    pub const fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The token log of a trajectory that generates or is being scored.
    pub fn log(&self, trajectory: &TrajectoryId) -> Option<&TokenLog> {
        self.logs.get(trajectory).map(AsRef::as_ref)
    }

    /// Whether the trajectory's turns go to a log.
    pub fn records(&self, trajectory: &TrajectoryId) -> bool {
        let known = self.trajectories.trajectory(trajectory.as_str());
        let group = known.and_then(|known| self.trajectories.group(known.group().as_str()));
        group.is_some_and(|group| group.settings().recorded)
    }

    /// Trajectories that may be started by opening groups now.
    pub fn room(&self) -> usize {
        self.buffer.room(self.trajectories.counts().training)
    }

    fn open_group(&mut self, mut open: OpenGroup, now: Time) -> Result<(), Fault> {
        let known = self.trajectories.group(open.group.as_str()).is_some();
        if !known && self.buffer.contains(&open.group) {
            let message = format!(
                "group `{}` has settled and waits for the trainer: choose another id",
                open.group
            );
            return Err(Fault::new(FaultKind::User, "GroupExists", message));
        }
        match open.purpose {
            Purpose::Training if !known && self.room() == 0 => {
                let message = format!(
                    "{} trajectories run or wait for the trainer, and {} may: take and \
                     acknowledge batches, or open the group later",
                    self.buffer.trajectories() + self.trajectories.counts().training.trajectories,
                    self.buffer.bound()
                );
                let mut fault = Fault::new(FaultKind::Infrastructure, "BufferFull", message);
                fault.retry_after = Some(self.config.router.retry_after);
                Err(fault)
            }
            Purpose::Evaluation { pinned } if !known => {
                let group = open.group.clone();
                open.purpose = Purpose::Evaluation { pinned };
                self.pin(&group, pinned, now)?;
                let opened = self.live(trajectory::Event::OpenGroup(open), now);
                if opened.is_err() {
                    self.unpin(&group, now);
                }
                opened
            }
            _ => self.live(trajectory::Event::OpenGroup(open), now),
        }
    }

    fn store(&mut self, event: buffer::Event, now: Time) -> Result<(), Fault> {
        for command in self.buffer.on_event(event, now)? {
            self.out.push(match command {
                buffer::Command::Deliver { batch, takers, again } => {
                    Command::Deliver { batch, takers, again }
                }
                buffer::Command::Remove { batch, groups } => Command::Remove { batch, groups },
                buffer::Command::Evict(group) => Command::Evict(group),
            });
        }
        Ok(())
    }

    fn score(&mut self, event: reward::Event, now: Time) -> Result<(), Fault> {
        for command in self.rewards.on_event(event, now) {
            match command {
                reward::Command::Call { call, trajectory, service, attempt } => {
                    self.out.push(Command::CallReward { call, trajectory, service, attempt });
                }
                reward::Command::CancelCall(call) => self.out.push(Command::CancelReward(call)),
                reward::Command::Circuit { service, open } => {
                    self.out.push(Command::RewardCircuit { service, open });
                }
                reward::Command::Scored { trajectory, result } => {
                    let result = result.map(|reward| reward + self.penalty(&trajectory));
                    self.live(trajectory::Event::Scored { trajectory, result }, now)?;
                }
            }
        }
        Ok(())
    }
}
