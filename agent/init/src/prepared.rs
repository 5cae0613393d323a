//! A process made ahead of the action that it will run, in that action's cgroup:
//! entering a cgroup can wait for a grace period of the kernel, some ten milliseconds.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};

use crate::action::{Plan, report_failure};
use crate::protocol::{self, MAX_PACKET, Start, StartFailureKind};
use crate::spawn::{self, Failure, Identity};

/// The next action's cgroup, and a process that waits in it.
pub(crate) struct Slot {
    pub(crate) name: String,
    /// `cgroup.procs` files, for a new process where the one that waited has died.
    pub(crate) cgroups: Vec<OwnedFd>,
    pub(crate) process: Option<Prepared>,
}

/// A process that waits for its action. Dropped unused it is ended.
pub(crate) struct Prepared {
    pub(crate) pid: Pid,
    /// Its standard input; at its end it goes.
    control: OwnedFd,
    pipes: [OwnedFd; 2],
}

/// What an action needs of the process that began it.
pub(crate) struct Begun {
    pub(crate) pid: Pid,
    pub(crate) status: OwnedFd,
    pub(crate) pipes: [OwnedFd; 2],
}

impl Prepared {
    pub(crate) fn make(cgroups: &[OwnedFd]) -> Result<Self, Errno> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (control, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (stdout, stdout_tx) = pipe()?;
        let (stderr, stderr_tx) = pipe()?;
        for fd in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let streams = [theirs.as_fd(), stdout_tx.as_fd(), stderr_tx.as_fd()];
        let pid = spawn::fork(|| wait(streams, cgroups))?;
        Ok(Self { pid, control, pipes: [stdout, stderr] })
    }

    /// Hands it the action.
    pub(crate) fn begin(self, start: &Start, stdin: &OwnedFd) -> Result<Begun, Errno> {
        let packet = protocol::encode(start).map_err(|_| Errno::MSGSIZE)?;
        let (status, status_tx) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&status, true)?;
        let fds = [status_tx.as_fd(), stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.control, &[IoSlice::new(&packet)], &mut control, flags)?;
        Ok(Begun { pid: self.pid, status, pipes: self.pipes })
    }

    /// Ends it; no action began.
    pub(crate) fn end(self) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}

/// In the child: enters the cgroups, waits for the action and runs it.
fn wait(streams: [std::os::fd::BorrowedFd<'_>; 3], cgroups: &[OwnedFd]) -> i32 {
    // Control on standard input; stdout and stderr are the action's already.
    if spawn::set_standard_streams(streams).is_err() {
        return 1;
    }
    let entered = spawn::enter(cgroups);
    if spawn::close_others().is_err() {
        return 1;
    }
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut packet)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let Ok(message) = rustix::net::recvmsg(std::io::stdin(), &mut parts, &mut control, flags)
    else {
        return 1;
    };
    let mut fds = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let Some((Some(status), Some(stdin))) = fds.next().map(|mut fds| (fds.next(), fds.next()))
    else {
        // The helper has no use for it any more.
        return 0;
    };
    let run = || -> Result<Failure, Failure> {
        entered?;
        let malformed = |_| (StartFailureKind::Other, Errno::BADMSG);
        let start: Start = protocol::decode(&packet[..message.bytes]).map_err(malformed)?;
        let identity = Identity { uid: start.uid, gid: start.gid, cgroups: &[] };
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        Ok(Plan::of(&start)?.run(&identity, streams, &status))
    };
    report_failure(&status, run().unwrap_or_else(|failure| failure))
}
