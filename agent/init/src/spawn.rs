//! Making processes: the only module with unsafe code, and what a new process does
//! before it runs a program or a transfer. This process has one thread, so the
//! child of a fork may do anything that a process may.
#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::unistd::{self, ForkResult};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::protocol::StartFailureKind;

/// Makes actions die before the helper when the sandbox's memory is used up.
const OOM_SCORE_ADJ: &[u8] = b"500";

/// A failure before the program ran.
pub(crate) type Failure = (StartFailureKind, Errno);

/// What a new process needs.
pub(crate) struct Identity<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `cgroup.procs` files to enter.
    pub(crate) cgroups: &'a [OwnedFd],
}

/// Forks; the child runs `body` and exits with its result.
pub(crate) fn fork(body: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    // SAFETY: this process has one thread, so nothing that the child uses can be in
    // the middle of a change by another.
    match unsafe { unistd::fork() } {
        Ok(ForkResult::Child) => std::process::exit(body()),
        Ok(ForkResult::Parent { child }) => Pid::from_raw(child.as_raw()).ok_or(Errno::CHILD),
        Err(error) => Err(Errno::from_raw_os_error(error as i32)),
    }
}

/// In a child: enters the cgroups.
pub(crate) fn enter(cgroups: &[OwnedFd]) -> Result<(), Failure> {
    for procs in cgroups {
        rustix::io::write(procs, b"0").map_err(|error| (StartFailureKind::Cgroup, error))?;
    }
    Ok(())
}

/// In a child: enters the cgroups, leaves every right behind and becomes the user.
pub(crate) fn become_user(identity: &Identity<'_>) -> Result<(), Failure> {
    enter(identity.cgroups)?;
    // Without /proc, or where it is refused, the program is only killed later.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    reset_signals();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let identified = (|| {
        rustix::process::setsid()?;
        unistd::setgroups(&[]).map_err(errno)?;
        let gid = unistd::Gid::from_raw(identity.gid);
        unistd::setresgid(gid, gid, gid).map_err(errno)?;
        let uid = unistd::Uid::from_raw(identity.uid);
        unistd::setresuid(uid, uid, uid).map_err(errno)?;
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none)?;
        rustix::thread::set_no_new_privs(true)
    })();
    identified.map_err(|error| (StartFailureKind::Identity, error))
}

/// In a child: standard input, output and error.
pub(crate) fn set_standard_streams(streams: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    let [stdin, stdout, stderr] = streams;
    unistd::dup2_stdin(stdin).map_err(errno)?;
    unistd::dup2_stdout(stdout).map_err(errno)?;
    unistd::dup2_stderr(stderr).map_err(errno)
}

/// In a child: closes everything but the standard streams.
pub(crate) fn close_others() -> Result<(), Errno> {
    // SAFETY: called in a child that ends without using any other descriptor.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    if result == 0 { Ok(()) } else { Err(errno(nix::errno::Errno::last())) }
}

/// Whatever this process was started with is not passed on to programs.
pub(crate) fn keep_inherited_descriptors() -> Result<(), Errno> {
    // SAFETY: sets a flag on descriptors and closes none.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(errno(nix::errno::Errno::last())) }
}

/// In a child: runs the program; returns only where that failed.
pub(crate) fn execute(paths: &[CString], args: &[CString], env: &[CString]) -> Failure {
    let mut failure = Errno::NOENT;
    for path in paths {
        let Err(error) = exec_one(path, args, env);
        match errno(error) {
            // Looked for elsewhere; that one exists but may not be run is worth saying.
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => failure = Errno::ACCESS,
            other => {
                failure = other;
                break;
            }
        }
    }
    let kind = match failure {
        Errno::NOENT => StartFailureKind::NotFound,
        Errno::ACCESS | Errno::PERM => StartFailureKind::PermissionDenied,
        Errno::NOEXEC => StartFailureKind::BadExecutable,
        Errno::TOOBIG => StartFailureKind::BadArguments,
        _ => StartFailureKind::Other,
    };
    (kind, failure)
}

fn exec_one(
    path: &CStr,
    args: &[CString],
    env: &[CString],
) -> Result<std::convert::Infallible, nix::errno::Errno> {
    unistd::execve(path, args, env)
}

/// Blocks the signals that are read from a descriptor instead.
pub(crate) fn signal_descriptor() -> Result<nix::sys::signalfd::SignalFd, Errno> {
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        set.add(signal);
    }
    set.thread_block().map_err(errno)?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(errno)
}

/// Default action and no mask for every signal.
fn reset_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator() {
        // SAFETY: the default action calls no code of ours. KILL and STOP refuse.
        let _ = unsafe { sigaction(signal, &default) };
    }
    // Cannot fail with a valid set.
    let _ = nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Bytes that can be read without waiting.
pub(crate) fn readable(pipe: impl AsFd) -> usize {
    let bytes = rustix::io::ioctl_fionread(pipe.as_fd()).unwrap_or(0);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
