//! Everything around the core: engines that hold weights, drivers that run trajectories, a
//! disk, reward services and a trainer. What it is told it checks against what is true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::buffer::{self, Batch, OnStale, Staleness, Taker};
use crate::fault::{Fault, FaultKind};
use crate::ids::{Class, GroupId, Task, TrajectoryId, WorkerId};
use crate::reward::{self, Answer, CallId};
use crate::rollout::{Ask, Command, Config, Event, Rollout};
use crate::router::{self, Outcome, Role, Usage, WorkerSpec};
use crate::time::Time;
use crate::tokens::{Finish, LengthCap};
use crate::trajectory::{self, OpenGroup, Purpose, State};
use crate::version::{BatchId, RequestId, Version};
use crate::weights::{self, InFlight, Step, Strategy};

pub(super) const SLOTS: u32 = 3;
pub(super) const WORKERS: usize = 3;

pub(super) fn config(strategy: Strategy, in_flight: InFlight, on_stale: OnStale) -> Config {
    let staleness = Staleness { bound: 1, on_stale };
    Config {
        router: router::Config { max_pending: 64, ..router::Config::default() },
        trajectory: trajectory::Config {
            staleness,
            redundant: 1,
            max_group: 8,
            max_trajectories: 64,
            max_requests: 2,
            idle_limit: Duration::from_mins(5),
            ended_ttl: Duration::from_hours(1),
            max_ended: 1000,
        },
        reward: reward::Config {
            services: vec![
                service("judge", reward::Gives::Reward),
                service("teacher", reward::Gives::LogProbs),
            ],
            max_scoring: 100,
            seed: 7,
        },
        buffer: buffer::Config {
            batch_groups: 2,
            max_batch_groups: 8,
            group_size: 2,
            environments: 9,
            staleness,
            max_takers: 4,
        },
        weights: weights::Config { strategy, in_flight, ..weights::Config::default() },
        cap: LengthCap { tokens: 4096, soft_penalty_tokens: None },
    }
}

/// The process behind a worker.
#[derive(Debug, Default)]
pub(super) struct Engine {
    pub(super) holds: Version,
    pub(super) paused: bool,
    /// Requests that generate, and whether they are to stop.
    pub(super) running: BTreeMap<RequestId, bool>,
    /// Requests that it prefills, and who decodes them.
    pub(super) prefilling: BTreeMap<RequestId, WorkerId>,
}

impl Engine {
    fn busy(&self) -> usize {
        self.running.len() + self.prefilling.len()
    }
}

/// A request whose client waits.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) trajectory: TrajectoryId,
    pub(super) prompted: bool,
}

pub(super) struct World {
    pub(super) core: Rollout,
    pub(super) now: Time,
    pub(super) engines: BTreeMap<WorkerId, Engine>,
    pub(super) clients: BTreeMap<RequestId, Client>,
    pub(super) evaluations: BTreeSet<GroupId>,
    /// Steps of updates that engines have not answered.
    pub(super) calls: Vec<(WorkerId, u64, Step)>,
    /// Those of them whose connection is broken: the process has died meanwhile.
    lost: BTreeSet<u64>,
    /// Records on their way to the disk.
    pub(super) writes: Vec<TrajectoryId>,
    pub(super) scoring: BTreeMap<CallId, Scoring>,
    /// What the teacher has answered for.
    taught: BTreeSet<TrajectoryId>,
    pub(super) batch: Option<Batch>,
    pub(super) opened: u64,
    pub(super) requests: u64,
    pub(super) version: u64,
    closed: BTreeSet<TrajectoryId>,
    delivered: BTreeMap<TrajectoryId, BatchId>,
    strategy: Strategy,
    /// The first worker prefills for the others.
    split: bool,
}

fn service(name: &str, gives: reward::Gives) -> reward::Service {
    reward::Service {
        name: name.to_owned(),
        gives,
        tasks: Vec::new(),
        concurrency: 2,
        timeout: Duration::from_secs(30),
        tries: 2,
        patience: Duration::from_mins(10),
        backoff: reward::Backoff::default(),
        circuit: reward::Circuit::default(),
    }
}

/// A call of a reward service.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scoring {
    trajectory: TrajectoryId,
    teacher: bool,
    cancelled: bool,
}

pub(super) fn worker(index: usize) -> WorkerId {
    WorkerId::new(&format!("w{index}")).unwrap()
}

pub(super) fn broken() -> Fault {
    Fault::new(FaultKind::Infrastructure, "Broken", "it broke")
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        let (strategy, split) = (config.weights.strategy, config.router.alone);
        let mut world = Self {
            core: Rollout::new(config),
            now: Time::ZERO,
            engines: BTreeMap::new(),
            clients: BTreeMap::new(),
            evaluations: BTreeSet::new(),
            calls: Vec::new(),
            lost: BTreeSet::new(),
            writes: Vec::new(),
            scoring: BTreeMap::new(),
            taught: BTreeSet::new(),
            batch: None,
            opened: 0,
            requests: 0,
            version: 0,
            closed: BTreeSet::new(),
            delivered: BTreeMap::new(),
            strategy,
            split,
        };
        for index in 0..WORKERS {
            world.join(index);
        }
        world
    }

    pub(super) fn join(&mut self, index: usize) {
        let worker = worker(index);
        if self.engines.contains_key(&worker) {
            return;
        }
        self.engines.insert(worker.clone(), Engine::default());
        let spec = WorkerSpec {
            class: Class::new("any").unwrap(),
            role: match index {
                _ if !self.split => Role::Mixed,
                0 => Role::Prefill,
                _ => Role::Decode,
            },
            slots: SLOTS,
            version: Some(Version(0)),
        };
        self.tell(Event::WorkerJoined { worker, spec }).unwrap();
    }

    pub(super) fn tell(&mut self, event: Event) -> Result<(), Fault> {
        let shown = format!("{event:?}");
        let commands = self.core.on_event(event, self.now)?;
        for command in commands {
            self.obey(command, &shown);
        }
        self.check(&shown);
        Ok(())
    }

    fn obey(&mut self, command: Command, why: &str) {
        match command {
            Command::Send { request, worker, prefill, .. } => {
                let holds = self.engines[&worker].holds;
                if let Some(prefill) = prefill {
                    let engine = self.engines.get_mut(&prefill).unwrap();
                    assert!(!engine.paused, "prefill on a paused engine by {why}");
                    assert!(engine.busy() < SLOTS as usize, "too many in flight by {why}");
                    assert_eq!(engine.holds, holds, "KV of other weights by {why}");
                    engine.prefilling.insert(request, worker.clone());
                }
                let engine = self.engines.get_mut(&worker).unwrap();
                assert!(!engine.paused, "sent to a paused engine by {why}");
                assert!(engine.busy() < SLOTS as usize, "too many in flight by {why}");
                assert!(self.clients.contains_key(&request), "nobody waits for it: {why}");
                engine.running.insert(request, false);
            }
            Command::TakeBack { request, worker, .. } => {
                // An engine that is gone has nothing to stop.
                if let Some(engine) = self.engines.get_mut(&worker)
                    && let Some(stop) = engine.running.get_mut(&request)
                {
                    *stop = true;
                }
            }
            Command::Refuse { request, .. } => {
                assert!(self.clients.remove(&request).is_some(), "refused twice by {why}");
            }
            Command::Weights(weights::Command::Call { worker, call, step }) => {
                self.calls.push((worker, call, step));
            }
            Command::Keep { keep, log } => {
                let log = log.expect("every group records");
                let trained = !self.evaluations.contains(&keep.group);
                assert_eq!(self.taught.remove(&keep.trajectory), trained, "taught by {why}");
                for span in log.versions() {
                    // An engine's log-probability says what it held: see `generate`.
                    let said = log.logprobs().skip(span.start).take(span.end - span.start);
                    for said in said {
                        assert_eq!(said, Some(-(span.version.0 as f32)), "stamped by {why}");
                    }
                }
                self.writes.push(keep.trajectory);
            }
            Command::CallReward { call, trajectory, service, .. } => {
                let scoring = Scoring { trajectory, teacher: service.0 == 1, cancelled: false };
                assert_eq!(self.scoring.insert(call, scoring), None);
            }
            Command::CancelReward(call) => {
                self.scoring
                    .get_mut(&call)
                    .expect("only calls in flight are cancelled")
                    .cancelled = true;
            }
            Command::CloseSandbox(trajectory) => {
                assert!(self.closed.insert(trajectory), "closed twice by {why}");
            }
            Command::Deliver { batch, again, takers } => {
                assert!(!takers.is_empty());
                self.take(batch, again);
            }
            Command::Remove { batch, .. } => {
                assert_eq!(self.batch.take().map(|batch| batch.id), Some(batch));
            }
            Command::Drained(worker) => {
                assert_eq!(self.engines[&worker].busy(), 0, "drained by {why}");
            }
            Command::Settle(group) => assert!(!self.evaluations.contains(&group.group)),
            _ => {}
        }
    }

    fn take(&mut self, batch: Batch, again: bool) {
        assert_eq!(again, self.batch.is_some());
        if let Some(out) = &self.batch {
            assert_eq!(out, &batch);
            return;
        }
        let current = self.core.weights().current();
        for member in batch.groups.iter().flat_map(|group| &group.trajectories) {
            assert!(current.0 <= member.oldest.0.max(member.start.0) + 1, "a stale one was given");
            let before = self.delivered.insert(member.trajectory.clone(), batch.id);
            assert_eq!(before, None, "given twice as new");
        }
        self.batch = Some(batch);
    }

    /// What always holds.
    fn check(&self, why: &str) {
        let in_flight: usize = self.engines.values().map(|engine| engine.running.len()).sum();
        // The router may wait for the end of what was on a worker that left.
        assert!(self.core.router().running() >= in_flight, "{why}");
        for request in self.core.turns.keys() {
            assert!(self.clients.contains_key(request), "a turn without a client after {why}");
        }
        for trajectory in self.core.logs.keys() {
            let known = self.core.trajectories().trajectory(trajectory.as_str());
            let ended = known.is_none_or(|known| known.state().is_ended());
            assert!(!ended, "the log of {trajectory} was left behind by {why}");
        }
    }

    pub(super) fn open(&mut self, evaluation: bool) {
        self.opened += 1;
        let group = GroupId::new(&format!("g{}", self.opened)).unwrap();
        let purpose = if evaluation {
            Purpose::Evaluation { pinned: self.core.weights().current() }
        } else {
            Purpose::Training
        };
        let task = Task::new("math").unwrap();
        if evaluation {
            self.evaluations.insert(group.clone());
        }
        let open = OpenGroup { group, task, needed: 2, purpose, recorded: true };
        // No room, or too many pins.
        let _ = self.tell(Event::OpenGroup(open));
    }

    pub(super) fn running(&self) -> Vec<TrajectoryId> {
        let groups = self.core.trajectories().groups();
        let members = groups.flat_map(trajectory::Group::trajectories);
        members
            .filter(|member| member.state() == State::Running)
            .map(|member| member.id().clone())
            .collect()
    }

    pub(super) fn ask(&mut self, trajectory: TrajectoryId) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let ask = Ask { trajectory: Some(trajectory.clone()), task: Task::new("x").unwrap() };
        self.clients.insert(request, Client { trajectory, prompted: false });
        if self.tell(Event::Arrived { request, ask }).is_err() {
            self.clients.remove(&request);
        }
    }

    /// An engine makes progress with a request.
    pub(super) fn generate(&mut self, worker: &WorkerId, request: RequestId, tokens: usize) {
        let Some(engine) = self.engines.get(worker) else { return };
        assert!(!engine.paused, "a paused engine generates");
        let (holds, pinned) = (engine.holds, self.is_evaluation(request));
        if !self.clients.contains_key(&request) {
            return;
        }
        if matches!(self.strategy, Strategy::Pause) && !pinned {
            // A worker may be ahead while the others are being updated, and never behind.
            assert!(holds >= self.core.weights().current(), "a token of an old version");
        }
        let Some(client) = self.clients.get_mut(&request) else { return };
        if !client.prompted {
            let trajectory = client.trajectory.clone();
            let mut prompt =
                self.core.log(&trajectory).map_or(vec![1], |log| log.context().to_vec());
            prompt.push(2);
            if self.tell(Event::Prompted { request, prompt }).is_err() {
                // Another turn of the trajectory has begun meanwhile.
                return self.end(
                    worker,
                    request,
                    Outcome::Failed {
                        fault: Fault::new(FaultKind::User, "TurnOpen", "a turn is open"),
                        resumable: false,
                        prefill: false,
                    },
                );
            }
            if let Some(client) = self.clients.get_mut(&request) {
                client.prompted = true;
            }
        }
        let event = Event::Generated {
            request,
            ids: vec![3; tokens],
            logprobs: vec![-(holds.0 as f32); tokens],
            said: Some(holds),
        };
        self.tell(event).unwrap();
    }

    fn is_evaluation(&self, request: RequestId) -> bool {
        let trajectory = self.clients.get(&request).map(|client| client.trajectory.as_str());
        let known = trajectory.and_then(|id| self.core.trajectories().trajectory(id));
        known.is_some_and(|known| self.evaluations.contains(known.group()))
    }

    /// A request ends on its engine.
    pub(super) fn end(&mut self, worker: &WorkerId, request: RequestId, outcome: Outcome) {
        let Some(engine) = self.engines.get_mut(worker) else { return };
        if engine.running.remove(&request).is_none() {
            return;
        }
        for engine in self.engines.values_mut() {
            engine.prefilling.remove(&request);
        }
        if matches!(outcome, Outcome::Done(_)) {
            self.clients.remove(&request);
        }
        let finish = matches!(outcome, Outcome::Done(_)).then_some(Finish::Length);
        self.tell(Event::Ended { request, outcome, finish }).unwrap();
    }

    /// The prefill worker of a request has done its part.
    pub(super) fn prefilled(&mut self, request: RequestId) {
        for engine in self.engines.values_mut() {
            engine.prefilling.remove(&request);
        }
        self.tell(Event::Prefilled(request)).unwrap();
    }

    /// What a worker prefills fails or comes back.
    fn lose_prefills(&mut self, worker: &WorkerId, outcome: &Outcome) {
        for (request, decode) in self.engines[worker].prefilling.clone() {
            self.end(&decode, request, outcome.clone());
        }
    }

    pub(super) fn done() -> Outcome {
        Outcome::Done(Usage { prompt_tokens: 5, cached_tokens: 0, output_tokens: 3 })
    }

    /// An engine answers a step of an update.
    pub(super) fn answer(&mut self, index: usize, fails: bool) {
        let (worker, call, step) = self.calls.remove(index);
        let mut result = Ok(None);
        if let Some(engine) = self.engines.get_mut(&worker) {
            if !matches!(step, Step::Pull { .. }) && !self.lost.contains(&call) {
                assert_eq!(engine.busy(), 0, "{step:?} while requests run");
            }
            if fails || self.lost.contains(&call) {
                result = Err(broken());
            } else {
                match &step {
                    Step::Pause => engine.paused = true,
                    Step::Update { version, .. } => {
                        assert!(engine.paused, "updated while it generates");
                        engine.holds = *version;
                    }
                    Step::Verify => result = Ok(Some(engine.holds)),
                    Step::Resume => engine.paused = false,
                    Step::Pull { .. } | Step::FlushCache => {}
                }
            }
        } else {
            result = Err(broken());
        }
        let answered = weights::Event::Answered { worker, call, result };
        self.tell(Event::Weights(answered)).unwrap();
    }

    /// The process behind a worker is gone, and what it was asked has no answer.
    pub(super) fn lose_calls(&mut self, worker: &WorkerId) {
        let lost = self.calls.iter().filter(|(of, ..)| of == worker).map(|(_, call, _)| *call);
        self.lost.extend(lost);
    }

    /// The process of a worker dies and comes back with what it was launched with, or only
    /// looks so because the trainer has written into it.
    pub(super) fn restart(&mut self, worker: &WorkerId, holds: Version) {
        let Some(engine) = self.engines.get_mut(worker) else { return };
        (engine.holds, engine.paused) = (holds, false);
        self.lose_calls(worker);
        let Some(engine) = self.engines.get_mut(worker) else { return };
        let running: Vec<RequestId> = engine.running.keys().copied().collect();
        let told = Event::WorkerRestarted { worker: worker.clone(), version: Some(holds) };
        self.tell(told).unwrap();
        let failed = Outcome::Failed { fault: broken(), resumable: true, prefill: true };
        self.lose_prefills(worker, &failed);
        for request in running {
            let outcome = Outcome::Failed { fault: broken(), resumable: true, prefill: false };
            self.end(worker, request, outcome);
        }
    }

    /// A worker leaves; one stays always.
    pub(super) fn leave(&mut self, worker: &WorkerId) {
        if self.engines.len() == 1 || !self.engines.contains_key(worker) {
            return;
        }
        let running: Vec<RequestId> = self.engines[worker].running.keys().copied().collect();
        self.lose_calls(worker);
        self.tell(Event::WorkerLeft(worker.clone())).unwrap();
        self.lose_prefills(worker, &Outcome::Back);
        for request in running {
            self.end(worker, request, Outcome::Back);
        }
        self.engines.remove(worker);
    }

    pub(super) fn score(&mut self, call: CallId, outcome: Result<f64, Fault>) {
        let Some(scoring) = self.scoring.remove(&call) else { return };
        let gone = || Fault::new(FaultKind::Cancelled, "Gone", "nobody waits");
        let outcome = if scoring.cancelled { Err(gone()) } else { outcome };
        if scoring.teacher && outcome.is_ok() {
            self.taught.insert(scoring.trajectory);
        }
        let outcome = outcome
            .map(|reward| if scoring.teacher { Answer::LogProbs } else { Answer::Reward(reward) });
        self.tell(Event::RewardEnded { call, outcome }).unwrap();
    }

    pub(super) fn write(&mut self, index: usize, result: Result<(), Fault>) {
        let trajectory = self.writes.remove(index);
        self.tell(Event::Kept { trajectory, result }).unwrap();
    }

    pub(super) fn wait_for_batch(&mut self) {
        let _ = self.tell(Event::Take { taker: Taker(1), groups: None });
    }

    pub(super) fn later(&mut self, by: Duration) {
        self.now = self.now + by;
        self.tell(Event::Tick).unwrap();
    }

    /// Everything that is under way comes to its end, and every group is aborted: nothing
    /// may be left.
    pub(super) fn finish(&mut self) {
        let groups: Vec<GroupId> =
            self.core.trajectories().groups().map(|group| group.id().clone()).collect();
        let started: BTreeSet<TrajectoryId> = self
            .core
            .trajectories()
            .groups()
            .flat_map(|group| group.trajectories().map(|member| member.id().clone()))
            .collect();
        for group in groups {
            self.tell(Event::AbortGroup(group)).unwrap();
        }
        for worker in self.engines.keys().cloned().collect::<Vec<_>>() {
            self.tell(Event::WorkerStays(worker)).unwrap();
        }
        for _ in 0..2000 {
            let stopping: Vec<(WorkerId, RequestId)> = self
                .engines
                .iter()
                .flat_map(|(id, engine)| {
                    engine.running.keys().map(|request| (id.clone(), *request))
                })
                .collect();
            for (worker, request) in stopping {
                self.end(&worker, request, Outcome::Back);
            }
            while !self.calls.is_empty() {
                self.answer(0, false);
            }
            while !self.writes.is_empty() {
                self.write(0, Ok(()));
            }
            for call in self.scoring.keys().copied().collect::<Vec<_>>() {
                self.score(call, Ok(1.0));
            }
            // What an unfinished transfer of the trainer's own has left unknown takes a
            // new process; where the current version came that way, not even that.
            let external = *self.core.weights().source() == weights::Source::External;
            let out: Vec<WorkerId> = self
                .core
                .weights()
                .workers()
                .filter(|worker| worker.state == weights::WorkerState::Out)
                .map(|worker| worker.id.clone())
                .collect();
            for worker in &out {
                self.restart(worker, Version(0));
            }
            let idle = self.engines.values().all(|engine| engine.running.is_empty())
                && self.calls.is_empty()
                && self.core.weights().begun().is_none()
                && self
                    .core
                    .weights()
                    .workers()
                    .all(|worker| worker.state == weights::WorkerState::Serving || external);
            if idle {
                break;
            }
            self.later(Duration::from_secs(30));
        }
        assert!(self.clients.is_empty(), "clients wait for ever: {:?}", self.clients);
        assert_eq!((self.core.router().running(), self.core.router().pending()), (0, 0));
        assert!(
            self.core.turns.is_empty() && self.core.logs.is_empty() && self.core.pins.is_empty()
        );
        assert_eq!(self.core.rewards().scoring(), 0);
        assert!(self.scoring.is_empty());
        for trajectory in started {
            let known = self.core.trajectories().trajectory(trajectory.as_str());
            if known.is_some_and(|known| known.state() == State::Aborted) {
                assert!(self.closed.contains(&trajectory), "{trajectory} keeps its sandbox");
            }
        }
        if *self.core.weights().source() == weights::Source::External {
            return;
        }
        for worker in self.core.weights().workers() {
            assert_eq!(worker.state, weights::WorkerState::Serving, "{worker:?}");
            assert_eq!(worker.version, Some(self.core.weights().current()));
        }
    }
}
