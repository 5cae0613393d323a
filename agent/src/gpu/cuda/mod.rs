//! Real GPUs, by NVIDIA's driver, which is loaded when the agent starts and need not be there
//! when it is built. **None of this was ever run on a GPU**: it is run on a fake of the driver,
//! `e2e/fake-cuda`, by the test `fake_driver`.

mod checkpoint;
mod device;
mod memory;
mod process;
mod range;
mod remap;
#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoints, CudaCheckpoint, ProcessState};
pub use device::{Driver, DriverError};
pub use memory::Arena;
pub use process::DriverCheckpoints;
pub use remap::{GpuId, Identity, Remap, Unmovable};
