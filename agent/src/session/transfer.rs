use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rollwright_init::protocol::{FileFailure, FileOpen, ToInit};
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::{MAX_STDIN, Session, SessionError};

/// Most transfers at once in one sandbox.
const MAX_TRANSFERS: usize = 32;
/// Size of the pieces that a reader gives, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// Largest frame into the sandbox, in bytes.
const MAX_FRAME: usize = 1024 * 1024;

type FileResult = Result<u64, FileFailure>;

/// Transfers that wait for their end.
#[derive(Debug, Default)]
pub struct Transfers {
    waiting: Mutex<(u64, HashMap<u64, oneshot::Sender<FileResult>>)>,
}

impl Transfers {
    fn open(&self) -> Result<(u64, oneshot::Receiver<FileResult>), SessionError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.1.retain(|_, done_tx| !done_tx.is_closed());
        if waiting.1.len() >= MAX_TRANSFERS {
            return Err(SessionError::TooManyTransfers { limit: MAX_TRANSFERS });
        }
        waiting.0 += 1;
        let transfer = waiting.0;
        let (done_tx, done_rx) = oneshot::channel();
        waiting.1.insert(transfer, done_tx);
        Ok((transfer, done_rx))
    }

    pub(super) fn done(&self, transfer: u64, result: FileResult) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done_tx) = waiting.1.remove(&transfer) {
            // The caller may have lost interest.
            let _ = done_tx.send(result);
        }
    }

    pub(super) fn abandon(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    }
}

/// What a transfer reads or writes, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Absolute path inside the sandbox: of the file, or of the directory that a
    /// tar is unpacked in (missing parents are made) or packed from.
    pub path: String,
    /// The data is a tar archive.
    pub tar: bool,
    /// Permission bits of a written file; 0 is 0644.
    pub mode: u32,
    /// User, never 0.
    pub uid: u32,
    /// Group, never 0.
    pub gid: u32,
}

impl Session {
    /// Opens a transfer into the sandbox. A file appears whole, when
    /// [`FileWriter::finish`] succeeds, or not at all. `cgroup` holds the
    /// `cgroup.procs` files of the cgroup that pays for it; without them it runs
    /// in the sandbox's own, which is idle while no action runs.
    ///
    /// # Errors
    /// [`SessionError::TooManyTransfers`], [`SessionError::BadRequest`] or the
    /// connection's failure.
    pub async fn put_file(
        &self,
        target: &Target,
        cgroup: &[OwnedFd],
    ) -> Result<FileWriter, SessionError> {
        let (pipe, theirs) = pipe::pipe()?;
        let done_rx = self.open(true, target, theirs.into_blocking_fd()?, cgroup).await?;
        Ok(FileWriter { pipe, done_rx })
    }

    /// Opens a transfer out of the sandbox.
    ///
    /// # Errors
    /// As [`Session::put_file`].
    pub async fn get_file(
        &self,
        target: &Target,
        cgroup: &[OwnedFd],
    ) -> Result<FileReader, SessionError> {
        let (theirs, pipe) = pipe::pipe()?;
        let done_rx = self.open(false, target, theirs.into_blocking_fd()?, cgroup).await?;
        Ok(FileReader { pipe, done_rx: Some(done_rx) })
    }

    async fn open(
        &self,
        put: bool,
        target: &Target,
        theirs: OwnedFd,
        cgroup: &[OwnedFd],
    ) -> Result<oneshot::Receiver<FileResult>, SessionError> {
        if target.uid == 0 || target.gid == 0 {
            return Err(SessionError::BadRequest("a transfer never runs as root".into()));
        }
        let (transfer, done_rx) = self.transfers.open()?;
        let Target { path, tar, mode, uid, gid } = target.clone();
        let message = ToInit::File(FileOpen { transfer, put, path, tar, mode, uid, gid });
        let fds: Vec<_> =
            std::iter::once(theirs.as_fd()).chain(cgroup.iter().map(AsFd::as_fd)).collect();
        self.send(&message, &fds).await?;
        Ok(done_rx)
    }
}

/// A transfer into the sandbox. Dropped before [`FileWriter::finish`] it is undone.
#[derive(Debug)]
pub struct FileWriter {
    pipe: pipe::Sender,
    done_rx: oneshot::Receiver<FileResult>,
}

impl FileWriter {
    /// Sends some content. Waits while the sandbox is slower. Not cancel-safe: a
    /// cancelled write ends the transfer.
    ///
    /// # Errors
    /// [`SessionError::File`] when the sandbox's side failed.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), SessionError> {
        for frame in data.chunks(MAX_FRAME) {
            let length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes();
            if let Err(error) = self.write_all(&length, frame).await {
                return Err(self.failure(error).await);
            }
        }
        Ok(())
    }

    /// Ends the content; returns the bytes of content moved.
    ///
    /// # Errors
    /// As [`FileWriter::write`].
    pub async fn finish(mut self) -> Result<u64, SessionError> {
        if let Err(error) = self.write_all(&0u32.to_le_bytes(), &[]).await {
            return Err(self.failure(error).await);
        }
        drop(self.pipe);
        finished(self.done_rx).await
    }

    async fn write_all(&mut self, length: &[u8], frame: &[u8]) -> io::Result<()> {
        self.pipe.write_all(length).await?;
        self.pipe.write_all(frame).await
    }

    /// The pipe broke: the reason is what the helper says.
    async fn failure(&mut self, error: io::Error) -> SessionError {
        if error.kind() != io::ErrorKind::BrokenPipe {
            return error.into();
        }
        match (&mut self.done_rx).await {
            Ok(Err(failure)) => SessionError::File(failure),
            Ok(Ok(_)) => error.into(),
            Err(_) => SessionError::Closed,
        }
    }
}

/// A transfer out of the sandbox.
#[derive(Debug)]
pub struct FileReader {
    pipe: pipe::Receiver,
    done_rx: Option<oneshot::Receiver<FileResult>>,
}

impl FileReader {
    /// The next piece of content; `None` once it is complete.
    ///
    /// # Errors
    /// [`SessionError::File`] when it failed inside; what was read before is then
    /// not to be believed.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>, SessionError> {
        let mut piece = bytes::BytesMut::with_capacity(READ_SIZE);
        if self.pipe.read_buf(&mut piece).await? > 0 {
            return Ok(Some(piece.freeze()));
        }
        if let Some(done_rx) = self.done_rx.take() {
            finished(done_rx).await?;
        }
        Ok(None)
    }
}

async fn finished(done_rx: oneshot::Receiver<FileResult>) -> Result<u64, SessionError> {
    match done_rx.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(failure)) => Err(SessionError::File(failure)),
        Err(_) => Err(SessionError::Closed),
    }
}

/// A file in memory with this content, which nobody can change.
pub(super) fn sealed_file(content: &[u8]) -> Result<OwnedFd, SessionError> {
    if content.len() > MAX_STDIN {
        return Err(SessionError::BadRequest(format!(
            "{} bytes of standard input, at most {MAX_STDIN}; put a file instead",
            content.len()
        )));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("stdin", flags)?);
    file.write_all(content)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK,
    )?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file.into())
}

impl From<rustix::io::Errno> for SessionError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
