//! Placements that were made and that the cache of pods does not show yet. Jobs are looked at
//! side by side: without this book two of them would choose the same GPUs, and each make way for
//! the other at its next look. It is kept in memory alone; without it things only take longer,
//! as the scheduler gives no GPU twice.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fleet::Nodes;
use super::plan::Placement;

/// After so long the cache shows a pod, or it was never made.
const LONGEST: Duration = Duration::from_secs(30);

/// The book of all jobs.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    made: Mutex<BTreeMap<Key, Entry>>,
}

/// Namespace and name of a worker.
type Key = (String, String);

#[derive(Debug)]
struct Entry {
    job: String,
    placement: Placement,
    at: Instant,
}

impl Ledger {
    /// Opens the book: nobody else decides until it is closed. What `shown` says is in the cache,
    /// and what is too old, is struck out.
    pub(super) fn open(&self, mut shown: impl FnMut(&str, &str) -> bool, now: Instant) -> Book<'_> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(namespace, name), entry| {
            !shown(namespace, name) && now.saturating_duration_since(entry.at) < LONGEST
        });
        Book { made, now }
    }

    /// They were not made after all, as far as is known.
    pub(super) fn forget<'a>(&self, namespace: &str, names: impl Iterator<Item = &'a String>) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            made.remove(&(namespace.to_owned(), name.clone()));
        }
    }
}

/// The open book.
#[derive(Debug)]
pub(super) struct Book<'a> {
    made: MutexGuard<'a, BTreeMap<Key, Entry>>,
    now: Instant,
}

impl Book<'_> {
    /// Counts what other jobs made as taken.
    pub(super) fn take(&self, namespace: &str, job: &str, nodes: &mut Nodes) {
        let others =
            self.made.iter().filter(|((of, _), entry)| of != namespace || entry.job != job);
        for (_, entry) in others {
            for node in &entry.placement.nodes {
                if let Some(node) = nodes.get_mut(node) {
                    node.taken = node.taken.saturating_add(entry.placement.gpus_per_node());
                }
            }
        }
    }

    /// Notes a worker that is about to be made.
    pub(super) fn note(&mut self, namespace: &str, job: &str, name: &str, placement: &Placement) {
        let entry = Entry { job: job.to_owned(), placement: placement.clone(), at: self.now };
        self.made.insert((namespace.to_owned(), name.to_owned()), entry);
    }
}

#[cfg(test)]
mod tests;
