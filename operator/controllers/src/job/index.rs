//! Pods by the job that they are of, and the GPUs that pods hold by node, kept up to date by what
//! the watch tells: no pass over one job walks the pods of all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;

use super::fleet::Nodes;
use super::observe;
use crate::labels::{self, Component};
use crate::pool::{Requests, has_ended};
use crate::watch::{Change, What};

/// Namespace and name: of a pod, or of a job.
pub(super) type Key = (String, String);

/// All pods that matter to jobs. As many entries as there are such pods.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    pods: HashMap<Key, Entry>,
    /// The same by job, with the GPUs that each asks for and their pool.
    jobs: HashMap<Key, BTreeMap<String, Share>>,
    /// The same by node, with the GPUs that each holds there.
    nodes: HashMap<String, HashMap<Key, u32>>,
}

/// Where a pod is found.
#[derive(Debug)]
struct Entry {
    job: Option<Key>,
    node: Option<String>,
}

/// What a pod of a job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Share {
    pool: Option<String>,
    gpus: u32,
}

impl Index {
    /// Follows a change that a watch saw; `all` are the pods of the cache.
    pub(crate) fn follow(&self, change: &Change<'_>, all: impl FnOnce() -> Vec<Arc<Pod>>) {
        match change.what {
            What::Pod(pod) if change.gone => self.open().forget(&key(pod)),
            What::Pod(pod) => self.open().note(pod),
            // The cache was filled anew, maybe.
            What::Everything => {
                let mut inner = Inner::default();
                for pod in all() {
                    inner.note(&pod);
                }
                *self.open() = inner;
            }
            _ => {}
        }
    }

    /// Names of the pods whose labels say that they are of this job.
    pub(super) fn pods_of(&self, namespace: &str, job: &str) -> Vec<String> {
        let inner = self.open();
        let found = inner.jobs.get(&(namespace.to_owned(), job.to_owned()));
        found.map(|pods| pods.keys().cloned().collect()).unwrap_or_default()
    }

    /// GPUs that the pods of this job ask for on one pool.
    pub(super) fn gpus_of(&self, namespace: &str, job: &str, pool: &str) -> u32 {
        let inner = self.open();
        let found = inner.jobs.get(&(namespace.to_owned(), job.to_owned()));
        let shares = found.into_iter().flat_map(BTreeMap::values);
        shares.filter(|share| share.pool.as_deref() == Some(pool)).map(|share| share.gpus).sum()
    }

    /// Everything as it is at one moment: nothing is noted until this is closed.
    pub(super) fn read(&self) -> Reading<'_> {
        Reading(self.open())
    }

    fn open(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open index.
pub(super) struct Reading<'a>(MutexGuard<'a, Inner>);

impl Reading<'_> {
    /// Whether a pod is in it.
    pub(super) fn shows(&self, namespace: &str, pod: &str) -> bool {
        self.0.pods.contains_key(&(namespace.to_owned(), pod.to_owned()))
    }

    /// Books what others hold: where they run, or where workers of other jobs are to run.
    pub(super) fn take(&self, nodes: &mut Nodes, ours: impl Fn(&Key) -> bool) {
        for (name, node) in nodes {
            let held = self.0.nodes.get(name).into_iter().flatten();
            let gpus: u32 = held.filter(|(pod, _)| !ours(pod)).map(|(_, gpus)| gpus).sum();
            node.taken = node.taken.saturating_add(gpus);
        }
    }
}

impl Inner {
    fn note(&mut self, pod: &Pod) {
        let key = key(pod);
        self.forget(&key);
        let gpus = Requests::of(pod).gpus;
        let job = job_of(pod);
        let node = if gpus == 0 || has_ended(pod) { None } else { place(pod) };
        if job.is_none() && node.is_none() {
            return;
        }
        if let Some(job) = &job {
            let labels = pod.metadata.labels.as_ref();
            let pool = labels.and_then(|labels| labels.get(labels::POOL)).cloned();
            let pods = self.jobs.entry(job.clone()).or_default();
            pods.insert(key.1.clone(), Share { pool, gpus });
        }
        if let Some(node) = &node {
            self.nodes.entry(node.clone()).or_default().insert(key.clone(), gpus);
        }
        self.pods.insert(key, Entry { job, node });
    }

    fn forget(&mut self, key: &Key) {
        let Some(Entry { job, node }) = self.pods.remove(key) else { return };
        if let Some(job) = job
            && let Some(pods) = self.jobs.get_mut(&job)
        {
            pods.remove(&key.1);
            if pods.is_empty() {
                self.jobs.remove(&job);
            }
        }
        if let Some(node) = node
            && let Some(pods) = self.nodes.get_mut(&node)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }
}

fn key(pod: &Pod) -> Key {
    let meta = &pod.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Whose worker or gateway a pod is, by its labels.
pub(super) fn job_of(pod: &Pod) -> Option<Key> {
    let labels = pod.metadata.labels.as_ref()?;
    let component = labels.get(labels::COMPONENT)?.as_str();
    let ours = [Component::Worker, Component::Gateway].map(Component::as_str);
    let instance = labels.get(labels::INSTANCE).filter(|_| ours.contains(&component))?;
    Some((pod.metadata.namespace.clone()?, instance.clone()))
}

/// The node that a pod runs on or, where it was made for one, is to run on.
fn place(pod: &Pod) -> Option<String> {
    let place = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    place.or_else(|| match observe::nodes_of(pod).as_slice() {
        [planned] => Some(planned.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
