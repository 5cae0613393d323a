//! A range of addresses with blocks of a GPU's memory, by CUDA's virtual memory management.
#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::c_void;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};
use rustix::io::{FdFlags, fcntl_setfd};

/// Blocks of one size, one after the other, usable by their GPU.
#[derive(Debug)]
pub(super) struct Range {
    context: Arc<CudaContext>,
    /// Where it is; 0 until it is reserved.
    address: sys::CUdeviceptr,
    /// Bytes of a block.
    pub(super) block: usize,
    blocks: usize,
    /// Those of the blocks that were made, and how many of them are mapped.
    handles: Vec<sys::CUmemGenericAllocationHandle>,
    mapped: usize,
}

impl Range {
    /// What was made of one that fails is given back.
    pub(super) fn new(
        context: Arc<CudaContext>,
        blocks: usize,
        block: usize,
    ) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.cu_device(),
        };
        let mut range = Self { context, address: 0, block, blocks, handles: Vec::new(), mapped: 0 };
        // SAFETY: the address is written before it is read; nobody else knows it.
        unsafe {
            sys::cuMemAddressReserve(&raw mut range.address, block * blocks, 0, 0, 0).result()?;
        }
        for place in 0..blocks {
            let handle = create(location, block)?;
            range.handles.push(handle);
            // SAFETY: the place was reserved above, and nothing is mapped there yet.
            unsafe { sys::cuMemMap(range.at(place), block, 0, handle, 0).result()? };
            range.mapped += 1;
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location, flags };
        // SAFETY: the whole range is mapped; the description outlives the call.
        unsafe {
            sys::cuMemSetAccess(range.address, block * blocks, &raw const access, 1).result()?;
        }
        Ok(range)
    }

    /// Where a block begins.
    pub(super) fn at(&self, place: usize) -> sys::CUdeviceptr {
        self.address + (place * self.block) as u64
    }

    /// A descriptor of each block, by which another process can import it.
    pub(super) fn export(&self) -> Result<Vec<OwnedFd>, DriverError> {
        self.context.bind_to_thread()?;
        let kind = sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let fds = self.handles.iter().map(|handle| {
            let mut fd: i32 = -1;
            let into = (&raw mut fd).cast::<c_void>();
            // SAFETY: for this kind of handle the driver writes an `int`, which this is.
            unsafe { sys::cuMemExportToShareableHandle(into, *handle, kind, 0).result()? };
            // SAFETY: the descriptor is new, and ours.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // An engine that is started meanwhile would keep the memory as long as it lives.
            let kept_here = fcntl_setfd(&fd, FdFlags::CLOEXEC);
            kept_here.map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_OPERATING_SYSTEM))?;
            Ok(fd)
        });
        fds.collect()
    }

    /// Gives back what there is; says the first thing that failed, and goes on.
    fn free(&self) -> Result<(), DriverError> {
        let mut freed = self.context.bind_to_thread();
        if self.mapped > 0 {
            // SAFETY: nothing copies to the range any more: copies borrow it. What other
            // processes have mapped stays theirs until they let it go.
            let unmapped = unsafe { sys::cuMemUnmap(self.address, self.mapped * self.block) };
            freed = freed.and(unmapped.result());
        }
        for handle in &self.handles {
            // SAFETY: each was created here, and is released once.
            freed = freed.and(unsafe { sys::cuMemRelease(*handle) }.result());
        }
        if self.address != 0 {
            // SAFETY: it was reserved so, and nothing is mapped there any more.
            let left = unsafe { sys::cuMemAddressFree(self.address, self.blocks * self.block) };
            freed = freed.and(left.result());
        }
        freed
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Err(error) = self.free() {
            tracing::warn!(%error, "the arena of a GPU cannot be freed");
        }
    }
}

/// A block of a GPU that can be handed to another process.
fn create(
    location: sys::CUmemLocation,
    bytes: usize,
) -> Result<sys::CUmemGenericAllocationHandle, DriverError> {
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
        sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0).result()?;
    }
    Ok(handle)
}
