//! A disk, a trainer and a buffer between them.

use std::collections::{BTreeMap, BTreeSet};

use crate::buffer::{
    Batch, Buffer, Command, Config, Event, Member, OnStale, Recovered, SettledGroup, Staleness,
    Taker,
};
use crate::fault::Fault;
use crate::ids::{GroupId, Task, TrajectoryId};
use crate::time::Time;
use crate::version::{BatchId, Version};

pub(super) fn config(bound: u32, on_stale: OnStale) -> Config {
    Config {
        batch_groups: 2,
        max_batch_groups: 5,
        group_size: 2,
        environments: 4,
        staleness: Staleness { bound, on_stale },
        max_takers: 3,
    }
}

/// Group number `n` of `size` trajectories that started at `start` and have tokens of
/// `oldest`.
pub(super) fn settled(n: usize, size: usize, start: u64, oldest: u64) -> SettledGroup {
    let member = |i: usize| Member {
        trajectory: TrajectoryId::new(&format!("g{n}.{i}")).unwrap(),
        start: Version(if i == 0 { start } else { start + 1 }),
        oldest: Version(if i == 0 { oldest } else { oldest + 1 }),
    };
    SettledGroup {
        group: GroupId::new(&format!("g{n}")).unwrap(),
        task: Task::new("math").unwrap(),
        trajectories: (0..size).map(member).collect(),
    }
}

pub(super) fn secs(secs: u64) -> Time {
    Time::from_nanos(secs * 1_000_000_000)
}

/// What survives a crash.
#[derive(Default)]
struct Disk {
    /// In order of settling.
    groups: Vec<SettledGroup>,
    batch: Option<Batch>,
    last: BatchId,
}

pub(super) struct World {
    pub(super) buffer: Buffer,
    config: Config,
    disk: Disk,
    pub(super) now: Time,
    pub(super) version: Version,
    /// Batches that the trainer was given.
    pub(super) given: BTreeMap<BatchId, Batch>,
    pub(super) evicted: BTreeSet<GroupId>,
    pub(super) settled: BTreeSet<GroupId>,
    removed: BTreeSet<GroupId>,
}

impl World {
    pub(super) fn new(config: Config) -> Self {
        let mut world = Self {
            buffer: Buffer::new(config.clone()),
            config,
            disk: Disk::default(),
            now: Time::ZERO,
            version: Version(10),
            given: BTreeMap::new(),
            evicted: BTreeSet::new(),
            settled: BTreeSet::new(),
            removed: BTreeSet::new(),
        };
        world.send(Event::VersionChanged(Version(10))).unwrap();
        world
    }

    /// Sends an event and carries out its commands.
    pub(super) fn send(&mut self, event: Event) -> Result<Vec<Command>, Fault> {
        self.send_and_crash(event, usize::MAX)
    }

    /// The same, but the process dies after the first `crash` commands.
    pub(super) fn send_and_crash(
        &mut self,
        event: Event,
        crash: usize,
    ) -> Result<Vec<Command>, Fault> {
        if let Event::Settled(group) = &event
            && self.settled.insert(group.group.clone())
        {
            self.disk.groups.push(group.clone());
        }
        if let Event::VersionChanged(version) = event {
            self.version = self.version.max(version);
        }
        let before = format!("{:?}", self.buffer);
        let result = self.buffer.on_event(event, self.now);
        match &result {
            Ok(commands) => {
                for command in commands.iter().take(crash) {
                    self.carry_out(command);
                }
                if commands.len() > crash {
                    self.crash();
                }
            }
            Err(_) => assert_eq!(before, format!("{:?}", self.buffer)),
        }
        self.check();
        result
    }

    pub(super) fn settle(&mut self, group: SettledGroup) {
        self.send(Event::Settled(group)).unwrap();
    }

    pub(super) fn take(&mut self, taker: u64, groups: Option<usize>) -> Option<Batch> {
        let commands = self.send(Event::Take { taker: Taker(taker), groups }).unwrap();
        commands.into_iter().find_map(|command| match command {
            Command::Deliver { batch, .. } => Some(batch),
            _ => None,
        })
    }

    pub(super) fn crash(&mut self) {
        self.buffer = Buffer::new(self.config.clone());
        let in_batch = |group: &SettledGroup| {
            self.disk.batch.as_ref().is_some_and(|batch| batch.groups.contains(group))
        };
        let groups = self.disk.groups.iter().filter(|group| !in_batch(group)).cloned().collect();
        let (version, taken, last) = (self.version, self.disk.batch.clone(), self.disk.last);
        let found = Recovered { version, groups, taken, last };
        for command in self.buffer.on_event(Event::Recovered(found), self.now).unwrap() {
            self.carry_out(&command);
        }
    }

    fn carry_out(&mut self, command: &Command) {
        match command {
            Command::Deliver { batch, takers, again } => {
                assert!(!takers.is_empty());
                assert_eq!(*again, self.disk.batch.is_some());
                if *again {
                    assert_eq!(Some(batch), self.disk.batch.as_ref());
                } else {
                    assert_eq!(batch.id.0, self.disk.last.0 + 1);
                    self.check_new(batch);
                    self.disk.batch = Some(batch.clone());
                    self.disk.last = batch.id;
                }
                self.given.insert(batch.id, batch.clone());
            }
            Command::Remove { batch, groups } => {
                let out = self.disk.batch.take().unwrap();
                assert_eq!((out.id, &out.groups), (*batch, groups));
                self.disk.groups.retain(|group| !groups.contains(group));
                self.removed.extend(groups.iter().map(|group| group.group.clone()));
            }
            Command::Evict(group) => {
                assert!(self.is_stale(group), "{group:?} is fresh");
                self.disk.groups.retain(|other| other != group);
                assert!(self.evicted.insert(group.group.clone()), "{group:?} evicted twice");
            }
        }
    }

    /// No group of a new batch was given before, none is too old, no older one waits.
    fn check_new(&self, batch: &Batch) {
        assert_eq!(batch.version, self.version);
        let earlier = self.given.values().flat_map(|batch| &batch.groups);
        let earlier: BTreeSet<_> = earlier.map(|group| &group.group).collect();
        for group in &batch.groups {
            assert!(!earlier.contains(&group.group), "{group:?} given twice");
            assert!(!self.is_stale(group), "{group:?} is too old");
            assert!(self.disk.groups.contains(group), "{group:?} is not on disk");
        }
        let youngest = batch.groups.iter().map(|group| self.age(group)).max();
        let left = self.disk.groups.iter().filter(|group| !batch.groups.contains(group));
        let left = left.filter(|group| !self.is_stale(group));
        assert!(left.map(|group| self.age(group)).min().is_none_or(|age| Some(age) >= youngest));
    }

    fn age(&self, group: &SettledGroup) -> Version {
        let counts = |member: &Member| match self.config.staleness.on_stale {
            OnStale::Abort => member.start,
            OnStale::Continue => member.oldest,
        };
        group.trajectories.iter().map(counts).min().unwrap()
    }

    fn is_stale(&self, group: &SettledGroup) -> bool {
        self.version.0 - self.age(group).0.min(self.version.0)
            > u64::from(self.config.staleness.bound)
    }

    /// Every group that settled is held, or evicted, or given and acknowledged.
    fn check(&self) {
        for group in &self.settled {
            let held = self.buffer.contains(group);
            let gone = self.evicted.contains(group) || self.removed.contains(group);
            assert!(held != gone, "{group}: held {held}, gone {gone}");
        }
        let held = self.disk.groups.iter().map(|group| group.trajectories.len()).sum::<usize>();
        assert_eq!(
            (self.buffer.groups(), self.buffer.trajectories()),
            (self.disk.groups.len(), held)
        );
        assert_eq!(self.buffer.taken(), self.disk.batch.as_ref());
    }
}
