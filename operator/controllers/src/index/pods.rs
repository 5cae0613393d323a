//! Pods by who has them and where they are, kept up to date pod by pod: pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;

use crate::agents::is_agent;
use crate::job::{lws, observe};
use crate::labels::{self, Component};
use crate::pool::{Requests, has_ended, is_of_node};
use crate::trim::is_ours;

/// Namespace and name: of a pod, of a worker, or of a job.
pub(crate) type Key = (String, String);

/// The pods that matter to somebody.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pods {
    all: HashMap<Key, Entry>,
    /// The same by job, with the GPUs that each asks for and their pool.
    jobs: HashMap<Key, BTreeMap<String, Share>>,
    /// The same by node, with what each holds there.
    nodes: HashMap<String, HashMap<Key, Held>>,
    /// By pool: jobs, and how many of their workers are there and have not ended.
    holders: HashMap<String, HashMap<Key, usize>>,
    reservations: HashSet<Key>,
}

/// Where a pod is found.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    job: Option<Key>,
    node: Option<String>,
    /// Pool in which it is a worker that has not ended.
    held: Option<String>,
}

/// What a pod of a job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Share {
    pool: Option<String>,
    gpus: u32,
}

/// What a pod holds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// How much.
    pub(crate) requests: Requests,
    /// It is bound to the node, and not only made for it.
    pub(crate) bound: bool,
    /// It belongs to the node itself.
    pub(crate) of_node: bool,
    /// It is a reservation of ours.
    pub(crate) reserves: bool,
    /// It is an agent of a release in its namespace.
    pub(crate) agent: bool,
}

impl Pods {
    pub(super) fn of_job(&self, job: &Key) -> Vec<String> {
        self.jobs.get(job).map(|pods| pods.keys().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn gpus_of(&self, job: &Key, pool: &str) -> u32 {
        let shares = self.jobs.get(job).into_iter().flat_map(BTreeMap::values);
        shares.filter(|share| share.pool.as_deref() == Some(pool)).map(|share| share.gpus).sum()
    }

    pub(super) fn on(&self, node: &str) -> impl Iterator<Item = (&Key, &Held)> {
        self.nodes.get(node).into_iter().flatten()
    }

    pub(super) fn holders(&self, pool: &str) -> impl Iterator<Item = &Key> {
        self.holders.get(pool).into_iter().flat_map(HashMap::keys)
    }

    pub(super) fn reservations(&self) -> impl Iterator<Item = &Key> {
        self.reservations.iter()
    }

    /// A pod is there, or is another than it was.
    pub(super) fn note(&mut self, pod: &Pod) {
        let key = key(pod);
        self.forget(&key);
        let job = job_of(pod);
        let node = place(pod);
        let reserves = is_reservation(pod);
        if job.is_none() && node.is_none() && !reserves {
            return;
        }
        let requests = Requests::of(pod);
        let pool = pod.metadata.labels.as_ref().and_then(|labels| labels.get(labels::POOL));
        if let Some(job) = &job {
            let share = Share { pool: pool.cloned(), gpus: requests.gpus };
            self.jobs.entry(job.clone()).or_default().insert(key.1.clone(), share);
        }
        if let Some(node) = &node {
            let bound = bound_to(pod).is_some();
            let held =
                Held { requests, bound, of_node: is_of_node(pod), reserves, agent: is_agent(pod) };
            self.nodes.entry(node.clone()).or_default().insert(key.clone(), held);
        }
        let held = pool.filter(|_| is_worker(pod) && !has_ended(pod)).cloned();
        if let (Some(pool), Some(job)) = (&held, &job) {
            let jobs = self.holders.entry(pool.clone()).or_default();
            *jobs.entry(job.clone()).or_default() += 1;
        }
        if reserves {
            self.reservations.insert(key.clone());
        }
        self.all.insert(key, Entry { job, node, held });
    }

    /// A pod is gone.
    pub(super) fn forget(&mut self, key: &Key) {
        let Some(Entry { job, node, held }) = self.all.remove(key) else { return };
        if let (Some(pool), Some(job)) = (held, &job)
            && let Some(jobs) = self.holders.get_mut(&pool)
        {
            match jobs.get_mut(job) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(jobs.remove(job)),
            }
            if jobs.is_empty() {
                self.holders.remove(&pool);
            }
        }
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
        self.reservations.remove(key);
    }
}

/// Namespace and name of a pod.
pub(super) fn key(pod: &Pod) -> Key {
    let meta = &pod.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// The worker that a pod is, or is a part of.
pub(super) fn worker_of(pod: &Pod) -> Key {
    let (namespace, name) = key(pod);
    let set = lws::set_of(&pod.metadata).map(|(set, _)| set.to_owned());
    (namespace, set.unwrap_or(name))
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a String> {
    pod.metadata.labels.as_ref()?.get(key)
}

fn is_worker(pod: &Pod) -> bool {
    label(pod, labels::COMPONENT).is_some_and(|of| of == Component::Worker.as_str())
}

/// Whether it is a reservation, of whichever release.
fn is_reservation(pod: &Pod) -> bool {
    let component = label(pod, labels::COMPONENT);
    is_ours(&pod.metadata) && component.is_some_and(|of| of == Component::Reservation.as_str())
}

/// Whose worker or gateway a pod is, by its labels.
pub(crate) fn job_of(pod: &Pod) -> Option<Key> {
    let component = label(pod, labels::COMPONENT)?.as_str();
    let ours = [Component::Worker, Component::Gateway].map(Component::as_str);
    let instance = label(pod, labels::INSTANCE).filter(|_| ours.contains(&component))?;
    Some((pod.metadata.namespace.clone()?, instance.clone()))
}

fn bound_to(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

/// The node that a pod runs on or, where it was made for one, is to run on; none once it has
/// ended.
pub(super) fn place(pod: &Pod) -> Option<String> {
    let bound = bound_to(pod).cloned();
    let place = bound.or_else(|| match observe::nodes_of(pod).as_slice() {
        [planned] => Some(planned.clone()),
        _ => None,
    });
    place.filter(|_| !has_ended(pod))
}

#[cfg(test)]
mod tests;
