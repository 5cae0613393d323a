//! Who waits for one node's cores (or for memory), by job, in order of submission.

use std::collections::{BTreeMap, BTreeSet};

use super::fair::FairShare;
use crate::ids::JobId;
use crate::time::Time;

/// A line of waiting members, each named by a key that grows with submission.
#[derive(Debug, Clone)]
pub(super) struct Line<K> {
    jobs: BTreeMap<JobId, BTreeSet<K>>,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Line<K> {
    pub(super) fn insert(&mut self, job: &JobId, key: K) {
        self.jobs.entry(job.clone()).or_default().insert(key);
    }

    pub(super) fn remove(&mut self, job: &JobId, key: &K) {
        if let Some(keys) = self.jobs.get_mut(job) {
            keys.remove(key);
            if keys.is_empty() {
                self.jobs.remove(job);
            }
        }
    }

    /// The next to be served: the oldest of the job that stands lowest; among
    /// equal standings the older.
    pub(super) fn first(&self, fair: &FairShare, now: Time) -> Option<K> {
        let mut best = None;
        for (job, keys) in &self.jobs {
            let Some(oldest) = keys.first() else { continue };
            if self.jobs.len() == 1 {
                return Some(oldest.clone());
            }
            let candidate = (fair.standing(job, now), oldest);
            if best.is_none_or(|lowest| candidate < lowest) {
                best = Some(candidate);
            }
        }
        best.map(|(_, key)| key.clone())
    }
}
