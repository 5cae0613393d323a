//! Labels and annotations of the objects that the controllers make.

use std::collections::BTreeMap;

/// Recommended label: the program.
pub const NAME: &str = "app.kubernetes.io/name";
/// Recommended label: the part of it.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Recommended label: the custom resource that the object belongs to.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// Recommended label: who made it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`NAME`] and [`MANAGED_BY`].
pub const ROLLWRIGHT: &str = "rollwright";
/// What a watch of our own objects selects.
pub const OURS: &str = "app.kubernetes.io/managed-by=rollwright";
/// On nodes: the CPU pool that they serve. On workers: their GPU pool.
pub const POOL: &str = "rollwright.dev/pool";
/// On nodes: the GPU pool of a queue that they serve.
pub const GPU_POOL: &str = "rollwright.dev/gpu-pool";
/// On nodes: which agent runs there, `host`, `dind` or `gpu`.
pub const AGENT: &str = "rollwright.dev/agent";
/// On workers: the RolloutJob.
pub const JOB: &str = "rollwright.dev/job";
/// On workers: GPUs of one worker.
pub const DEGREE: &str = "rollwright.dev/degree";
/// On workers: `mixed`, `prefill` or `decode`.
pub const ROLE: &str = "rollwright.dev/role";
/// On pod templates: the hash of what the process reads only at its start.
pub const CONFIG_HASH: &str = "rollwright.dev/config-hash";
/// On queues' StatefulSets and pods: the pools that they were made with.
pub const POOLS: &str = "rollwright.dev/pools";

/// A part of Rollwright that has objects of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The action queue.
    Queue,
    /// The gateway of a job.
    Gateway,
    /// A generation engine.
    Worker,
    /// A pod that keeps a node's cores for sandboxes.
    Reservation,
    /// What agents read to find their queue.
    Agent,
}

impl Component {
    /// Value of [`COMPONENT`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
            Self::Reservation => "reservation",
            Self::Agent => "agent",
        }
    }
}

/// All labels of an object of `component` that belongs to the custom resource `instance`.
pub fn of(component: Component, instance: &str) -> BTreeMap<String, String> {
    let mut labels = selector(component, instance);
    labels.insert(MANAGED_BY.to_owned(), ROLLWRIGHT.to_owned());
    labels
}

/// Those of them by which its pods are selected.
pub fn selector(component: Component, instance: &str) -> BTreeMap<String, String> {
    [(NAME, ROLLWRIGHT), (COMPONENT, component.as_str()), (INSTANCE, instance)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
