//! The memory of GPUs for `HostPinned`: blocks by CUDA's virtual memory management, which
//! other processes map, and pinned memory of the node. Never run on a GPU.
#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cudarc::driver::result::{free_host, malloc_host, memcpy_htod_async};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

use crate::gpu::pinned::{Image, Memory, MemoryError, Weights};

/// Bytes of a block: a multiple of every GPU's granularity, and large enough that mapping a
/// model takes a small part of copying it.
const BLOCK: u64 = 256 << 20;
/// Copies under way at a time.
const STREAMS: usize = 4;
/// Pinned for every context: `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: u32 = 1;

/// The blocks of all GPUs.
#[derive(Debug)]
pub struct Arena {
    gpus: Vec<Gpu>,
    blocks: usize,
}

#[derive(Debug)]
struct Gpu {
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
    handles: Vec<sys::CUmemGenericAllocationHandle>,
    /// Where all blocks lie for this process, in order.
    address: sys::CUdeviceptr,
}

fn failed(doing: &'static str) -> impl Fn(DriverError) -> MemoryError {
    move |error| MemoryError::Device { doing, why: error.to_string() }
}

impl Arena {
    /// So many bytes of each of the GPUs with these ids, in this order.
    pub fn new(uuids: &[String], bytes: u64) -> Result<Self, MemoryError> {
        // SAFETY: it loads the driver's library, whose initialisers may run anywhere.
        if !unsafe { sys::is_culib_present() } {
            let why = "libcuda is not there".to_owned();
            return Err(MemoryError::Device { doing: "looking for the CUDA driver", why });
        }
        let count = CudaContext::device_count().map_err(failed("counting GPUs"))?;
        let contexts = (0..count as usize).map(CudaContext::new).collect::<Result<Vec<_>, _>>();
        let contexts = contexts.map_err(failed("opening a GPU"))?;
        let blocks = (bytes / BLOCK) as usize;
        let gpus = uuids.iter().map(|uuid| {
            let named = contexts.iter().find(|context| context.uuid().is_ok_and(|id| is(uuid, id)));
            let context = named.ok_or_else(|| MemoryError::Device {
                doing: "looking for a GPU",
                why: format!("CUDA does not show {uuid}"),
            })?;
            Gpu::new(Arc::clone(context), blocks).map_err(failed("making the arena of a GPU"))
        });
        Ok(Self { gpus: gpus.collect::<Result<_, _>>()?, blocks })
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
    fn new(context: Arc<CudaContext>, blocks: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let streams = (0..STREAMS).map(|_| context.new_stream()).collect::<Result<_, _>>()?;
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: i32::try_from(context.ordinal()).unwrap_or_default(),
        };
        let size = BLOCK as usize;
        let mut gpu = Self { context, streams, handles: Vec::new(), address: 0 };
        // SAFETY: the address is written before it is read; nobody else knows it.
        unsafe {
            sys::cuMemAddressReserve(&raw mut gpu.address, size * blocks, 0, 0, 0).result()?;
        }
        for place in 0..blocks {
            let handle = create(location)?;
            gpu.handles.push(handle);
            let at = gpu.address + (place * size) as u64;
            // SAFETY: the range was reserved above, and nothing is mapped there yet.
            unsafe { sys::cuMemMap(at, size, 0, handle, 0).result()? };
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location, flags };
        // SAFETY: the whole range is mapped; the description outlives the call.
        unsafe {
            sys::cuMemSetAccess(gpu.address, size * blocks, &raw const access, 1).result()?;
        }
        Ok(gpu)
    }

    fn copy(&self, image: &[u8], blocks: &[usize]) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let streams = self.streams.iter().cycle();
        let copied = image.chunks(BLOCK as usize).zip(blocks).zip(streams).try_for_each(
            |((bytes, block), stream)| {
                let at = self.address + *block as u64 * BLOCK;
                // SAFETY: the block is this arena's and lent to nobody else; the image is held
                // by the caller until all streams are done, below, whatever fails before.
                unsafe { memcpy_htod_async(at, bytes, stream.cu_stream()) }
            },
        );
        let done: Vec<_> = self.streams.iter().map(|stream| stream.synchronize()).collect();
        copied.and(done.into_iter().collect())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let mapped = self.handles.len() * BLOCK as usize;
        let freed = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: nothing copies to the range any more: copies borrow this. What other
            // processes have mapped stays theirs until they let it go.
            unsafe { sys::cuMemUnmap(self.address, mapped).result()? };
            for handle in &self.handles {
                // SAFETY: each was created here, and is released once.
                unsafe { sys::cuMemRelease(*handle).result()? };
            }
            Ok(())
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "the arena of a GPU cannot be freed");
        }
    }
}

/// A block of a GPU that can be handed to another process.
fn create(location: sys::CUmemLocation) -> Result<sys::CUmemGenericAllocationHandle, DriverError> {
    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes:
            sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let mut handle = 0;
    // SAFETY: both pointers are to locals that outlive the call.
    unsafe {
        sys::cuMemCreate(&raw mut handle, BLOCK as usize, &raw const properties, 0).result()?;
    }
    Ok(handle)
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
        BLOCK
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
        let gpu = self.gpu(gpu)?;
        let kind = sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let fds = gpu.handles.iter().map(|handle| {
            let mut fd: i32 = -1;
            let into = (&raw mut fd).cast::<c_void>();
            // SAFETY: for this kind of handle the driver writes an `int`, which this is.
            unsafe { sys::cuMemExportToShareableHandle(into, *handle, kind, 0).result()? };
            // SAFETY: the descriptor is new, and ours.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        });
        fds.collect::<Result<_, _>>().map_err(failed("sharing the arena of a GPU"))
    }

    fn restore(&self, gpu: u32, image: &dyn Image, blocks: &[usize]) -> Result<(), MemoryError> {
        let copied = self.gpu(gpu)?.copy(image.bytes(), blocks);
        copied.map_err(failed("copying weights to a GPU"))
    }
}
