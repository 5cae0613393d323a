//! What the driver says of GPUs and of who uses them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError as EccError};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use rollwright_core::gpu::{EngineId, Order, Trouble};
use tokio::sync::{Mutex, mpsc};

use super::remap::{Identity, Remap, Unmovable};
use crate::gpu::backend::Device;
use crate::gpu::spec::{Incident, Occupant};

/// Between two looks whether GPUs are well.
const LOOK: Duration = Duration::from_secs(2);
/// How long the driver may take to say how a GPU is. One that fell off may never be told of.
const ANSWERS_IN: Duration = Duration::from_secs(30);

/// A GPU's mode when it is split: `NVML_DEVICE_MIG_ENABLE`.
const MIG: u32 = 1;

/// The driver's management library. GPUs are numbered as it numbers them, by their place on
/// the bus.
#[derive(Debug)]
pub struct Driver {
    nvml: Arc<Nvml>,
    /// One question of each GPU is asked at a time: what hangs takes one thread for each.
    gpus: Vec<Arc<Mutex<()>>>,
}

/// A driver that is there and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the driver's management library: {0}")]
pub struct DriverError(#[from] NvmlError);

impl Driver {
    /// The driver of this node; `None` where there is none, or no GPU, or one that is split
    /// by MIG: its parts have ids and accounts of their own, which are not known here.
    pub fn find() -> Result<Option<Self>, DriverError> {
        let nvml = match Nvml::init() {
            Ok(nvml) => nvml,
            Err(NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let gpus = nvml.device_count()?;
        let is_split = |gpu: &u32| {
            let mode = nvml.device_by_index(*gpu).and_then(|device| device.mig_mode());
            mode.is_ok_and(|mode| mode.current == MIG)
        };
        if let Some(gpu) = (0..gpus).find(is_split) {
            tracing::warn!(gpu, "a GPU is split by MIG: none of this node is offered");
            return Ok(None);
        }
        let nvml = Arc::new(nvml);
        let gpus: Vec<_> = (0..gpus).map(|_| Arc::default()).collect();
        Ok((!gpus.is_empty()).then_some(Self { nvml, gpus }))
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> u32 {
        self.gpus.len() as u32
    }

    /// Bytes of the smallest GPU, of those that have not fallen off.
    pub fn memory(&self) -> Result<u64, DriverError> {
        let each = (0..self.gpus()).map(|gpu| self.nvml.device_by_index(gpu)?.memory_info());
        let there = each.filter(|info| !matches!(info, Err(NvmlError::GpuLost)));
        let there = there.collect::<Result<Vec<_>, _>>()?;
        Ok(there.into_iter().map(|info| info.total).min().unwrap_or_default())
    }

    /// Ids by which the CUDA driver knows the GPUs too.
    pub fn uuids(&self) -> Result<Vec<String>, DriverError> {
        let each = (0..self.gpus()).map(|gpu| self.nvml.device_by_index(gpu)?.uuid());
        Ok(each.collect::<Result<_, _>>()?)
    }

    /// Which GPUs processes can be moved among; an error says why they cannot.
    pub fn remap(&self) -> Result<Remap, Unmovable> {
        let identity = |gpu| {
            let device = self.nvml.device_by_index(gpu)?;
            let (id, name) = (device.uuid()?, device.name()?);
            Ok(Identity { id, name, memory: device.memory_info()?.total })
        };
        let gpus = (0..self.gpus()).map(identity).collect::<Result<Vec<_>, NvmlError>>()?;
        Remap::new(&self.nvml.sys_driver_version()?, &gpus)
    }

    /// Reports GPUs that fall off or have errors of their memory, without end.
    pub async fn watch(&self, incidents: &mpsc::Sender<Incident>) {
        let mut gpus = vec![(None, false); self.gpus.len()];
        loop {
            let looks = (0..self.gpus()).map(|gpu| {
                let look = self.ask(gpu, move |nvml| (fell_off(nvml, gpu), errors(nvml, gpu)));
                tokio::time::timeout(ANSWERS_IN, look)
            });
            let looks = futures::future::join_all(looks).await;
            for (gpu, (look, (before, lost))) in (0..).zip(looks.into_iter().zip(&mut gpus)) {
                let ill = match look {
                    // One whose memory had an error stays out: only a reset makes it whole.
                    Ok(Ok((fell_off, seen))) => fell_off || seen > *before.get_or_insert(seen),
                    Ok(Err(_)) | Err(_) => true,
                };
                if ill != *lost {
                    *lost = ill;
                    let incident = Incident::Gpu { gpu, lost: ill };
                    if incidents.send(incident).await.is_err() {
                        return;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the driver of a GPU, off the runtime's threads: it may take long, or hang.
    async fn ask<T: Send + 'static>(
        &self,
        gpu: u32,
        question: impl FnOnce(&Nvml) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let turn = self.gpus.get(gpu as usize).map(Arc::clone).ok_or(Trouble::GpuLost)?;
        // Kept by what hangs, also when nobody waits for it any more.
        let turn = turn.lock_owned().await;
        let nvml = Arc::clone(&self.nvml);
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            question(&nvml)
        });
        asked.await.map_err(|error| Trouble::Unknown(error.to_string()))
    }
}

fn fell_off(nvml: &Nvml, gpu: u32) -> bool {
    let answer = nvml.device_by_index(gpu).and_then(|device| device.memory_info());
    matches!(answer, Err(NvmlError::GpuLost | NvmlError::Unknown))
}

/// Errors of memory that could not be corrected; none where they are not counted.
fn errors(nvml: &Nvml, gpu: u32) -> u64 {
    let device = nvml.device_by_index(gpu);
    let count = device
        .and_then(|device| device.total_ecc_errors(EccError::Uncorrected, EccCounter::Volatile));
    count.unwrap_or_default()
}

/// Bytes that some processes have on a GPU.
fn used(nvml: &Nvml, gpu: u32, pids: &[u32]) -> Result<u64, Trouble> {
    let list = || nvml.device_by_index(gpu)?.running_compute_processes();
    // Between counting and listing more processes can have begun than there was room for.
    let listed = match list() {
        Err(NvmlError::InsufficientSize(_)) => list(),
        listed => listed,
    };
    let listed = listed.map_err(|error| match error {
        NvmlError::GpuLost => Trouble::GpuLost,
        error => Trouble::Died(format!("the driver does not say what it holds: {error}")),
    })?;
    let theirs = listed.into_iter().filter(|process| pids.contains(&process.pid));
    let bytes = theirs.map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Ok(bytes),
        UsedGpuMemory::Unavailable => {
            let why = "this driver does not count the memory of processes";
            Err(Trouble::Refused(Order::Launch, why.into()))
        }
    });
    bytes.sum()
}

#[async_trait]
impl Device for Driver {
    async fn held(&self, _: EngineId, at: Option<&Occupant>) -> Result<u64, Trouble> {
        let Some(Occupant { chunk, pids, lent }) = at else { return Ok(0) };
        let mut most = 0;
        for gpu in chunk.gpus() {
            let pids = pids.clone();
            most = most.max(self.ask(gpu, move |nvml| used(nvml, gpu, &pids)).await??);
        }
        Ok(most + lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_driver_has_no_gpu_and_no_error() {
        if std::path::Path::new("/dev/nvidiactl").exists() {
            return;
        }
        assert!(Driver::find().expect("no error").is_none());
    }
}
