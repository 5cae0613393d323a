//! What `HostPinned` needs of a device: the only part of it that CUDA does.

use std::os::fd::OwnedFd;

use super::weights::{Weights, WeightsError};

/// Memory of GPUs in blocks of one size, which live as long as this does, and can be mapped
/// by other processes. All calls block.
pub trait Memory: Send + Sync + 'static {
    /// What a server does with the descriptors of blocks: `cuda` or `memfd`.
    fn kind(&self) -> &'static str;

    /// Bytes of a block.
    fn block_bytes(&self) -> u64;

    /// Blocks of each GPU.
    fn blocks(&self) -> usize;

    /// Reads weights into memory of the node from which copies are fast.
    fn pin(&self, weights: &Weights) -> Result<Box<dyn Image>, MemoryError>;

    /// A descriptor of each block of a GPU, in order.
    fn export(&self, gpu: u32) -> Result<Vec<OwnedFd>, MemoryError>;

    /// Copies an image to blocks of a GPU, in the order in which they are named; returns when
    /// it is there.
    fn restore(&self, gpu: u32, image: &dyn Image, blocks: &[usize]) -> Result<(), MemoryError>;
}

/// Weights in memory of the node.
pub trait Image: Send + Sync + 'static {
    /// All of them.
    fn bytes(&self) -> &[u8];
}

/// A device that does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The node has no memory for them.
    #[error("{bytes} bytes of the node's memory cannot be pinned: {why}")]
    Host {
        /// How much was asked for.
        bytes: u64,
        /// What was said.
        why: String,
    },
    /// The device, or its driver.
    #[error("{doing}: {why}")]
    Device {
        /// What was tried.
        doing: &'static str,
        /// What was said.
        why: String,
    },
}
