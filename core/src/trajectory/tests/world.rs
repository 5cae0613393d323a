//! Trajectories and buffer with all that is around them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::disk::Disk;
use super::outside::Outside;
use crate::buffer::{self, Batch, Buffer, OnStale, SettledGroup, Staleness, Taker};
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, Task, TrajectoryId};
use crate::time::Time;
use crate::trajectory::{
    Announcement, Command, Config, Counts, Event, GroupState, OpenGroup, Purpose, State,
    Trajectories, Trajectory,
};
use crate::version::{RequestId, Version};

pub(super) fn config(bound: u32, on_stale: OnStale) -> Config {
    Config {
        staleness: Staleness { bound, on_stale },
        redundant: 1,
        max_group: 4,
        max_trajectories: 60,
        max_requests: 2,
        idle_limit: Duration::from_mins(1),
        ended_ttl: Duration::from_hours(1),
        max_ended: 1000,
    }
}

pub(super) fn group(n: usize) -> GroupId {
    GroupId::new(&format!("g{n}")).unwrap()
}

pub(super) fn trajectory(id: &str) -> TrajectoryId {
    TrajectoryId::new(id).unwrap()
}

pub(super) fn open(n: usize, needed: u32) -> OpenGroup {
    let task = Task::new("math").unwrap();
    let (group, purpose) = (group(n), Purpose::Training);
    OpenGroup { group, task, needed, purpose, recorded: true }
}

pub(super) fn fault(kind: FaultKind) -> Fault {
    Fault::new(kind, "Broken", "it broke")
}

pub(super) struct World {
    pub(super) core: Trajectories,
    pub(super) buffer: Buffer,
    config: Config,
    pub(super) disk: Disk,
    pub(super) outside: Outside,
    pub(super) now: Time,
    pub(super) version: Version,
    pub(super) opened: BTreeMap<GroupId, OpenGroup>,
    next_request: u64,
    pub(super) batches: Vec<Batch>,
    /// Trajectories that were started anew after crashes beyond those that were live: a
    /// group that had lost redundant ones gets them back.
    pub(super) refilled: usize,
    /// Groups that the buffer had, and what became of those it has no more.
    settled: BTreeMap<GroupId, Option<&'static str>>,
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        let version = Version(10);
        let mut world = Self {
            core: Trajectories::new(config.clone(), version),
            buffer: Buffer::new(buffer_config(&config)),
            config,
            disk: Disk::default(),
            outside: Outside::default(),
            now: Time::ZERO,
            version,
            opened: BTreeMap::new(),
            next_request: 0,
            batches: Vec::new(),
            refilled: 0,
            settled: BTreeMap::new(),
        };
        world.buffer(buffer::Event::VersionChanged(version));
        world
    }

    /// Opens a group as its caller does, and starts the drivers that are answered.
    pub(super) fn open(&mut self, open: OpenGroup) -> Result<(), Fault> {
        let (id, known) = (open.group.clone(), self.core.group(open.group.as_str()).is_some());
        self.opened.entry(id.clone()).or_insert_with(|| open.clone());
        self.send(Event::OpenGroup(open))?;
        if !known && let Some(group) = self.core.group(id.as_str()) {
            for member in group.trajectories() {
                self.outside.start(member.id());
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, event: Event) -> Result<Vec<Command>, Fault> {
        self.send_and_crash(event, usize::MAX)
    }

    /// Sends an event and carries out its commands; the process dies after `crash`.
    pub(super) fn send_and_crash(
        &mut self,
        event: Event,
        crash: usize,
    ) -> Result<Vec<Command>, Fault> {
        if let Event::VersionChanged(version) = event {
            self.version = self.version.max(version);
            self.buffer(buffer::Event::VersionChanged(version));
        }
        let before = format!("{:?}", self.core);
        let commands = self.core.on_event(event, self.now);
        let Ok(commands) = commands else {
            assert_eq!(before, format!("{:?}", self.core), "a refusal changed something");
            return commands;
        };
        for command in commands.iter().take(crash) {
            self.carry_out(command.clone());
        }
        if commands.len() > crash {
            self.crash();
        }
        self.check();
        Ok(commands)
    }

    fn carry_out(&mut self, command: Command) {
        let outside = &mut self.outside;
        match command {
            Command::RecordGroup { group, numbers } => {
                self.disk.write_group(&self.opened[&group], numbers);
            }
            Command::DropGroup(group) => drop(self.disk.groups.remove(&group)),
            Command::AbortRequest { trajectory, request } => {
                outside.abort_request(&trajectory, request);
            }
            Command::CloseSandbox(trajectory) => outside.close_sandbox(&trajectory),
            Command::Score { trajectory, .. } => outside.score(&trajectory),
            Command::CancelReward(trajectory) => outside.cancel_reward(&trajectory),
            Command::Keep(keep) => {
                assert!(keep.reward.is_finite());
                assert_eq!(outside.logs.get(&keep.trajectory), Some(&keep.log));
                let again = outside.writes.insert(keep.trajectory.clone(), keep);
                assert!(again.is_none(), "{again:?} is written twice");
            }
            Command::Drop(trajectory) => {
                outside.drop_log(&trajectory);
                self.disk.records.remove(&trajectory);
            }
            Command::Settle(group) => {
                self.disk.settle(&group);
                self.settled.insert(group.group.clone(), None);
                for member in &group.trajectories {
                    outside.logs.remove(&member.trajectory);
                }
                self.buffer(buffer::Event::Settled(group));
            }
            Command::Announce(news) => self.hear(news),
        }
    }

    fn hear(&mut self, news: Announcement) {
        match news {
            Announcement::Start { trajectory, group } => {
                let number: u32 = trajectory.as_str().rsplit_once('.').unwrap().1.parse().unwrap();
                assert!(number < self.disk.groups[&group].numbers, "given away before its record");
                self.outside.start(&trajectory);
            }
            Announcement::Abort { trajectory, .. } => {
                self.outside.drivers.remove(&trajectory);
            }
            Announcement::Settled { group, kept } => {
                assert_eq!(kept.len(), self.opened[&group].needed as usize);
            }
            Announcement::GroupAborted { .. } => {}
        }
    }

    pub(super) fn buffer(&mut self, event: buffer::Event) {
        for command in self.buffer.on_event(event, self.now).unwrap() {
            match command {
                buffer::Command::Deliver { batch, again, .. } => {
                    if !again {
                        self.check_new(&batch);
                        self.disk.last = batch.id;
                        self.disk.batch = Some(batch.clone());
                        self.batches.push(batch);
                    }
                }
                buffer::Command::Remove { groups, .. } => {
                    self.disk.batch = None;
                    for group in &groups {
                        self.gone(group, "trained on");
                    }
                }
                buffer::Command::Evict(group) => {
                    let stale = |version: Version| {
                        version.0 + u64::from(self.config.staleness.bound) < self.version.0
                    };
                    assert!(group.trajectories.iter().any(|m| stale(m.start) || stale(m.oldest)));
                    self.gone(&group, "too old");
                }
            }
        }
    }

    fn gone(&mut self, group: &SettledGroup, why: &'static str) {
        self.disk.remove(group);
        let before = self.settled.insert(group.group.clone(), Some(why));
        assert_eq!(before, Some(None), "{group:?}");
    }

    fn check_new(&self, batch: &Batch) {
        let of_batch = |batch: &Batch| batch.groups.iter().map(|g| g.group.clone()).collect();
        let groups: Vec<_> = of_batch(batch);
        for earlier in &self.batches {
            let earlier: Vec<_> = of_batch(earlier);
            assert!(groups.iter().all(|group| !earlier.contains(group)), "given twice");
        }
        let staleness = self.config.staleness;
        for member in batch.groups.iter().flat_map(|group| &group.trajectories) {
            let stale = staleness.is_stale(member.start, Some(member.oldest), self.version);
            assert!(!stale, "{member:?} is too old at {:?}", self.version);
        }
        let evaluates = |group: &GroupId| self.opened[group].purpose != Purpose::Training;
        assert!(!groups.iter().any(evaluates), "an evaluation reached the trainer");
    }

    /// The process ends and begins again from what is on disk.
    pub(super) fn crash(&mut self) {
        let held = self.held();
        self.outside.crash();
        self.core = Trajectories::new(self.config.clone(), self.version);
        self.buffer = Buffer::new(buffer_config(&self.config));
        let (open, settled) = self.disk.recovered(self.version);
        self.buffer(buffer::Event::Recovered(settled));
        for kept in open.iter().flat_map(|group| &group.kept) {
            self.outside.logs.insert(kept.trajectory.clone(), kept.log);
        }
        for command in self.core.on_event(Event::Recovered(open), self.now).unwrap() {
            self.carry_out(command);
        }
        self.refilled += self.held().saturating_sub(held);
        self.check();
    }

    pub(super) fn request(&mut self, id: &TrajectoryId) -> Result<RequestId, Fault> {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.send(Event::TurnBegan { trajectory: id.clone(), request })?;
        self.outside.requests.insert((id.clone(), request));
        Ok(request)
    }

    pub(super) fn state(&self, id: &str) -> Option<State> {
        self.core.trajectory(id).map(Trajectory::state)
    }

    /// Trajectories of a group by their numbers, with their states.
    pub(super) fn states(&self, n: usize) -> Vec<State> {
        let group = self.core.group(group(n).as_str()).unwrap();
        group.trajectories().map(Trajectory::state).collect()
    }

    /// Time passes, with a tick at each deadline on the way.
    pub(super) fn pass(&mut self, secs: u64) {
        let end = self.now + Duration::from_secs(secs);
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            assert!(at > self.now || at == Time::ZERO, "a deadline is not handled");
            self.now = at;
            self.send(Event::Tick).unwrap();
        }
        self.now = end;
    }

    fn check(&self) {
        self.check_groups();
        let state = |id: &TrajectoryId| self.state(id.as_str());
        for id in &self.outside.sandboxes {
            let open = matches!(state(id), Some(State::Running | State::Scoring));
            assert!(open, "the sandbox of {id} stays, which is {:?}", state(id));
        }
        for (id, request) in &self.outside.requests {
            let member = self.core.trajectory(id.as_str()).unwrap();
            assert_eq!(member.state(), State::Running);
            assert!(member.requests().any(|other| other == *request), "{id} lost {request:?}");
        }
        for id in &self.outside.calls {
            assert_eq!(state(id), Some(State::Scoring), "{id} is scored for nobody");
        }
        for id in self.outside.logs.keys() {
            let live = state(id).is_some_and(|state| !state.is_ended());
            assert!(live, "the log of {id} stays");
        }
        for id in self.disk.records.keys() {
            let group = self.disk.groups.keys().find(|group| {
                id.as_str().rsplit_once('.').is_some_and(|(of, _)| of == group.as_str())
            });
            assert!(group.is_some(), "the record of {id} stays");
        }
        for (group, gone) in &self.settled {
            assert_eq!(self.buffer.contains(group), gone.is_none(), "{group} is lost");
        }
    }

    fn check_groups(&self) {
        let mut counts = Counts::default();
        for group in self.core.groups() {
            let is = |of: State| group.trajectories().filter(move |member| member.state() == of);
            let settled = is(State::Settled).count();
            let training = !group.is_evaluation();
            let live =
                is(State::Running).count() + is(State::Scoring).count() + is(State::Scored).count();
            match group.state() {
                GroupState::Open => {
                    assert!((group.needed()..=group.start()).contains(&(live as u32)), "{group:?}");
                    assert_eq!(settled, 0);
                    counts.groups += 1;
                    counts.training.groups += usize::from(training);
                }
                GroupState::Settled => assert_eq!((settled, live), (group.needed() as usize, 0)),
                GroupState::Aborted => assert_eq!((settled, live), (0, 0)),
            }
            counts.running += is(State::Running).count();
            counts.scoring += is(State::Scoring).count();
            counts.scored += is(State::Scored).count();
            counts.training.trajectories += if training { live } else { 0 };
            for member in group.trajectories().filter(|m| training && !m.state().is_ended()) {
                let bound = u64::from(self.config.staleness.bound);
                let fresh = member.start_version().0 + bound >= self.version.0;
                let unborn = self.config.staleness.on_stale == OnStale::Continue
                    && member.log().oldest.is_none();
                assert!(fresh || unborn, "{member:?} is too old");
            }
        }
        assert_eq!(self.core.counts(), counts);
    }

    /// Whether another group may be opened.
    pub(super) fn room(&self) -> usize {
        self.buffer.room(self.core.counts().training)
    }

    pub(super) fn take(&mut self) -> Option<Batch> {
        self.buffer(buffer::Event::Take { taker: Taker(0), groups: None });
        self.buffer.taken().cloned()
    }

    /// Trajectories that run for training or are buffered.
    pub(super) fn held(&self) -> usize {
        self.buffer.trajectories() + self.core.counts().training.trajectories
    }
}

fn buffer_config(config: &Config) -> buffer::Config {
    buffer::Config {
        batch_groups: 2,
        max_batch_groups: 10,
        group_size: 2,
        environments: 6,
        staleness: config.staleness,
        max_takers: 4,
    }
}
