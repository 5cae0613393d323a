//! A manifest of any of the four kinds.

use kube::core::{ObjectMeta, Resource};

use crate::rules::Violation;
use crate::{ActionQueue, ResourcePool, RewardService, RolloutJob};

/// A manifest of any of the four kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// What hardware or quota there is.
    ResourcePool(Box<ResourcePool>),
    /// Generation workers and the rollout loop.
    RolloutJob(Box<RolloutJob>),
    /// One scheduler over pools.
    ActionQueue(Box<ActionQueue>),
    /// What scores trajectories.
    RewardService(Box<RewardService>),
}

impl Manifest {
    /// The kinds, as they stand in `kind`.
    pub const KINDS: [&'static str; 4] =
        ["ResourcePool", "RolloutJob", "ActionQueue", "RewardService"];

    /// Its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ResourcePool(_) => "ResourcePool",
            Self::RolloutJob(_) => "RolloutJob",
            Self::ActionQueue(_) => "ActionQueue",
            Self::RewardService(_) => "RewardService",
        }
    }

    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ResourcePool(object) => object.meta(),
            Self::RolloutJob(object) => object.meta(),
            Self::ActionQueue(object) => object.meta(),
            Self::RewardService(object) => object.meta(),
        }
    }

    /// Its name; [`crate::parse`] refuses a manifest without one.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Its namespace; `default` where it names none, empty for a ResourcePool.
    pub fn namespace(&self) -> &str {
        match self {
            Self::ResourcePool(_) => "",
            _ => self.metadata().namespace.as_deref().unwrap_or("default"),
        }
    }

    /// What is wrong with it beyond the types of its fields.
    pub fn validate(&self) -> Vec<Violation> {
        match self {
            Self::ResourcePool(object) => object.spec.validate(),
            Self::RolloutJob(object) => object.spec.validate(),
            Self::ActionQueue(object) => object.spec.validate(),
            Self::RewardService(object) => object.spec.validate(),
        }
    }
}

/// `Kind "name"`, for messages.
impl std::fmt::Display for Manifest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}\"", self.kind(), self.name())
    }
}
