//! Blocks of "GPU" memory that are files in memory: `HostPinned` without a GPU, its copies
//! and its protocol for real.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;

use crate::gpu::pinned::{Image, Memory, MemoryError, Weights};

/// Most bytes of a block.
const MOST_BLOCK: u64 = 4 << 30;
/// Fewest bytes of a block.
const LEAST_BLOCK: u64 = 64 << 10;
/// Blocks of a GPU, about.
const BLOCKS: u64 = 32;

/// The blocks of all **fake** GPUs.
#[derive(Debug)]
pub struct FakeMemory {
    gpus: Vec<Vec<OwnedFd>>,
    block_bytes: u64,
}

struct Bytes(Vec<u8>);

impl Image for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn failed(doing: &'static str) -> impl Fn(rustix::io::Errno) -> MemoryError {
    move |error| MemoryError::Device { doing, why: error.to_string() }
}

impl FakeMemory {
    /// Of so many GPUs of so many bytes each.
    pub fn new(gpus: u32, memory: u64) -> Result<Self, MemoryError> {
        let block_bytes = (memory / BLOCKS).clamp(LEAST_BLOCK, MOST_BLOCK);
        let block_bytes = 1 << block_bytes.ilog2();
        let block = || {
            let fd = memfd_create("rollwright-fake-gpu", MemfdFlags::CLOEXEC)?;
            ftruncate(&fd, block_bytes).map(|()| fd)
        };
        let gpu = || (0..memory / block_bytes).map(|_| block()).collect::<Result<Vec<_>, _>>();
        let gpus = (0..gpus).map(|_| gpu()).collect::<Result<_, _>>();
        Ok(Self { gpus: gpus.map_err(failed("making a fake GPU's memory"))?, block_bytes })
    }

    fn gpu(&self, gpu: u32) -> Result<&[OwnedFd], MemoryError> {
        let blocks = self.gpus.get(gpu as usize);
        blocks.map(Vec::as_slice).ok_or_else(|| MemoryError::Device {
            doing: "looking for a fake GPU",
            why: format!("there is no GPU {gpu}"),
        })
    }
}

impl Memory for FakeMemory {
    fn kind(&self) -> &'static str {
        "memfd"
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn blocks(&self) -> usize {
        self.gpus.first().map_or(0, Vec::len)
    }

    fn pin(&self, weights: &Weights) -> Result<Box<dyn Image>, MemoryError> {
        let mut image = vec![0; weights.bytes() as usize];
        weights.read_into(&mut image)?;
        Ok(Box::new(Bytes(image)))
    }

    fn export(&self, gpu: u32) -> Result<Vec<OwnedFd>, MemoryError> {
        let blocks = self.gpu(gpu)?.iter().map(|fd| fcntl_dupfd_cloexec(fd, 0));
        blocks.collect::<Result<_, _>>().map_err(failed("sharing a fake GPU's memory"))
    }

    fn restore(&self, gpu: u32, image: &dyn Image, blocks: &[usize]) -> Result<(), MemoryError> {
        let fds = self.gpu(gpu)?;
        for (bytes, block) in image.bytes().chunks(self.block_bytes as usize).zip(blocks) {
            let mut at = 0;
            while at < bytes.len() {
                let written = rustix::io::pwrite(&fds[*block], &bytes[at..], at as u64);
                at += written.map_err(failed("copying to a fake GPU"))?;
            }
        }
        Ok(())
    }
}
