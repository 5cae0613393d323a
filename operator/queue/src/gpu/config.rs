//! Settings of GPU pools.

use std::time::Duration;

use rollwright_core::gpu::Service;
use rollwright_proto::v1 as pb;

/// A pool of GPUs that reward services share.
#[derive(Debug, Clone)]
pub struct GpuPool {
    /// Its `ResourcePool`'s name.
    pub name: String,
    /// Who shares it.
    pub services: Vec<GpuService>,
    /// Calls that wait or run at most; one job may have half of them.
    pub max_calls: usize,
}

/// A reward service.
#[derive(Debug, Clone)]
pub struct GpuService {
    /// As the scheduler of the pool knows it; its name is the service's id at this queue:
    /// `<namespace>.<name>` in a cluster, else `<name>`.
    pub core: Service,
    /// What is launched; degree and footprint are filled in from `core`.
    pub engine: pb::EngineSpec,
    /// Running time of one call.
    pub timeout: Duration,
}
