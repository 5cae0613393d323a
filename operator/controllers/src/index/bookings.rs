//! GPUs for workers that are made and that no cache shows yet: pure. Jobs are looked at side by
//! side: without this book two of them would choose the same GPUs, and each make way for the
//! other at its next look. It is kept in memory alone; without it things only take longer, as the
//! scheduler gives no GPU twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use super::Index;
use super::pods::{self, Key};
use crate::pool::has_ended;

/// So long after it was sent a cache shows a pod, or it was never made.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// The book of all jobs.
#[derive(Debug, Default)]
pub(super) struct Bookings {
    /// By namespace and name of the worker.
    made: BTreeMap<Key, Booked>,
}

/// What is booked for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Booked {
    /// Name of its job.
    pub(crate) job: String,
    /// Nodes of which no cache shows its pod yet.
    pub(crate) nodes: Vec<String>,
    /// GPUs on each of them.
    pub(crate) gpus: u32,
    /// When it was sent to the API server; none as long as it was not.
    sent: Option<Instant>,
}

impl Bookings {
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Booked)> {
        self.made.iter()
    }

    pub(super) fn note(&mut self, worker: Key, job: &str, nodes: Vec<String>, gpus: u32) {
        let booked = Booked { job: job.to_owned(), nodes, gpus, sent: None };
        self.made.insert(worker, booked);
    }

    fn sent(&mut self, worker: &Key, now: Instant) {
        if let Some(booked) = self.made.get_mut(worker) {
            booked.sent = Some(now);
        }
    }

    /// What is too old was never made.
    pub(super) fn expire(&mut self, now: Instant) {
        let old = |at: Instant| now.saturating_duration_since(at) >= LONGEST;
        self.made.retain(|_, booked| !booked.sent.is_some_and(old));
    }

    /// A cache shows the pod: from now on it counts itself, on the node that it is on or for.
    pub(super) fn shown(&mut self, pod: &Pod, gone: bool) {
        if self.made.is_empty() {
            return;
        }
        let worker = pods::worker_of(pod);
        let Some(booked) = self.made.get_mut(&worker) else { return };
        match pods::place(pod) {
            _ if gone || has_ended(pod) => booked.nodes.clear(),
            Some(place) => booked.nodes.retain(|node| *node != place),
            // A part of it, on one of several nodes.
            None => {}
        }
        if booked.nodes.is_empty() {
            self.made.remove(&worker);
        }
    }

    fn strike(&mut self, worker: &Key) {
        self.made.remove(worker);
    }
}

/// Workers that a job is about to make. What was not sent when this is dropped is struck out: a
/// pass may end anywhere.
#[derive(Debug)]
pub(crate) struct Booking {
    index: Index,
    namespace: String,
    unsent: Mutex<BTreeSet<String>>,
}

impl Booking {
    pub(super) fn new(index: Index, namespace: &str, workers: Vec<String>) -> Self {
        let unsent = Mutex::new(workers.into_iter().collect());
        Self { index, namespace: namespace.to_owned(), unsent }
    }

    /// From now on it may be there, whatever the answer.
    pub(crate) fn sent(&self, worker: &str, now: Instant) {
        let key = (self.namespace.clone(), worker.to_owned());
        self.index.open().bookings.sent(&key, now);
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
    }

    /// The API server said that it made no such thing.
    pub(crate) fn refused(&self, worker: &str) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.insert(worker.to_owned());
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let unsent = self.unsent.get_mut().unwrap_or_else(PoisonError::into_inner);
        if unsent.is_empty() {
            return;
        }
        let mut inner = self.index.open();
        for worker in std::mem::take(unsent) {
            inner.bookings.strike(&(self.namespace.clone(), worker));
        }
    }
}
