//! The engine: continuous batching over a simulated model.
//!
//! All state is behind one lock, and one task ([`Engine::run`]) makes the decode steps.
//! What a step does is in `schedule`; pause, sleep and weights are in files of their own.

mod control;
mod schedule;
mod sequence;
#[cfg(test)]
mod tests;
mod transfer;
mod weights;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

pub(crate) use control::{Pause, Refusal, SleepRequest};
pub(crate) use sequence::{Finish, Generated, Generation, Request};
pub(crate) use transfer::{Handover, Kv, Wanted};

use crate::config::Config;
use crate::kv::PrefixCache;
use crate::ledger::{Ledger, Outcome};
use crate::policy::Policy;
use control::Residence;
use schedule::Next;
use sequence::Sequence;
use transfer::Transfers;
use weights::Weights;

/// Steps that a clock which cannot sleep so briefly may owe before they are forgiven.
const MAX_DEBT: std::time::Duration = std::time::Duration::from_millis(20);
/// Seconds between two starts of a process at least.
const RESTART: f64 = 2.0;

/// The engine, shared by all handlers.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: Config,
    state: Mutex<State>,
    /// Something came that the idle scheduler should look at.
    wake: Notify,
    /// A sequence has left: a drain may be over.
    left: Notify,
    /// Where other instances find it.
    pub(crate) side: Option<SocketAddr>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    policy: Policy,
    waiting: Vec<Sequence>,
    running: Vec<Sequence>,
    cache: PrefixCache,
    pause: Option<Pause>,
    /// Where the weights and the KV cache are.
    residence: Residence,
    weights: Weights,
    transfers: Transfers,
    pub(crate) ledger: Ledger,
    /// The number of the next sequence; also the order of arrival.
    next: u64,
    /// When the prefill under way ends; they go one after the other.
    prefill_free: Instant,
    pub(crate) totals: Totals,
    /// When the process began, in seconds since 1970.
    pub(crate) started: f64,
}

/// Counters of the metrics.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) preemptions: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) cache_queries: u64,
    pub(crate) cache_hits: u64,
    pub(crate) requests: u64,
}

/// How busy it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) used_tokens: usize,
}

impl Engine {
    /// An engine at rest; [`Self::run`] drives it.
    pub(crate) fn new(config: Config, side: Option<SocketAddr>) -> Arc<Self> {
        let state = State::new(&config);
        Arc::new(Self {
            config,
            state: Mutex::new(state),
            wake: Notify::new(),
            left: Notify::new(),
            side,
        })
    }

    /// The state. A panic under the lock leaves a state that is still worth reading.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes decode steps for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut due = Instant::now();
        loop {
            let woken = self.wake.notified();
            let now = Instant::now();
            let (next, left) = {
                let mut state = self.lock();
                let before = state.running.len() + state.waiting.len();
                let next = state.step(&self.config, now);
                (next, state.running.len() + state.waiting.len() < before)
            };
            if left {
                self.left.notify_waiters();
            }
            match next {
                Next::Idle => woken.await,
                Next::Prefill(until) => tokio::select! {
                    () = woken => {}
                    () = sleep_until(until) => {}
                },
                Next::Step(duration) => {
                    due = if due + MAX_DEBT < now { now } else { due } + duration;
                    if due > now && !duration.is_zero() {
                        sleep_until(due).await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    /// The scheduler should look again.
    fn nudge(&self) {
        self.wake.notify_one();
        self.left.notify_waiters();
    }

    /// Waits until no sequence that arrived before `number` is left.
    async fn drained(&self, number: u64) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if !self.lock().sequences().any(|sequence| sequence.number < number) {
                return;
            }
            left.await;
        }
    }

    /// How busy it is.
    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        Load {
            running: state.running.len(),
            waiting: state.waiting.len(),
            used_tokens: state.used_tokens(),
        }
    }

    /// Forgets what runs without an answer, as a killed process would.
    pub(crate) fn lose_all(&self) {
        let mut state = self.lock();
        for sequence in state.take(|_| true) {
            if let Some(record) = state.ledger.request(sequence.record) {
                record.outcome = Outcome::Lost;
            }
        }
    }

    /// Starts anew with the weights of `version`, as a restarted process would: nothing
    /// that ran is answered; the ledger is kept.
    pub(crate) fn restart(&self, version: u64) {
        self.lose_all();
        let mut state = self.lock();
        let ledger = std::mem::take(&mut state.ledger);
        let (next, before) = (state.next, state.started);
        *state = State::new(&self.config);
        // No real engine is up again sooner.
        state.started = state.started.max(before + RESTART);
        state.weights = Weights::new(version);
        state.ledger = ledger;
        state.next = next;
        drop(state);
        self.nudge();
    }
}

impl State {
    fn new(config: &Config) -> Self {
        Self {
            policy: Policy { seed: config.seed, mean_tokens: config.mean_tokens },
            waiting: Vec::new(),
            running: Vec::new(),
            cache: PrefixCache::new(config.capacity.block),
            pause: None,
            residence: Residence::default(),
            weights: Weights::new(config.version),
            transfers: Transfers::default(),
            ledger: Ledger::default(),
            next: 0,
            prefill_free: Instant::now(),
            totals: Totals::default(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        }
    }

    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(&self.waiting)
    }

    fn idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Tokens whose KV the running sequences hold. Shared prefixes count for each.
    pub(crate) fn used_tokens(&self) -> usize {
        self.running.iter().map(|sequence| sequence.context.len()).sum()
    }
}
