//! What there is of a job: its workers, and the nodes of its pools.

use std::collections::BTreeMap;

use rollwright_core::router::Role;
use rollwright_crds::Name;

/// What makes two workers of one template interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// GPU pool that it runs on.
    pub pool: Name,
    /// What it does.
    pub role: Role,
    /// Its GPUs.
    pub degree: u32,
}

/// A GPU pool that a job may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Class of its GPUs.
    pub class: Name,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// Free GPUs that jobs before this one still wait for.
    pub promised: u32,
}

impl Pool {
    /// Over how many nodes a worker of `degree` goes, and its GPUs on each of them.
    pub fn shape(&self, degree: u32) -> (usize, u32) {
        if degree <= self.gpus_per_node {
            (1, degree)
        } else {
            (degree.div_ceil(self.gpus_per_node) as usize, self.gpus_per_node)
        }
    }
}

/// A node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its pool.
    pub pool: Name,
    /// GPUs that Kubernetes may give away on it.
    pub gpus: u32,
    /// Of these, what pods hold that are not workers of this job.
    pub taken: u32,
    /// Ready, and open to new pods.
    pub open: bool,
    /// How the job's workers fared on it lately.
    pub trust: Trust,
}

/// How far a node is trusted with a new worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// None failed on it.
    #[default]
    Good,
    /// One failed on it not long ago: others are better.
    Low,
    /// One failed on it just now: it gets none for a while.
    None,
}

/// The nodes of a job's pools, by name.
pub type Nodes = BTreeMap<String, Node>;

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It serves, or would if the gateway asked it to.
    Serving,
    /// It was made and is on its way.
    Starting,
    /// It does not come up, again and again.
    Failing,
    /// It takes no new requests and ends those that it has.
    Draining,
    /// It was deleted, and its processes may still run.
    Leaving,
    /// Its processes have ended for good; the object is still there.
    Ended,
}

/// A worker that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Name of its pod, or of its group of pods.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The nodes that its GPUs are on or will be on; one that is gone may be among them.
    pub nodes: Vec<String>,
    /// Where in its life.
    pub stage: Stage,
    /// Made from the template that the job has now.
    pub current: bool,
    /// The gateway has nothing in flight on it and sends it nothing, or its time is over.
    pub idle: bool,
}

impl Worker {
    /// It can be counted on, now or soon.
    pub fn alive(&self) -> bool {
        matches!(self.stage, Stage::Serving | Stage::Starting)
    }

    /// Its GPUs become free without a further step.
    pub fn vanishing(&self) -> bool {
        matches!(self.stage, Stage::Draining | Stage::Leaving | Stage::Ended)
    }

    /// GPUs that it holds on each of its nodes.
    pub fn gpus_per_node(&self) -> u32 {
        self.kind.degree / self.nodes.len().max(1) as u32
    }
}
