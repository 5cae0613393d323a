//! Checkpoints of processes by the CUDA driver (570 or later; 580 or later moves them to other
//! GPUs). Run on a **fake** of the driver alone.
#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys;

use super::checkpoint::{Checkpoints, ProcessState};
use super::remap::GpuId;

/// How the driver's functions for one process look: its number, and a structure of 64 bytes.
type Operation<T> = unsafe extern "C" fn(c_int, *mut T) -> sys::CUresult;
type GetState = unsafe extern "C" fn(c_int, *mut c_uint) -> sys::CUresult;

/// The driver of this node.
#[derive(Debug)]
pub struct DriverCheckpoints(());

impl DriverCheckpoints {
    /// `None`, and why, where the driver cannot checkpoint.
    pub fn find() -> Result<Self, String> {
        // SAFETY: it loads the driver's library, whose initialisers may run anywhere.
        if !unsafe { sys::is_culib_present() } {
            return Err("there is no CUDA driver".into());
        }
        for name in ["GetState", "Lock", "Checkpoint", "Restore", "Unlock"] {
            // SAFETY: the symbol is not used here.
            unsafe { symbol::<Operation<u8>>(name) }?;
        }
        // Every call needs it; without it a restore would need the driver's persistence mode.
        cudarc::driver::result::init().map_err(|error| format!("cuInit: {error}"))?;
        Ok(Self(()))
    }
}

/// A function of the driver.
///
/// # Safety
/// The function must have the type `T`.
unsafe fn symbol<T: Copy>(name: &str) -> Result<T, String> {
    let name = format!("cuCheckpointProcess{name}");
    // SAFETY: the library is there: whoever makes a `DriverCheckpoints` has looked.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|found| *found).map_err(|_| format!("the CUDA driver has no {name}: 570 has"))
}

/// Calls one of the four operations.
///
/// # Safety
/// `T` must be the structure that it takes, and what it points to must be there.
unsafe fn call<T>(name: &str, pid: u32, mut arguments: T) -> Result<(), String> {
    const { assert!(size_of::<T>() == 64, "as all of them are since CUDA 12.8") };
    // SAFETY: `cuda.h` has them so: each takes a process and a structure, which is `T`.
    let operation = unsafe { symbol::<Operation<T>>(name) }?;
    // SAFETY: the structure outlives the call.
    let result = unsafe { operation(pid.cast_signed(), &raw mut arguments) };
    result.result().map_err(|error| format!("{name}: {error}"))
}

impl Checkpoints for DriverCheckpoints {
    fn state(&self, pid: u32) -> Result<ProcessState, String> {
        // SAFETY: the type is that of `cuda.h`.
        let get = unsafe { symbol::<GetState>("GetState") }?;
        let mut state = c_uint::MAX;
        // SAFETY: the pointer is to a local that outlives the call.
        unsafe { get(pid.cast_signed(), &raw mut state) }.result().map_err(|e| e.to_string())?;
        match state {
            0 => Ok(ProcessState::Running),
            1 => Ok(ProcessState::Locked),
            2 => Ok(ProcessState::Checkpointed),
            3 => Ok(ProcessState::Failed),
            // Of later drivers: on its way from one to the next.
            other => Err(format!("it is in state {other}, which is none to begin from")),
        }
    }

    fn lock(&self, pid: u32, limit: Duration) -> Result<(), String> {
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let reserved = sys::CUcheckpointLockArgs { timeoutMs: 0, reserved0: 0, reserved1: [0; 7] };
        let arguments = sys::CUcheckpointLockArgs { timeoutMs: limit, ..reserved };
        // SAFETY: its structure, without a pointer.
        unsafe { call("Lock", pid, arguments) }
    }

    fn checkpoint(&self, pid: u32) -> Result<(), String> {
        // SAFETY: its structure as of CUDA 13.0: reserved, without a pointer.
        unsafe { call("Checkpoint", pid, [0_u64; 8]) }
    }

    fn restore(&self, pid: u32, pairs: &[(GpuId, GpuId)]) -> Result<(), String> {
        let mut pairs: Vec<_> = pairs.iter().map(|(old, new)| pair(*old, *new)).collect();
        let none = pairs.is_empty();
        // As CUDA 13.0 has it. Later ones take fields out of what is reserved here, for which
        // zero is the default; 12.8 has no fields, and an error for what is not zero.
        let arguments = sys::CUcheckpointRestoreArgs {
            gpuPairs: if none { null_mut() } else { pairs.as_mut_ptr() },
            gpuPairsCount: c_uint::try_from(pairs.len()).map_err(|error| error.to_string())?,
            reserved: [0; 44],
            reserved1: 0,
        };
        // SAFETY: its structure, and the pairs outlive the call.
        unsafe { call("Restore", pid, arguments) }
    }

    fn unlock(&self, pid: u32) -> Result<(), String> {
        // SAFETY: its structure: reserved, without a pointer.
        unsafe { call("Unlock", pid, [0_u64; 8]) }
    }
}

fn pair(old: GpuId, new: GpuId) -> sys::CUcheckpointGpuPair {
    let id = |id: GpuId| sys::CUuuid { bytes: id.map(|byte| c_char::from_ne_bytes([byte])) };
    sys::CUcheckpointGpuPair { oldUuid: id(old), newUuid: id(new) }
}
