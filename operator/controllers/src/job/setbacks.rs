//! Workers that fail, and the nodes that they failed on.
//!
//! A worker that never gets to run is given up after a while, and where one failed none is made
//! for a time that doubles with each failure: a node that ends every pod at once would else see a
//! new one at the pace of events. All of it is kept in memory alone; controllers that start anew
//! begin with the shortest waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fleet::{Nodes, Stage, Trust};
use super::observe::Seen;

/// How long a node is left alone after a first failure.
const FIRST: Duration = Duration::from_secs(10);
/// Longest time that it is left alone.
const LONGEST: Duration = Duration::from_mins(5);
/// A failure so long ago says nothing any more: longer than a worker takes to fail for good
/// where it starts again and again, with the longest wait before it.
const FORGOTTEN: Duration = Duration::from_mins(30);

/// What every job's workers went through: no more entries than workers and their nodes.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    jobs: Mutex<HashMap<String, OfJob>>,
}

#[derive(Debug)]
struct OfJob {
    /// Since when each worker has been in trouble.
    troubled: BTreeMap<String, Instant>,
    /// Workers whose failure is counted.
    counted: BTreeSet<String>,
    nodes: BTreeMap<String, Setback>,
    looked: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Setback {
    failures: u32,
    last: Instant,
}

impl Setback {
    fn rests(&self, now: Instant) -> bool {
        let wait = FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST);
        now.saturating_duration_since(self.last) < wait
    }
}

impl Setbacks {
    /// Gives up the workers of job `uid` that have been in trouble for too long, counts those that
    /// failed, and notes on the nodes how far they are to be trusted.
    pub(super) fn judge(&self, uid: &str, seen: &mut [Seen], nodes: &mut Nodes, now: Instant) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, of| now.saturating_duration_since(of.looked) < FORGOTTEN);
        let fine = seen.iter().all(|seen| seen.trial.is_none() && !seen.failed);
        if fine && !jobs.contains_key(uid) {
            return;
        }
        let of = jobs.entry(uid.to_owned()).or_insert_with(|| OfJob::new(now));
        of.look(seen, now);
        for (name, node) in nodes {
            node.trust = match of.nodes.get(name) {
                None => Trust::Good,
                Some(setback) if setback.rests(now) => Trust::None,
                Some(_) => Trust::Low,
            };
        }
        if of.is_clear() {
            jobs.remove(uid);
        }
    }
}

impl OfJob {
    fn new(now: Instant) -> Self {
        let nodes = BTreeMap::new();
        Self { troubled: BTreeMap::new(), counted: BTreeSet::new(), nodes, looked: now }
    }

    fn look(&mut self, seen: &mut [Seen], now: Instant) {
        self.looked = now;
        self.nodes.retain(|_, of| now.saturating_duration_since(of.last) < FORGOTTEN);
        let mut troubled = BTreeMap::new();
        for seen in seen.iter_mut() {
            let Some(trial) = seen.trial else { continue };
            let name = &seen.worker.name;
            let since = self.troubled.get(name).copied().unwrap_or(now);
            troubled.insert(name.clone(), since);
            if now.saturating_duration_since(since) >= trial.patience() {
                seen.worker.stage = Stage::Failing;
                seen.failed = true;
            }
        }
        self.troubled = troubled;
        let failed = || seen.iter().filter(|seen| seen.failed);
        for seen in failed().filter(|seen| !self.counted.contains(&seen.worker.name)) {
            for node in &seen.worker.nodes {
                let fresh = Setback { failures: 0, last: now };
                let setback = self.nodes.entry(node.clone()).or_insert(fresh);
                // Eight that fail together are one failure.
                if setback.failures == 0 || !setback.rests(now) {
                    *setback = Setback { failures: setback.failures.saturating_add(1), last: now };
                }
            }
        }
        self.counted = failed().map(|seen| seen.worker.name.clone()).collect();
    }

    fn is_clear(&self) -> bool {
        self.troubled.is_empty() && self.counted.is_empty() && self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests;
