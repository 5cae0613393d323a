//! Scoring of trajectories by reward services.
//!
//! A fault of infrastructure is tried again, and at the end reported as a fault: it never
//! becomes a number.

mod command;
mod config;
mod event;

pub use command::Command;
pub use config::{Backoff, Circuit, Config, Service};
pub use event::{CallId, Event, ServiceIndex};

use crate::fault::Fault;
use crate::time::Time;

/// The reward services of a job.
#[derive(Debug)]
pub struct Rewards {
    config: Config,
}

/// What one service does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Calls in flight.
    pub running: usize,
    /// Trajectories that wait for a call.
    pub waiting: usize,
    /// It gets no calls.
    pub open: bool,
    /// Calls made.
    pub calls: u64,
    /// Calls that ended in a fault of infrastructure or in time.
    pub faults: u64,
    /// Trajectories scored.
    pub scored: u64,
}

impl Rewards {
    /// No trajectory is scored yet.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Handles one event. A refused one changes nothing.
    pub fn on_event(&mut self, _event: Event, _now: Time) -> Result<Vec<Command>, Fault> {
        Ok(Vec::new())
    }

    /// When [`Event::Tick`] is due, unless another event comes first.
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// What a service does; `None` for one that does not exist.
    pub fn stats(&self, service: ServiceIndex) -> Option<ServiceStats> {
        self.config.services.get(service.0).map(|_| ServiceStats::default())
    }

    /// Trajectories that wait or are being scored.
    pub fn scoring(&self) -> usize {
        0
    }
}
