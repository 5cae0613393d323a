//! How a new version of the policy's weights reaches the workers: the six steps of
//! `RollArt` 6.2 as begin, commit and abort.
//!
//! A worker serves only while it is known to hold the current version (or, in a rolling
//! update, the one that is about to be; or the one that it keeps for an evaluation).
//! Every update that is begun ends in [`Command::Committed`] or [`Command::Aborted`]. A
//! worker that fails is out of service until it has been brought to the current version.

mod command;
mod config;
mod event;
mod membership;
mod pins;
mod steps;
mod turns;
mod update;
mod view;
mod worker;

use std::collections::BTreeMap;
use std::mem;

pub use command::{Command, Committed, Step};
pub use config::{Config, InFlight, Strategy};
pub use event::{Event, Source, Transfer};
pub use view::{WorkerState, WorkerView};

use self::update::{Ended, Update};
use self::worker::Worker;
use crate::fault::{Fault, FaultKind};
use crate::ids::{GroupId, WorkerId};
use crate::time::Time;
use crate::version::Version;

/// The weights of one job's workers.
///
/// What the router says of a worker it hears second: give an event about a worker
/// (joined, restarted, left) to this first, and its commands to the router in order.
#[derive(Debug)]
pub struct Weights {
    config: Config,
    now: Time,
    current: Version,
    /// Where the current version can be had from.
    source: Source,
    /// What the last commit came to.
    last: Option<Committed>,
    update: Option<Update>,
    /// The last update that was aborted.
    ended: Option<Ended>,
    workers: BTreeMap<WorkerId, Worker>,
    pins: BTreeMap<GroupId, Version>,
    next_call: u64,
    due: Option<Time>,
    out: Vec<Command>,
}

impl Weights {
    /// No workers yet. `current` is the version to serve, and `source` where it can be
    /// had from: [`Source::Launch`] before the first commit.
    pub fn new(config: Config, current: Version, source: Source) -> Self {
        Self {
            config,
            now: Time::ZERO,
            current,
            source,
            last: None,
            update: None,
            ended: None,
            workers: BTreeMap::new(),
            pins: BTreeMap::new(),
            next_call: 0,
            due: None,
            out: Vec::new(),
        }
    }

    /// Handles one event. `now` never runs backwards: an earlier one counts as the
    /// latest seen.
    ///
    /// An error is a refusal, and nothing has changed by the event: `VersionNotGreater`,
    /// `AnotherBegun`, `UpdateUnderWay`, `UnknownVersion`, `UpdateExpired`,
    /// `UpdateAborted`, `NotSuspended`, `MissingPath`, `UnknownWorker`, `PinConflict`,
    /// `TooManyPins`.
    pub fn on_event(&mut self, event: Event, now: Time) -> Result<Vec<Command>, Fault> {
        self.now = self.now.max(now);
        self.handle(event)?;
        self.review();
        let workers = self.workers.values().filter_map(Worker::due);
        self.due = workers.chain(self.update.as_ref().and_then(Update::due)).min();
        Ok(mem::take(&mut self.out))
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.due
    }

    fn handle(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Joined { worker, version } => self.joined(&worker, version),
            Event::Left(worker) => {
                self.known(&worker)?;
                self.left(&worker);
            }
            Event::Restarted { worker, version } => {
                self.known(&worker)?;
                self.restarted(&worker, version);
            }
            Event::Begin { version, transfer, deadline } => {
                self.begin(version, transfer, deadline)?;
            }
            Event::Commit { version, path } => self.commit(version, path)?,
            Event::Abort { version } => self.abort(version)?,
            Event::Idle(worker) => {
                self.known(&worker)?;
                self.idle(&worker);
            }
            Event::Answered { worker, call, result } => self.answered(&worker, call, result),
            Event::Pin { group, version } => self.pin(group, version)?,
            Event::Unpin(group) => self.unpin(&group),
            Event::Tick => self.tick(),
        }
        Ok(())
    }

    fn known(&self, worker: &WorkerId) -> Result<(), Fault> {
        if self.workers.contains_key(worker) {
            return Ok(());
        }
        let message = format!("no worker `{worker}` is here: it must join first");
        Err(Fault::new(FaultKind::User, "UnknownWorker", message))
    }

    /// The version that a worker is to hold, and where it is to be had from.
    fn goal(&self) -> (Version, Source) {
        let committing = self.update.as_ref().and_then(Update::committing);
        committing.unwrap_or_else(|| (self.current, self.source.clone()))
    }

    fn ids(&self) -> Vec<WorkerId> {
        self.workers.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
