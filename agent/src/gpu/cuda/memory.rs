//! The memory of GPUs for `HostPinned`: blocks by CUDA's virtual memory management, which
//! other processes map, and pinned memory of the node. Run on a **fake** of the driver alone.
#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cudarc::driver::result::{device, free_host, malloc_host, memcpy_htod_async};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

use super::range::Range;
use crate::gpu::pinned::{Image, Memory, MemoryError, Weights};

/// Bytes of a block: a multiple of every GPU's granularity, and large enough that mapping a
/// model takes a small part of copying it.
const BLOCK: u64 = 256 << 20;
/// What every GPU's granularity divides.
const GRANULARITY: u64 = 2 << 20;
/// Copies under way at a time.
const STREAMS: usize = 4;
/// Pinned for every context: `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: u32 = 1;

/// The blocks of all GPUs.
#[derive(Debug)]
pub struct Arena {
    gpus: Vec<Gpu>,
    blocks: usize,
    block: u64,
}

#[derive(Debug)]
struct Gpu {
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
    range: Range,
}

fn failed(doing: &'static str) -> impl Fn(DriverError) -> MemoryError {
    move |error| MemoryError::Device { doing, why: error.to_string() }
}

impl Arena {
    /// So many bytes of each of the GPUs with these ids, in this order.
    pub fn new(uuids: &[String], bytes: u64) -> Result<Self, MemoryError> {
        Self::with_blocks(uuids, bytes, BLOCK)
    }

    /// As [`Self::new`], in blocks of so many bytes: a multiple of 2 MiB.
    pub fn with_blocks(uuids: &[String], bytes: u64, block: u64) -> Result<Self, MemoryError> {
        let refused = |doing, why| MemoryError::Device { doing, why };
        if block == 0 || !block.is_multiple_of(GRANULARITY) || bytes < block {
            let why = format!("{bytes} bytes are no block of {block}: use {BLOCK} or more");
            return Err(refused("making the arena of a GPU", why));
        }
        // SAFETY: it loads the driver's library, whose initialisers may run anywhere.
        if !unsafe { sys::is_culib_present() } {
            return Err(refused("looking for the CUDA driver", "libcuda is not there".into()));
        }
        let count = CudaContext::device_count().map_err(failed("counting GPUs"))?;
        // A context takes hundreds of megabytes: only the GPUs that are wanted get one.
        let ids = (0..count).map(|ordinal| device::get_uuid(device::get(ordinal)?));
        let ids =
            ids.collect::<Result<Vec<_>, _>>().map_err(failed("asking GPUs for their ids"))?;
        let blocks = (bytes / block) as usize;
        let gpus = uuids.iter().map(|uuid| {
            let ordinal = ids.iter().position(|id| is(uuid, *id)).ok_or_else(|| {
                refused("looking for a GPU", format!("CUDA does not show {uuid}"))
            })?;
            Gpu::new(ordinal, blocks, block).map_err(failed("making the arena of a GPU"))
        });
        Ok(Self { gpus: gpus.collect::<Result<_, _>>()?, blocks, block })
    }

    fn gpu(&self, gpu: u32) -> Result<&Gpu, MemoryError> {
        let why = || format!("there is no GPU {gpu}");
        let doing = "looking for a GPU";
        self.gpus.get(gpu as usize).ok_or_else(|| MemoryError::Device { doing, why: why() })
    }
}

/// Whether an id as text, `GPU-` and hexadecimal digits in groups, is this one.
fn is(text: &str, id: sys::CUuuid) -> bool {
    let digits = text.trim_start_matches("GPU-").replace('-', "");
    let bytes = id.bytes.iter().map(|byte| format!("{:02x}", *byte as u8));
    digits == bytes.collect::<String>()
}

impl Gpu {
    fn new(ordinal: usize, blocks: usize, block: u64) -> Result<Self, DriverError> {
        let context = CudaContext::new(ordinal)?;
        let streams = (0..STREAMS).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
        let range = Range::new(Arc::clone(&context), blocks, block as usize)?;
        Ok(Self { context, streams, range })
    }

    fn copy(&self, image: &[u8], blocks: &[usize]) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let streams = self.streams.iter().cycle();
        let copied = image.chunks(self.range.block).zip(blocks).zip(streams).try_for_each(
            |((bytes, block), stream)| {
                let at = self.range.at(*block);
                // SAFETY: the block is this arena's and lent to nobody else; the image is held
                // by the caller until all streams are done, below, whatever fails before.
                unsafe { memcpy_htod_async(at, bytes, stream.cu_stream()) }
            },
        );
        let done: Vec<_> = self.streams.iter().map(|stream| stream.synchronize()).collect();
        copied.and(done.into_iter().collect())
    }
}

/// Memory of the node that the driver has pinned.
struct Pinned {
    start: *mut u8,
    bytes: usize,
    /// It is freed in a context.
    context: Arc<CudaContext>,
}

// SAFETY: the memory is owned, and after it was filled only read.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn new(context: Arc<CudaContext>, bytes: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: what is there before it is filled is only bytes, which may be anything.
        let start = unsafe { malloc_host(bytes, PORTABLE)? }.cast();
        Ok(Self { start, bytes, context })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave this many bytes, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Image for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: the driver gave it, and nothing borrows it any more.
            unsafe { free_host(self.start.cast::<c_void>()) }
        });
        if let Err(error) = freed {
            tracing::warn!(%error, bytes = self.bytes, "pinned memory cannot be freed");
        }
    }
}

impl Memory for Arena {
    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn block_bytes(&self) -> u64 {
        self.block
    }

    fn blocks(&self) -> usize {
        self.blocks
    }

    fn pin(&self, weights: &Weights) -> Result<Box<dyn Image>, MemoryError> {
        let bytes = weights.bytes();
        let context = Arc::clone(&self.gpu(0)?.context);
        let pinned = Pinned::new(context, bytes.max(1) as usize);
        let mut pinned =
            pinned.map_err(|error| MemoryError::Host { bytes, why: error.to_string() })?;
        weights.read_into(pinned.bytes_mut())?;
        Ok(Box::new(pinned))
    }

    fn export(&self, gpu: u32) -> Result<Vec<OwnedFd>, MemoryError> {
        self.gpu(gpu)?.range.export().map_err(failed("sharing the arena of a GPU"))
    }

    fn restore(&self, gpu: u32, image: &dyn Image, blocks: &[usize]) -> Result<(), MemoryError> {
        let copied = self.gpu(gpu)?.copy(image.bytes(), blocks);
        copied.map_err(failed("copying weights to a GPU"))
    }
}
