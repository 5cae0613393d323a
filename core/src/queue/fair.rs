//! Weighted fair share between jobs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::ids::JobId;
use crate::time::Time;

/// Who has how much now, and who had how much before.
///
/// The next to be served is the job that holds least for its weight at this
/// moment (instantaneous weighted max-min); among equals the one that was served
/// least so far. Nothing starves: a job without a running action stands before
/// every job that has one, and while it waits its served amount stays while that
/// of the others grows. A job that comes back is given the served amount of the
/// least served, so that absence earns no credit.
#[derive(Debug, Clone, Default)]
pub(super) struct FairShare {
    weights: BTreeMap<JobId, u32>,
    jobs: BTreeMap<JobId, Account>,
}

#[derive(Debug, Clone)]
struct Account {
    weight: f64,
    /// Held now.
    held: u64,
    /// Integral of `held` over time, divided by weight.
    served: f64,
    updated: Time,
    /// Waiting or holding members.
    members: usize,
}

impl Account {
    fn served_at(&self, now: Time) -> f64 {
        self.served + self.held as f64 * now.since(self.updated).as_secs_f64() / self.weight
    }
}

/// A job's standing: the smaller is served first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    held: f64,
    served: f64,
    weight: f64,
}

impl Standing {
    /// Where the job would stand if it held so much more.
    pub(super) fn after(self, amount: u64) -> Self {
        Self { held: self.held + amount as f64 / self.weight, ..self }
    }
}

impl Ord for Standing {
    fn cmp(&self, other: &Self) -> Ordering {
        self.held.total_cmp(&other.held).then(self.served.total_cmp(&other.served))
    }
}

impl PartialOrd for Standing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Standing {}

impl FairShare {
    pub(super) fn new(weights: BTreeMap<JobId, u32>) -> Self {
        Self { weights, jobs: BTreeMap::new() }
    }

    /// A member of `job` begins to wait.
    pub(super) fn join(&mut self, job: &JobId, now: Time) {
        if let Some(account) = self.jobs.get_mut(job) {
            account.members += 1;
            return;
        }
        let least = self.jobs.values().map(|account| account.served_at(now)).min_by(f64::total_cmp);
        let weight = f64::from(self.weights.get(job).copied().unwrap_or(1).max(1));
        let served = least.unwrap_or(0.0);
        self.jobs
            .insert(job.clone(), Account { weight, held: 0, served, updated: now, members: 1 });
    }

    /// A member of `job` has ended.
    pub(super) fn leave(&mut self, job: &JobId) {
        if let Some(account) = self.jobs.get_mut(job) {
            account.members -= 1;
            if account.members == 0 {
                self.jobs.remove(job);
            }
        }
    }

    /// A member of `job` takes `amount`.
    pub(super) fn take(&mut self, job: &JobId, amount: u64, now: Time) {
        if let Some(account) = self.jobs.get_mut(job) {
            account.served = account.served_at(now);
            account.updated = now;
            account.held += amount;
        }
    }

    /// A member of `job` returns `amount`.
    pub(super) fn give_back(&mut self, job: &JobId, amount: u64, now: Time) {
        if let Some(account) = self.jobs.get_mut(job) {
            account.served = account.served_at(now);
            account.updated = now;
            account.held = account.held.saturating_sub(amount);
        }
    }

    /// Where a job stands at `now`.
    pub(super) fn standing(&self, job: &JobId, now: Time) -> Standing {
        let nothing = Standing { held: 0.0, served: 0.0, weight: 1.0 };
        self.jobs.get(job).map_or(nothing, |account| Standing {
            held: account.held as f64 / account.weight,
            served: account.served_at(now),
            weight: account.weight,
        })
    }
}
