//! The wire between the agent and a server whose weights it keeps: a unix socket that the
//! server listens on, lines of JSON, and the descriptors of a GPU's blocks.

use std::io::{self, BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

/// Descriptors in one message: the kernel takes 253.
const AT_ONCE: usize = 200;
/// How long a server may take to answer.
const ANSWERS_IN: Duration = Duration::from_mins(1);

/// A connection to a server. All calls block.
#[derive(Debug)]
pub(super) struct Link(BufReader<UnixStream>);

/// What the server is told at the beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hello {
    pub(super) kind: &'static str,
    pub(super) block_bytes: u64,
    /// Bytes of the image.
    pub(super) bytes: u64,
}

impl Link {
    /// Connects, and hands over the blocks.
    pub(super) fn open(socket: &Path, hello: Hello, blocks: &[OwnedFd]) -> io::Result<Self> {
        // The directory is the server's: it shall not lead the agent to another's socket, not
        // even by an exchange between a look and the call.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let door = rustix::fs::open(socket, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&door)?.st_mode) != FileType::Socket {
            return Err(io::Error::other(format!("{} is no socket", socket.display())));
        }
        let stream = UnixStream::connect(format!("/proc/self/fd/{}", door.as_raw_fd()))?;
        stream.set_read_timeout(Some(ANSWERS_IN))?;
        stream.set_write_timeout(Some(ANSWERS_IN))?;
        let mut link = Self(BufReader::new(stream));
        let Hello { kind, block_bytes, bytes } = hello;
        let count = blocks.len();
        link.say(&json!({
            "kind": kind, "block_bytes": block_bytes, "blocks": count, "bytes": bytes
        }))?;
        for some in blocks.chunks(AT_ONCE) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(OwnedFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(io::Error::other("too many descriptors for one message"));
            }
            sendmsg(link.0.get_ref(), &[IoSlice::new(b"F")], &mut control, SendFlags::NOSIGNAL)?;
        }
        link.answer()?;
        Ok(link)
    }

    /// The blocks that hold the image from now on, in order. It is not there yet.
    pub(super) fn attach(&mut self, blocks: &[usize]) -> io::Result<()> {
        self.ask(&json!({"op": "attach", "blocks": blocks}))
    }

    /// The image is there: requests may be served.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        self.ask(&json!({"op": "serve"}))
    }

    /// The blocks are not the server's any more, once it has answered.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        self.ask(&json!({"op": "detach"}))
    }

    fn ask(&mut self, question: &Value) -> io::Result<()> {
        self.say(question)?;
        self.answer()
    }

    fn say(&mut self, what: &Value) -> io::Result<()> {
        self.0.get_mut().write_all(format!("{what}\n").as_bytes())
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut line = String::new();
        // A line is short; what is longer is no answer.
        io::Read::take(&mut self.0, 64 << 10).read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).map_err(io::Error::other)?;
        if answer.get("ok").and_then(Value::as_bool) == Some(true) {
            return Ok(());
        }
        let why = answer.get("error").and_then(Value::as_str).unwrap_or("no reason given");
        Err(io::Error::other(why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    const HELLO: Hello = Hello { kind: "none", block_bytes: 1, bytes: 0 };

    #[test]
    fn a_socket_is_connected_to_and_a_link_to_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("sock"), dir.path().join("link"));
        let listener = UnixListener::bind(&socket).unwrap();
        symlink(&socket, &link).unwrap();
        let refused = Link::open(&link, HELLO, &[]).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"ok\": true}\n").unwrap();
            let mut hello = String::new();
            BufReader::new(stream).read_line(&mut hello).unwrap();
            hello
        });
        Link::open(&socket, HELLO, &[]).unwrap();
        assert!(server.join().unwrap().contains("\"kind\":\"none\""));
    }
}
