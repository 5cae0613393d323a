//! A running transfer: a child process, and the pipe that it reports on.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::files;
use crate::protocol::{FileFailure, FileFailureKind, FileOpen, StartFailureKind};
use crate::spawn::{self, Identity};

/// Longest report of a transfer, in bytes.
const MAX_REPORT: usize = 16 * 1024;

/// A transfer that runs.
pub(crate) struct Transfer {
    pub(crate) number: u64,
    report: OwnedFd,
    bytes: Vec<u8>,
}

impl Transfer {
    /// Starts it. The first descriptor is the data's pipe, the others the cgroup's.
    pub(crate) fn start(open: &FileOpen, mut fds: Vec<OwnedFd>) -> Result<Self, FileFailure> {
        if fds.is_empty() {
            return Err(other("no pipe came with the transfer".into()));
        }
        let data = fds.remove(0);
        let (report, report_tx) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(no_process)?;
        spawn::fork(|| run(open, &data, &fds, &report_tx)).map_err(no_process)?;
        rustix::io::ioctl_fionbio(&report, true).map_err(no_process)?;
        Ok(Self { number: open.transfer, report, bytes: Vec::new() })
    }

    /// Descriptor to wait for.
    pub(crate) fn source(&self) -> &OwnedFd {
        &self.report
    }

    /// Reads the report; the result once it is whole.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Option<Result<u64, FileFailure>> {
        loop {
            match rustix::io::read(&self.report, &mut *scratch) {
                Ok(count) if count > 0 && self.bytes.len() < MAX_REPORT => {
                    self.bytes.extend_from_slice(&scratch[..count]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                _ => break,
            }
        }
        let killed = |_| Err(other("the transfer's process was killed".into()));
        Some(postcard::from_bytes(&self.bytes).unwrap_or_else(killed))
    }
}

/// In the child.
fn run(open: &FileOpen, data: &OwnedFd, cgroups: &[OwnedFd], report: &OwnedFd) -> i32 {
    let identity = Identity { uid: open.uid, gid: open.gid, cgroups };
    let result = match spawn::become_user(&identity) {
        // Data on standard input, report on standard output, nothing else open.
        Ok(()) => spawn::set_standard_streams([data.as_fd(), report.as_fd(), report.as_fd()])
            .and_then(|()| spawn::close_others())
            .and_then(|()| std::io::stdin().as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE))
            .map_err(|error| other(format!("cannot prepare the transfer: {error}")))
            .and_then(|data| files::transfer(open, File::from(data))),
        Err((StartFailureKind::Cgroup, error)) => {
            Err(other(format!("the transfer could not enter its cgroup: {error}")))
        }
        Err((_, error)) => Err(other(format!("the transfer could not change its user: {error}"))),
    };
    let mut bytes = postcard::to_stdvec(&result).unwrap_or_default();
    bytes.truncate(MAX_REPORT);
    // A parent that is gone needs no report.
    let _ = rustix::io::write(std::io::stdout(), &bytes);
    0
}

fn other(message: String) -> FileFailure {
    FileFailure { kind: FileFailureKind::Other, message }
}

fn no_process(error: Errno) -> FileFailure {
    let message = format!("the sandbox cannot make another process: {error}");
    FileFailure { kind: FileFailureKind::NoProcess, message }
}
