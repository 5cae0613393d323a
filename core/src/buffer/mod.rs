//! The staleness-bounded buffer of settled groups (RollArt 6.2).
//!
//! A batch is made of whole groups, the oldest first, when somebody waits for it, and is
//! given again until it is acknowledged. There is at most one such batch. Groups that are
//! too old are evicted at every version change; those of a batch that was given are the
//! trainer's and stay.

mod command;
mod config;
mod event;
mod staleness;
mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use command::Command;
pub use config::Config;
pub use event::{Batch, Event, Member, Recovered, SettledGroup, Taker};
pub use staleness::{OnStale, Staleness};
pub use stats::Stats;

use crate::fault::{Fault, FaultKind};
use crate::ids::GroupId;
use crate::time::Time;
use crate::version::{BatchId, Version};

/// Settled groups, and the batch that the trainer has. Cost of an event: logarithmic in
/// the groups held, for each group that it moves.
#[derive(Debug)]
pub struct Buffer {
    config: Config,
    version: Version,
    /// By the version that counts for staleness, then in order of settling: what is
    /// first is given first, and is the first to be too old.
    waiting: BTreeMap<(Version, u64), SettledGroup>,
    /// Groups of `waiting` and of `taken`.
    known: BTreeSet<GroupId>,
    /// Trajectories of `waiting`.
    trajectories: usize,
    taken: Option<Taken>,
    /// Number of the last batch made.
    last: BatchId,
    settled: u64,
    takers: BTreeMap<Taker, Wish>,
    stats: Stats,
}

#[derive(Debug)]
struct Taken {
    batch: Batch,
    since: Time,
}

#[derive(Debug)]
struct Wish {
    groups: usize,
    since: Time,
}

/// What runs and may come to the buffer: training groups that are neither settled nor
/// aborted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Running {
    /// Open groups.
    pub groups: usize,
    /// Their trajectories that are not aborted.
    pub trajectories: usize,
}

impl Buffer {
    /// An empty buffer.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            version: Version::default(),
            waiting: BTreeMap::new(),
            known: BTreeSet::new(),
            trajectories: 0,
            taken: None,
            last: BatchId::default(),
            settled: 0,
            takers: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    /// Handles one event. A refused one changes nothing.
    pub fn on_event(&mut self, event: Event, now: Time) -> Result<Vec<Command>, Fault> {
        let mut out = Vec::new();
        match event {
            Event::Settled(group) => {
                self.insert(group, &mut out);
                self.deliver(now, &mut out);
            }
            Event::VersionChanged(version) => {
                self.version = self.version.max(version);
                self.evict(&mut out);
            }
            Event::Take { taker, groups } => self.take(taker, groups, now, &mut out)?,
            Event::Leave(taker) => self.leave(taker, now),
            Event::Ack(batch) => self.acknowledge(batch, now, &mut out)?,
            Event::Recovered(found) => self.recover(found, now, &mut out),
        }
        Ok(out)
    }

    /// Trajectories that may be started by opening groups now: none when the running and
    /// the buffered, with the batch that the trainer has, reach the bound. A group that
    /// is opened while there is room may pass the bound by what it starts less one.
    ///
    /// There is always room for what one batch needs, so nothing ever waits in a circle:
    /// while no batch is out and the groups open and buffered are fewer than the next
    /// batch wants, another may be opened, however many trajectories they have. Those
    /// that run settle, abort or are given up after their idle limit, so in the end there
    /// is a batch, or room; and a batch that is out ends with its acknowledgement.
    pub fn room(&self, running: Running) -> usize {
        let held = self.trajectories().saturating_add(running.trajectories);
        let room = self.config.bound().saturating_sub(held);
        let short = self.taken.is_none()
            && self.waiting.len().saturating_add(running.groups) < self.wanted();
        if short { room.max(1) } else { room }
    }

    /// Trajectories at which no further group is opened.
    pub fn bound(&self) -> usize {
        self.config.bound()
    }

    /// Groups held, those of the batch that the trainer has included.
    pub fn groups(&self) -> usize {
        self.known.len()
    }

    /// Trajectories held, those of the batch that the trainer has included.
    pub fn trajectories(&self) -> usize {
        let out = self.taken.as_ref().map_or(0, |taken| count(&taken.batch));
        self.trajectories + out
    }

    /// Whether the buffer or the batch that the trainer has holds the group.
    pub fn contains(&self, group: &GroupId) -> bool {
        self.known.contains(group)
    }

    /// The batch that is not acknowledged.
    pub fn taken(&self) -> Option<&Batch> {
        self.taken.as_ref().map(|taken| &taken.batch)
    }

    /// The current version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Counts and times up to `now`.
    pub fn stats(&self, now: Time) -> Stats {
        let mut stats = self.stats;
        stats.trainer_waited += self.waited(now);
        stats.trainer_held += self.held(now);
        stats
    }

    fn insert(&mut self, group: SettledGroup, out: &mut Vec<Command>) {
        if !self.known.insert(group.group.clone()) {
            return;
        }
        self.settled += 1;
        self.trajectories += group.trajectories.len();
        self.waiting.insert((self.age(&group), self.settled), group);
        self.evict(out);
    }

    /// The version of a group that counts for staleness: its oldest trajectory's.
    fn age(&self, group: &SettledGroup) -> Version {
        let counts = |member: &Member| match self.config.staleness.on_stale {
            OnStale::Abort => member.start,
            OnStale::Continue => member.oldest,
        };
        group.trajectories.iter().map(counts).min().unwrap_or(self.version)
    }

    fn evict(&mut self, out: &mut Vec<Command>) {
        while let Some(oldest) = self.waiting.first_entry() {
            if !self.config.staleness.is_older(oldest.key().0, self.version) {
                break;
            }
            let group = oldest.remove();
            self.known.remove(&group.group);
            self.trajectories -= group.trajectories.len();
            self.stats.groups_evicted += 1;
            self.stats.trajectories_evicted += group.trajectories.len() as u64;
            out.push(Command::Evict(group));
        }
    }

    fn take(
        &mut self,
        taker: Taker,
        groups: Option<usize>,
        now: Time,
        out: &mut Vec<Command>,
    ) -> Result<(), Fault> {
        let most = self.config.max_batch_groups;
        let groups = groups.unwrap_or(self.config.batch_groups);
        if groups == 0 || groups > most {
            let message = format!("a batch of {groups} groups was asked for; 1 to {most} can be");
            return Err(Fault::new(FaultKind::User, "BatchSize", message));
        }
        if self.takers.len() >= self.config.max_takers && !self.takers.contains_key(&taker) {
            let message =
                format!("{} callers wait for a batch; try again later", self.takers.len());
            let mut fault = Fault::new(FaultKind::Infrastructure, "TooManyTakers", message);
            fault.retry_after = Some(Duration::from_secs(1));
            return Err(fault);
        }
        if let Some(taken) = &self.taken {
            let batch = taken.batch.clone();
            out.push(Command::Deliver { batch, takers: vec![taker], again: true });
            return Ok(());
        }
        self.takers.entry(taker).or_insert(Wish { groups, since: now }).groups = groups;
        self.deliver(now, out);
        Ok(())
    }

    fn leave(&mut self, taker: Taker, now: Time) {
        let waited = self.waited(now);
        if self.takers.remove(&taker).is_some() {
            self.stats.trainer_waited += waited.saturating_sub(self.waited(now));
        }
    }

    /// Groups that the next batch needs.
    fn wanted(&self) -> usize {
        let wishes = self.takers.values().map(|wish| wish.groups).min();
        wishes.unwrap_or(self.config.batch_groups)
    }

    /// How long the trainer has been waiting.
    fn waited(&self, now: Time) -> Duration {
        let since = self.takers.values().map(|wish| wish.since).min();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// How long the trainer has had its batch.
    fn held(&self, now: Time) -> Duration {
        self.taken.as_ref().map_or(Duration::ZERO, |taken| now.since(taken.since))
    }

    /// Makes the next batch, if somebody waits and there is enough.
    fn deliver(&mut self, now: Time, out: &mut Vec<Command>) {
        let size = self.wanted();
        if self.takers.is_empty() || self.taken.is_some() || self.waiting.len() < size {
            return;
        }
        let waited = self.waited(now);
        self.stats.trainer_waited += waited;
        let takers = std::mem::take(&mut self.takers).into_keys().collect();
        let groups = (0..size).filter_map(|_| self.waiting.pop_first()).map(|(_, group)| group);
        self.last.0 += 1;
        let batch =
            Batch { id: self.last, version: self.version, groups: groups.collect(), waited };
        self.trajectories -= count(&batch);
        self.stats.batches += 1;
        self.stats.groups_taken += batch.groups.len() as u64;
        self.stats.trajectories_taken += count(&batch) as u64;
        self.taken = Some(Taken { batch: batch.clone(), since: now });
        out.push(Command::Deliver { batch, takers, again: false });
    }

    fn acknowledge(&mut self, id: BatchId, now: Time, out: &mut Vec<Command>) -> Result<(), Fault> {
        if id > self.last || id.0 == 0 {
            let message = format!("there is no batch {id}; the last one given is {}", self.last);
            return Err(Fault::new(FaultKind::User, "UnknownBatch", message));
        }
        let held = self.held(now);
        if let Some(taken) = self.taken.take_if(|taken| taken.batch.id == id) {
            let groups = taken.batch.groups;
            for group in &groups {
                self.known.remove(&group.group);
            }
            self.stats.acknowledged += 1;
            self.stats.trainer_held += held;
            out.push(Command::Remove { batch: id, groups });
        }
        Ok(())
    }

    fn recover(&mut self, found: Recovered, now: Time, out: &mut Vec<Command>) {
        let Recovered { version, groups, taken, last } = found;
        self.version = self.version.max(version);
        self.last = self.last.max(last);
        if let Some(batch) = taken {
            self.last = self.last.max(batch.id);
            self.known.extend(batch.groups.iter().map(|group| group.group.clone()));
            self.taken = Some(Taken { batch, since: now });
        }
        for group in groups {
            self.insert(group, out);
        }
    }
}

fn count(batch: &Batch) -> usize {
    batch.groups.iter().map(|group| group.trajectories.len()).sum()
}

#[cfg(test)]
mod tests;
