//! Whether a pool is large enough for a model.

use super::GpuReward;
use crate::conditions::reasons;
use crate::name::Name;
use crate::pool::GpuPool;
use crate::quantity::ByteSize;

/// Why a pool, as its manifest describes it, can never hold an engine of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A degree is more GPUs than a node has.
    #[error(
        "degree {degree} is more GPUs than a node of ResourcePool \"{pool}\" has ({gpus_per_node}): an engine is on one node, so leave out the degrees above gpusPerNode of the pool"
    )]
    Degree {
        /// The pool.
        pool: Name,
        /// The degree.
        degree: u32,
        /// GPUs of each of its nodes.
        gpus_per_node: u32,
    },
    /// A footprint is more than the memory of a GPU.
    #[error(
        "at degree {degree} its device memory is {wanted}, and a GPU of ResourcePool \"{pool}\" has {size} (profile.hbm): use a larger degree, which needs less on each GPU, or another pool"
    )]
    Device {
        /// The pool.
        pool: Name,
        /// Degree of the footprint.
        degree: u32,
        /// What the footprint says.
        wanted: ByteSize,
        /// What a GPU has.
        size: ByteSize,
    },
    /// A footprint is more than engines may hold of a node's memory.
    #[error(
        "at degree {degree} its memory of the node is {wanted}, and a node of ResourcePool \"{pool}\" has {size} (hostMemory): raise hostMemory of the pool, or use another pool"
    )]
    Host {
        /// The pool.
        pool: Name,
        /// Degree of the footprint.
        degree: u32,
        /// What the footprint says.
        wanted: ByteSize,
        /// What engines may hold.
        size: ByteSize,
    },
}

impl Misfit {
    /// One of [`reasons`].
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Degree { .. } => reasons::DEGREE_TOO_LARGE,
            Self::Device { .. } | Self::Host { .. } => reasons::MEMORY_TOO_SMALL,
        }
    }

    /// The field below `spec.gpu` of the service that asks for too much.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Degree { .. } => "degrees",
            Self::Device { .. } | Self::Host { .. } => "footprints",
        }
    }
}

impl GpuReward {
    /// Whether `pool`, the one that it names, is large enough by its manifest. What that leaves
    /// open (a node's memory without `hostMemory`) is known only at the nodes.
    pub fn fits(&self, pool: &GpuPool) -> Result<(), Misfit> {
        let name = || self.pool.clone();
        let gpus_per_node = pool.gpus_per_node;
        if let Some(degree) = self.degrees.iter().copied().find(|degree| *degree > gpus_per_node) {
            return Err(Misfit::Degree { pool: name(), degree, gpus_per_node });
        }
        for footprint in &self.footprints {
            let (degree, wanted, size) = (footprint.degree, footprint.device, pool.profile.hbm);
            if wanted > size {
                return Err(Misfit::Device { pool: name(), degree, wanted, size });
            }
            if let (Some(wanted), Some(size)) = (footprint.host, pool.host_memory)
                && wanted > size
            {
                return Err(Misfit::Host { pool: name(), degree, wanted, size });
            }
        }
        Ok(())
    }
}
