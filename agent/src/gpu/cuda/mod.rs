//! Real GPUs, by NVIDIA's driver, which is loaded when the agent starts and need not be there
//! when it is built. **None of this was ever run on a GPU**: what can be wrong without
//! one being wrong is kept in [`memory`] and [`process`], the rest is tested against fakes.

mod checkpoint;
mod device;
mod memory;
mod process;
#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoints, CudaCheckpoint, ProcessState};
pub use device::{Driver, DriverError};
pub use memory::Arena;
pub use process::DriverCheckpoints;
