//! The socket: one agent at a time, packets with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::protocol::{self, FromInit, MAX_FDS, ToInit};

/// Makes the socket that agents connect to; an old one is replaced.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

/// A connected agent.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    /// The agent has said hello.
    pub(crate) greeted: bool,
    /// A packet did not fit: wait until the agent has read.
    pub(crate) blocked: bool,
}

/// What came in.
pub(crate) enum Received {
    Message(ToInit, Vec<OwnedFd>),
    /// A packet that is no message of the protocol.
    Malformed(String),
    Nothing,
    Closed,
}

impl Connection {
    /// Takes the agent that waits. Only root of this user namespace is let in.
    pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<Self>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Not through rustix, whose type cannot hold the process number 0 that a peer
        // outside of this process namespace has.
        let peer = nix::sys::socket::getsockopt(&socket, PeerCredentials)
            .map_err(|error| Errno::from_raw_os_error(error as i32))?;
        if peer.uid() != 0 {
            return Ok(None);
        }
        Ok(Some(Self { socket, greeted: false, blocked: false }))
    }

    /// The next packet.
    pub(crate) fn receive(&self, scratch: &mut [u8]) -> Received {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(scratch)];
        let message = match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.bytes == 0 {
            return Received::Closed;
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Received::Malformed("the packet or its descriptors are too many".into());
        }
        match protocol::decode(&scratch[..message.bytes]) {
            Ok(message) => Received::Message(message, fds),
            Err(error) => Received::Malformed(error.to_string()),
        }
    }

    /// Sends one packet; false when it must wait. An error ends the connection.
    pub(crate) fn send(&mut self, message: &FromInit) -> Result<bool, Errno> {
        let packet = protocol::encode(message).map_err(|_| Errno::MSGSIZE)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let parts = [IoSlice::new(&packet)];
        loop {
            let mut control = SendAncillaryBuffer::default();
            return match rustix::net::sendmsg(&self.socket, &parts, &mut control, flags) {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.blocked = true;
                    Ok(false)
                }
                Err(error) => Err(error),
            };
        }
    }
}
