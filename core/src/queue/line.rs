//! Who waits for one node's cores (or for memory), by job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::fair::FairShare;
use crate::ids::JobId;
use crate::time::Time;

/// A line of waiting members, each with a key that says its place within its job.
#[derive(Debug, Clone)]
pub(super) struct Line<K, V = ()> {
    jobs: BTreeMap<JobId, BTreeMap<K, V>>,
    len: usize,
}

impl<K, V> Default for Line<K, V> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), len: 0 }
    }
}

impl<K: Ord + Clone, V> Line<K, V> {
    pub(super) fn insert(&mut self, job: &JobId, key: K, member: V) {
        let before = self.jobs.entry(job.clone()).or_default().insert(key, member);
        self.len += usize::from(before.is_none());
    }

    pub(super) fn remove(&mut self, job: &JobId, key: &K) {
        if let Some(members) = self.jobs.get_mut(job) {
            self.len -= usize::from(members.remove(key).is_some());
            if members.is_empty() {
                self.jobs.remove(job);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get_mut(&mut self, job: &JobId, key: &K) -> Option<&mut V> {
        self.jobs.get_mut(job)?.get_mut(key)
    }

    /// The next to be served: the first of the job that stands lowest; among equal
    /// standings the one with the lower key.
    pub(super) fn first(&self, fair: &FairShare, now: Time) -> Option<K> {
        let mut best = None;
        for (job, members) in &self.jobs {
            let Some((first, _)) = members.first_key_value() else { continue };
            if self.jobs.len() == 1 {
                return Some(first.clone());
            }
            let candidate = (fair.standing(job, now), first);
            if best.is_none_or(|lowest| candidate < lowest) {
                best = Some(candidate);
            }
        }
        best.map(|(_, key)| key.clone())
    }

    /// The first `most` in the order in which they would be served if each took
    /// `amount` and nothing ended meanwhile.
    pub(super) fn in_order(
        &self,
        fair: &FairShare,
        now: Time,
        most: usize,
        amount: impl Fn(&V) -> u64,
    ) -> Vec<(&K, &V)> {
        if self.jobs.len() == 1 {
            return self.jobs.values().flatten().take(most).collect();
        }
        let mut waiting: Vec<_> =
            self.jobs.values().map(|members| members.iter().peekable()).collect();
        let standings = self.jobs.keys().map(|job| fair.standing(job, now));
        let mut heap: BinaryHeap<_> = standings
            .zip(&mut waiting)
            .enumerate()
            .filter_map(|(index, (standing, members))| {
                members.peek().map(|(first, _)| Reverse((standing, *first, index)))
            })
            .collect();
        let mut order = Vec::with_capacity(most.min(self.len));
        while order.len() < most
            && let Some(Reverse((standing, _, index))) = heap.pop()
        {
            let Some((key, member)) = waiting[index].next() else { continue };
            order.push((key, member));
            if let Some((next, _)) = waiting[index].peek() {
                heap.push(Reverse((standing.after(amount(member)), *next, index)));
            }
        }
        order
    }
}
