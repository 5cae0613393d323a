//! What the controllers ask of all pods and nodes, kept up to date by what the watches tell: no
//! pass over one object walks those of all. And the books of GPUs: what pods hold, and what is
//! promised to workers that no cache shows yet, under one lock, so that what is in neither or in
//! both is seen by nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::stores::Stores;
use crate::watch::{Change, What};

mod bookings;
mod nodes;
mod pods;

pub(crate) use bookings::{Booked, Booking};
pub(crate) use nodes::GpuNode;
pub(crate) use pods::{Held, Key, job_of};

use bookings::Bookings;
use nodes::GpuNodes;
use pods::Pods;

/// The index. As many entries as there are pods that matter, and nodes of GPU pools.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    pods: Pods,
    nodes: GpuNodes,
    bookings: Bookings,
}

impl Index {
    /// Follows a change that a watch saw. To be told before the controllers are, and after the
    /// caches: those are read under the lock, so that nothing that is told meanwhile is lost.
    pub(crate) fn follow(&self, change: &Change<'_>, stores: &Stores) {
        match change.what {
            What::Pod(pod) => self.pod(pod, change.gone),
            What::Node(node) if change.gone => self.open().nodes.forget(&node.name_any()),
            What::Node(node) => self.open().nodes.note(node),
            What::Pool(pool) if change.gone => self.open().nodes.forget_pool(&pool.name_any()),
            What::Pool(pool) => self.open().nodes.note_pool(pool, || stores.nodes.state()),
            // A cache was filled anew, maybe.
            What::Everything => {
                self.refill(|| stores.pods.state());
                let mut inner = self.open();
                inner.nodes = GpuNodes::default();
                for pool in stores.pools.state() {
                    inner.nodes.note_pool(&pool, || stores.nodes.state());
                }
            }
            What::PoolFigures(_)
            | What::Job(_)
            | What::Queue(_)
            | What::Reward(_)
            | What::Owned(..) => {}
        }
    }

    /// A pod as a watch shows it.
    pub(crate) fn pod(&self, pod: &Pod, gone: bool) {
        let inner = &mut *self.open();
        if gone {
            inner.pods.forget(&pods::key(pod));
        } else {
            inner.pods.note(pod);
        }
        inner.bookings.shown(pod, gone);
    }

    /// All pods anew.
    pub(crate) fn refill(&self, all: impl FnOnce() -> Vec<Arc<Pod>>) {
        let inner = &mut *self.open();
        inner.pods = Pods::default();
        for pod in all() {
            inner.pods.note(&pod);
            inner.bookings.shown(&pod, false);
        }
    }

    /// Names of the pods whose labels say that they are of this job.
    pub(crate) fn pods_of(&self, job: &Key) -> Vec<String> {
        self.open().pods.of_job(job)
    }

    /// GPUs that the pods of this job ask for on one pool.
    pub(crate) fn gpus_of(&self, job: &Key, pool: &str) -> u32 {
        self.open().pods.gpus_of(job, pool)
    }

    /// The nodes of a GPU pool.
    pub(crate) fn nodes_of(&self, pool: &str) -> BTreeMap<String, GpuNode> {
        self.open().nodes.of(pool).cloned().unwrap_or_default()
    }

    /// Everything as it is at one moment: nothing is noted or booked until this is closed.
    pub(crate) fn read(&self) -> Reading<'_> {
        Reading(self.open())
    }

    /// The books as they are at one moment, for who may book.
    pub(crate) fn books(&self, now: Instant) -> Books<'_> {
        let mut inner = self.open();
        inner.bookings.expire(now);
        Books(inner)
    }

    fn open(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open index.
pub(crate) struct Reading<'a>(MutexGuard<'a, Inner>);

impl Reading<'_> {
    /// Pods that are bound to a node, or were made for it, and have not ended.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = (&Key, &Held)> {
        self.0.pods.on(node)
    }

    /// Jobs with workers in a pool that have not ended.
    pub(crate) fn holders(&self, pool: &str) -> impl Iterator<Item = &Key> {
        self.0.pods.holders(pool)
    }

    /// All reservation pods.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = &Key> {
        self.0.pods.reservations()
    }
}

/// The open books: nobody else books until they are closed.
pub(crate) struct Books<'a>(MutexGuard<'a, Inner>);

impl Books<'_> {
    /// Names of the pods whose labels say that they are of this job.
    pub(crate) fn pods_of(&self, job: &Key) -> Vec<String> {
        self.0.pods.of_job(job)
    }

    /// GPUs of a node that pods hold, or are to hold, but for some.
    pub(crate) fn held(&self, node: &str, but: impl Fn(&Key) -> bool) -> u32 {
        let others = self.0.pods.on(node).filter(|(pod, _)| !but(pod));
        others.fold(0, |sum, (_, held)| sum.saturating_add(held.requests.gpus))
    }

    /// What is booked.
    pub(crate) fn booked(&self) -> impl Iterator<Item = (&Key, &Booked)> {
        self.0.bookings.all()
    }

    /// Books GPUs for workers of `job` that are about to be made.
    pub(crate) fn book(
        &mut self,
        index: &Index,
        job: &Key,
        workers: impl IntoIterator<Item = (String, Vec<String>, u32)>,
    ) -> Booking {
        let mut names = Vec::new();
        for (name, nodes, gpus) in workers {
            self.0.bookings.note((job.0.clone(), name.clone()), &job.1, nodes, gpus);
            names.push(name);
        }
        Booking::new(index.clone(), &job.0, names)
    }
}

#[cfg(test)]
mod tests;
