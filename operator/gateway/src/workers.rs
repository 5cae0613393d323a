//! The health of workers: one task a worker asks its engine and says what has changed.
//! A restart is noticed, since a process that we have not updated holds whatever it says
//! and nothing that we gave to its predecessor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollwright_core::fault::Fault;
use rollwright_core::ids::WorkerId;
use rollwright_core::version::Version;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::engine::control::{Control, Load};

/// How often an engine is asked, and what it takes to believe a change.
#[derive(Debug, Clone, Copy)]
pub struct WatchConfig {
    /// Between two checks.
    pub interval: Duration,
    /// Metrics are read at every so many checks; at least 1.
    pub load_every: u32,
    /// Checks that fail in a row before a healthy worker counts as unhealthy.
    pub fail_after: u32,
    /// Checks that pass in a row before an unhealthy worker counts as healthy. The first
    /// contact needs one.
    pub recover_after: u32,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), load_every: 5, fail_after: 3, recover_after: 2 }
    }
}

/// What has changed at a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerEvent {
    /// Whose engine.
    pub worker: WorkerId,
    /// The number of the watch that saw it.
    pub watch: u64,
    /// What.
    pub change: Change,
}

/// A change at a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// First contact, a restart, or weights that nobody here gave it: what it holds is
    /// what it says. Comes before the `Healthy` of the same check.
    Fresh {
        /// The version that it says it holds; `None` where it says none.
        version: Option<Version>,
    },
    /// It can serve.
    Healthy,
    /// It cannot.
    Unhealthy {
        /// What the last check said.
        fault: Fault,
    },
    /// What it does at this moment.
    Load(Load),
}

/// Which versions its engine may say it holds.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    held: Option<Version>,
    coming: Option<Version>,
}

impl Expected {
    fn allows(self, said: Option<Version>) -> bool {
        said == self.held || (said.is_some() && said == self.coming)
    }
}

type Shared = Arc<Mutex<Expected>>;

fn with<T>(expected: &Shared, act: impl FnOnce(&mut Expected) -> T) -> T {
    act(&mut expected.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The task of one worker; dropping it ends the task.
#[derive(Debug)]
pub struct Watch {
    task: JoinHandle<()>,
    expected: Shared,
}

impl Watch {
    /// Begins to ask. The first check is made at once. `number` is given with every event.
    pub fn start(
        worker: WorkerId,
        number: u64,
        control: Control,
        config: WatchConfig,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Self {
        let expected = Shared::default();
        let watcher = Watcher {
            worker,
            number,
            control,
            config,
            events,
            expected: Arc::clone(&expected),
            health: Health::default(),
            seen: None,
            checks: 0,
        };
        Self { task: tokio::spawn(watcher.run()), expected }
    }

    /// An update to `version` begins: from now on the engine may say either.
    pub fn updating(&self, version: Version) {
        with(&self.expected, |expected| expected.coming = Some(version));
    }

    /// An update has ended, well or not: this is what the engine must hold; `None` when
    /// that is not known.
    pub fn holds(&self, version: Option<Version>) {
        with(&self.expected, |expected| *expected = Expected { held: version, coming: None });
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Hysteresis: believed only after several checks in a row.
#[derive(Debug, Default)]
struct Health {
    up: Option<bool>,
    streak: u32,
}

impl Health {
    /// The new belief, if this check changes it.
    fn check(&mut self, passed: bool, config: &WatchConfig) -> Option<bool> {
        if self.up == Some(passed) {
            self.streak = 0;
            return None;
        }
        self.streak = self.streak.saturating_add(1);
        let needed = match (self.up, passed) {
            (None, true) => 1,
            (_, true) => config.recover_after,
            (_, false) => config.fail_after,
        };
        if self.streak < needed.max(1) {
            return None;
        }
        *self = Self { up: Some(passed), streak: 0 };
        Some(passed)
    }
}

/// What is known of the process behind the address.
#[derive(Debug, Clone, Copy)]
struct Seen {
    started: Option<f64>,
    /// It has said a version: then silence is a change too.
    says_version: bool,
    /// It could not be reached since.
    lost: bool,
}

/// Start times are read from `/proc` and may be rounded differently.
const SAME_START: f64 = 1.0;

struct Watcher {
    worker: WorkerId,
    number: u64,
    control: Control,
    config: WatchConfig,
    events: mpsc::Sender<WorkerEvent>,
    expected: Shared,
    health: Health,
    seen: Option<Seen>,
    checks: u32,
}

/// Nobody listens any more.
struct Closed;

impl Watcher {
    async fn run(mut self) {
        let mut pace = tokio::time::interval(self.config.interval);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            if let Err(Closed) = self.check().await {
                return;
            }
        }
    }

    async fn check(&mut self) -> Result<(), Closed> {
        let before = with(&self.expected, |expected| *expected);
        let answered = match self.control.health().await {
            Ok(()) => self.control.version().await,
            Err(fault) => Err(fault),
        };
        match answered {
            Ok(said) => {
                let load = self.load().await;
                if self.is_fresh(said, load, before) {
                    with(&self.expected, |expected| {
                        *expected = Expected { held: said, coming: None };
                    });
                    self.emit(Change::Fresh { version: said }).await?;
                }
                self.remember(said, load);
                if self.health.check(true, &self.config) == Some(true) {
                    self.emit(Change::Healthy).await?;
                }
                match load {
                    Some(load) => self.emit(Change::Load(load)).await,
                    None => Ok(()),
                }
            }
            Err(fault) => {
                if let Some(seen) = &mut self.seen {
                    seen.lost = true;
                }
                tracing::debug!(worker = %self.worker, %fault, "a health check failed");
                if self.health.check(false, &self.config) == Some(false) {
                    self.emit(Change::Unhealthy { fault }).await?;
                }
                Ok(())
            }
        }
    }

    /// Every few checks, and whenever it may be another process.
    async fn load(&mut self) -> Option<Load> {
        let doubted = self.seen.is_none_or(|seen| seen.lost);
        let due = self.checks.is_multiple_of(self.config.load_every.max(1));
        self.checks = self.checks.wrapping_add(1);
        if !doubted && !due {
            return None;
        }
        match self.control.load().await {
            Ok(load) => load,
            Err(fault) => {
                tracing::debug!(worker = %self.worker, %fault, "its metrics cannot be read");
                None
            }
        }
    }

    fn is_fresh(&self, said: Option<Version>, load: Option<Load>, before: Expected) -> bool {
        let Some(seen) = self.seen else { return true };
        // An update may have begun or ended while the engine was asked.
        let now = with(&self.expected, |expected| *expected);
        let foreign =
            (said.is_some() || seen.says_version) && !before.allows(said) && !now.allows(said);
        if foreign {
            return true;
        }
        match (seen.started, load.and_then(|load| load.started)) {
            (Some(then), Some(now)) => (then - now).abs() > SAME_START,
            // Without a start time only a version that we gave it proves that it is the same.
            _ => seen.lost && said.is_none(),
        }
    }

    fn remember(&mut self, said: Option<Version>, load: Option<Load>) {
        let started = load.and_then(|load| load.started);
        let before = self.seen;
        self.seen = Some(Seen {
            started: started.or(before.and_then(|seen| seen.started)),
            says_version: said.is_some() || before.is_some_and(|seen| seen.says_version),
            lost: false,
        });
    }

    async fn emit(&self, change: Change) -> Result<(), Closed> {
        let event = WorkerEvent { worker: self.worker.clone(), watch: self.number, change };
        self.events.send(event).await.map_err(|_| Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_check_is_no_outage_and_one_good_one_no_recovery() {
        let config = WatchConfig { fail_after: 3, recover_after: 2, ..WatchConfig::default() };
        let mut health = Health::default();
        let mut beliefs = |checks: &str| -> String {
            let believed = |passed: char| match health.check(passed == '+', &config) {
                Some(true) => 'U',
                Some(false) => 'D',
                None => '.',
            };
            checks.chars().map(believed).collect()
        };
        assert_eq!(beliefs("++-+--+"), "U......");
        assert_eq!(beliefs("---"), "..D");
        assert_eq!(beliefs("--+-+-"), "......");
        assert_eq!(beliefs("++"), ".U");
    }

    #[test]
    fn an_engine_that_was_never_there_is_down_after_three_checks() {
        let config = WatchConfig::default();
        let mut health = Health::default();
        let beliefs: Vec<_> = (0..5).map(|_| health.check(false, &config)).collect();
        assert_eq!(beliefs, [None, None, Some(false), None, None]);
    }
}
