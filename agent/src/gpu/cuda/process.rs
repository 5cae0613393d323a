//! Checkpoints of processes by the CUDA driver (570 or later). Run on a **fake** of the driver alone.
#![expect(unsafe_code, reason = "the CUDA driver is a C library")]

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use cudarc::driver::sys;

use super::checkpoint::{Checkpoints, ProcessState};

/// How the driver's functions for one process look: its number, and a structure of 64 bytes.
type Operation = unsafe extern "C" fn(c_int, *mut [u64; 8]) -> sys::CUresult;
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
            unsafe { symbol::<Operation>(name) }?;
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

fn call(name: &str, pid: u32, arguments: [u64; 8]) -> Result<(), String> {
    let mut arguments = arguments;
    // SAFETY: all four operations have this type: `cuda.h` of CUDA 12.8 to 13.0, where each
    // takes a process and a structure of 64 bytes.
    let operation = unsafe { symbol::<Operation>(name) }?;
    // SAFETY: the structure outlives the call; all zeros are its defaults.
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
        // The first 32 bits are the limit in milliseconds.
        let limit = u64::from(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX));
        call("Lock", pid, [limit.to_le(), 0, 0, 0, 0, 0, 0, 0])
    }

    fn checkpoint(&self, pid: u32) -> Result<(), String> {
        call("Checkpoint", pid, [0; 8])
    }

    fn restore(&self, pid: u32) -> Result<(), String> {
        call("Restore", pid, [0; 8])
    }

    fn unlock(&self, pid: u32) -> Result<(), String> {
        call("Unlock", pid, [0; 8])
    }
}
