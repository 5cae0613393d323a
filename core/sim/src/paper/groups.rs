//! A simulator of the life of groups: the core's own `Trajectories` and `Buffer` before a
//! fleet of slots. What a trajectory takes is drawn when it starts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use rollwright_core::buffer::{self, Buffer, OnStale, Staleness, Taker};
use rollwright_core::ids::{GroupId, Task, TrajectoryId};
use rollwright_core::time::Time;
use rollwright_core::trajectory::{
    Announcement, Command, Config, Event, OpenGroup, Purpose, Trajectories,
};
use rollwright_core::version::Version;

use super::trial::Failed;
use crate::cluster::nanos;

/// How groups run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// Trajectories that a group settles with.
    pub(super) needed: u32,
    /// Trajectories that it starts beyond those.
    pub(super) redundant: u32,
    /// Groups of a batch.
    pub(super) batch: usize,
    /// Trajectories that run at once.
    pub(super) slots: usize,
    /// Versions that a trajectory may lie behind.
    pub(super) bound: u32,
}

/// Groups, a fleet, and a buffer. Times are seconds.
pub(super) struct Groups<'a> {
    settings: Settings,
    /// Draws the seconds of a trajectory.
    draw: Box<dyn FnMut() -> f64 + 'a>,
    core: Trajectories,
    buffer: Buffer,
    now: u64,
    opened: u64,
    waiting: VecDeque<TrajectoryId>,
    /// When each that runs ends.
    running: BTreeMap<TrajectoryId, u64>,
    /// The same by time; some of them were aborted.
    ends: BinaryHeap<Reverse<(u64, TrajectoryId)>>,
    version: Version,
    delivered: Option<buffer::Batch>,
    /// Seconds that slots were taken.
    pub(super) busy: f64,
}

impl<'a> Groups<'a> {
    pub(super) fn new(settings: Settings, draw: impl FnMut() -> f64 + 'a) -> Self {
        let staleness = Staleness { bound: settings.bound, on_stale: OnStale::Abort };
        let core = Config {
            staleness,
            redundant: settings.redundant,
            max_group: settings.needed,
            max_trajectories: usize::MAX,
            max_requests: 1,
            idle_limit: Duration::from_secs(1 << 30),
            ended_ttl: Duration::ZERO,
            max_ended: 1,
        };
        let buffer = buffer::Config {
            batch_groups: settings.batch,
            max_batch_groups: settings.batch,
            group_size: settings.needed as usize,
            environments: settings.slots,
            staleness,
            max_takers: 1,
        };
        Self {
            settings,
            draw: Box::new(draw),
            core: Trajectories::new(core, Version::default()),
            buffer: Buffer::new(buffer),
            now: 0,
            opened: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            ends: BinaryHeap::new(),
            version: Version::default(),
            delivered: None,
            busy: 0.0,
        }
    }

    /// Seconds since the beginning.
    pub(super) fn now(&self) -> f64 {
        self.now as f64 / 1e9
    }

    /// Opens a group; what it starts with waits for slots.
    pub(super) fn open(&mut self) -> Result<(), Failed> {
        let (Ok(group), Ok(task)) = (GroupId::new(&format!("g{}", self.opened)), Task::new("t"))
        else {
            return Ok(());
        };
        self.opened += 1;
        let open = OpenGroup {
            group: group.clone(),
            task,
            needed: self.settings.needed,
            purpose: Purpose::Training,
            recorded: false,
        };
        self.tell(Event::OpenGroup(open))?;
        let started = self.core.group(group.as_str()).map(|group| {
            group.trajectories().map(|trajectory| trajectory.id().clone()).collect::<Vec<_>>()
        });
        self.waiting.extend(started.unwrap_or_default());
        self.fill();
        Ok(())
    }

    /// Runs until there is a batch, opening groups while the buffer has room and slots are
    /// free if `more`. Its groups leave the buffer.
    pub(super) fn batch(&mut self, more: bool) -> Result<usize, Failed> {
        let take = buffer::Event::Take { taker: Taker(0), groups: None };
        self.tell_buffer(take)?;
        loop {
            if let Some(batch) = self.delivered.take() {
                self.tell_buffer(buffer::Event::Ack(batch.id))?;
                return Ok(batch.groups.len());
            }
            self.open_more(more)?;
            if !self.end_one(u64::MAX)? {
                return Ok(0);
            }
        }
    }

    /// Runs so many seconds.
    pub(super) fn run(&mut self, seconds: f64, more: bool) -> Result<(), Failed> {
        let until = self.now + nanos(seconds);
        self.open_more(more)?;
        while self.end_one(until)? {
            self.open_more(more)?;
        }
        self.advance(until);
        Ok(())
    }

    /// Nothing runs for so many seconds: what is in flight goes on after them.
    pub(super) fn pause(&mut self, seconds: f64) {
        let by = nanos(seconds);
        self.now += by;
        for end in self.running.values_mut() {
            *end += by;
        }
        self.ends = self.running.iter().map(|(id, &end)| Reverse((end, id.clone()))).collect();
    }

    /// The policy has its next version.
    pub(super) fn next_version(&mut self) -> Result<(), Failed> {
        self.version = Version(self.version.0 + 1);
        self.tell_buffer(buffer::Event::VersionChanged(self.version))?;
        self.tell(Event::VersionChanged(self.version))?;
        self.fill();
        Ok(())
    }

    fn open_more(&mut self, more: bool) -> Result<(), Failed> {
        while more && self.waiting.is_empty() && self.running.len() < self.settings.slots {
            self.open()?;
        }
        Ok(())
    }

    fn advance(&mut self, to: u64) {
        self.busy += self.running.len() as f64 * (to - self.now) as f64 / 1e9;
        self.now = to;
    }

    /// The next trajectory that ends by `until`.
    fn end_one(&mut self, until: u64) -> Result<bool, Failed> {
        while let Some(Reverse((end, _))) = self.ends.peek() {
            if *end > until {
                return Ok(false);
            }
            let Some(Reverse((end, id))) = self.ends.pop() else { return Ok(false) };
            if self.running.get(&id) == Some(&end) {
                self.advance(end);
                self.running.remove(&id);
                self.tell(Event::Complete { trajectory: id, reward: Some(1.0), taught: false })?;
                self.fill();
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fill(&mut self) {
        while self.running.len() < self.settings.slots
            && let Some(id) = self.waiting.pop_front()
        {
            let end = self.now + nanos((self.draw)());
            self.running.insert(id.clone(), end);
            self.ends.push(Reverse((end, id)));
        }
    }

    /// Tells the core, and carries out what it wants: the disk answers at once.
    fn tell(&mut self, event: Event) -> Result<(), Failed> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = Time::from_nanos(self.now);
            for command in self.core.on_event(event, now).map_err(Failed::Core)? {
                match command {
                    Command::Keep(keep) => {
                        events
                            .push_back(Event::Kept { trajectory: keep.trajectory, result: Ok(()) });
                    }
                    Command::Settle(group) => self.tell_buffer(buffer::Event::Settled(group))?,
                    Command::Announce(Announcement::Start { trajectory, .. }) => {
                        self.waiting.push_back(trajectory);
                    }
                    Command::Announce(Announcement::Abort { trajectory, .. }) => {
                        self.running.remove(&trajectory);
                        self.waiting.retain(|waiting| *waiting != trajectory);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn tell_buffer(&mut self, event: buffer::Event) -> Result<(), Failed> {
        let now = Time::from_nanos(self.now);
        for command in self.buffer.on_event(event, now).map_err(Failed::Core)? {
            if let buffer::Command::Deliver { batch, .. } = command {
                self.delivered = Some(batch);
            }
        }
        Ok(())
    }
}
