//! What a trajectory made, copied into the pristine sandbox that scores it.
//!
//! The archive is packed inside the trajectory's sandbox, so a policy may forge it. Only
//! regular files, directories and links that cannot lead out of the copied path pass the
//! [`sieve`]: a link could make the grader read its own solution as the answer.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt as _;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_proto::v1 as pb;
use rollwright_proto::v1::put_file_request::Part;
use tar::EntryType;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;

use crate::actions::{Actions, fault_of};

/// Bytes of one path at most.
const MAX_BYTES: u64 = 1 << 30;
/// Files and directories of one path at most.
const MAX_ENTRIES: usize = 100_000;
/// Bytes of one message.
const PIECE: usize = 64 << 10;
/// Messages under way at each side of the sieve.
const AHEAD: usize = 4;

/// Copies `path` from the sandbox `from` to the sandbox `to`. One that is not there, or
/// cannot be read at all, is left out: the command that scores finds it missing and says
/// what that is worth. A directory of which only a part can be read is a fault.
pub(super) async fn copy(actions: &Actions, from: &str, to: &str, path: &str) -> Result<(), Fault> {
    let chunks = match actions.get_tar(from, path).await {
        Ok(chunks) => chunks,
        Err(fault) if is_missing(&fault) => {
            tracing::debug!(trajectory = from, path, %fault, "nothing to copy");
            return Ok(());
        }
        Err(fault) => return Err(fault),
    };
    let (tar_tx, tar_rx) = mpsc::channel(AHEAD);
    let (part_tx, mut part_rx) = mpsc::channel(AHEAD);
    let copied = Copied { sandbox: to.to_owned(), path: PathBuf::from(path) };
    let sieved = AbortOnDropHandle::new(tokio::task::spawn_blocking(move || {
        sieve(&copied, Pieces { from: tar_rx, piece: Bytes::new() }, part_tx)
    }));
    let fed = AbortOnDropHandle::new(tokio::spawn(feed(chunks, tar_tx)));
    let target = part_rx.recv().await;
    let nothing = target.is_none();
    let put = match target {
        Some(target) => {
            let parts = futures::stream::iter([target]).chain(ReceiverStream::new(part_rx));
            actions.put(parts).await
        }
        None => Ok(()),
    };
    let ended = |error: tokio::task::JoinError| infrastructure("CopyFailed", error.to_string());
    let (fed, sieved) = (fed.await.map_err(ended)?, sieved.await.map_err(ended)?);
    // The first to break breaks the others: source, then target, then what is between.
    match fed {
        // The agent finds out after it has begun to answer.
        Err(fault) if is_missing(&fault) && nothing => return Ok(()),
        Err(fault) if is_missing(&fault) => {
            let message = format!("`{path}` cannot be read whole: {}", fault.message);
            return Err(Fault::new(FaultKind::Action, "ArtefactUnreadable", message));
        }
        fed => fed?,
    }
    match (put, sieved) {
        (Err(fault), Ok(()) | Err(Refused::Away)) => Err(fault),
        (_, Err(refused)) => Err(refused.fault(path)),
        (Ok(()), Ok(())) => Ok(()),
    }
}

fn infrastructure(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

/// The policy decides what lies there and who may read it.
fn is_missing(fault: &Fault) -> bool {
    matches!(fault.reason.as_ref(), "FileNotFound" | "PermissionDenied" | "WrongFileType")
}

/// Gives the archive to the sieve. That the sieve wants no more is no fault.
async fn feed(
    mut chunks: Streaming<pb::FileChunk>,
    to: mpsc::Sender<Result<Bytes, Broken>>,
) -> Result<(), Fault> {
    loop {
        match chunks.message().await {
            Ok(Some(chunk)) => {
                if to.send(Ok(chunk.data)).await.is_err() {
                    return Ok(());
                }
            }
            Ok(None) => return Ok(()),
            Err(status) => {
                // The sieve must not take it for the end.
                drop(to.send(Err(Broken)).await);
                return Err(fault_of(&status));
            }
        }
    }
}

/// The archive broke off.
#[derive(Debug)]
struct Broken;

/// What is copied where.
#[derive(Debug)]
struct Copied {
    sandbox: String,
    path: PathBuf,
}

/// Why an archive is not copied.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it is no archive: {0}")]
    Malformed(io::Error),
    #[error("it is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("it has more than {MAX_ENTRIES} files")]
    TooMany,
    #[error("nobody takes it")]
    Away,
}

impl Refused {
    fn fault(&self, path: &str) -> Fault {
        let message = format!("`{path}` cannot be copied to where it is scored: {self}");
        match self {
            Self::Away => infrastructure("CopyFailed", message),
            Self::Malformed(_) => Fault::new(FaultKind::Action, "ArtefactMalformed", message),
            Self::TooLong | Self::TooMany => {
                Fault::new(FaultKind::Action, "ArtefactTooLarge", message)
            }
        }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Away } else { Self::Malformed(error) }
    }
}

/// Lets through what may be copied. The first part names the target.
fn sieve(
    copied: &Copied,
    archive: impl Read,
    parts: mpsc::Sender<pb::PutFileRequest>,
) -> Result<(), Refused> {
    let mut archive = tar::Archive::new(archive);
    let mut entries = archive.entries()?;
    let Some(first) = entries.next() else { return Ok(()) };
    let first = first?;
    let is_directory =
        first.header().entry_type().is_dir() && relative(&first.path()?) == Some(PathBuf::new());
    if !is_directory {
        return single(copied, first, parts);
    }
    let mut tree = Tree::default();
    let mut out = Out::begin(&copied.path, copied, parts)?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.header().entry_type();
        let link = entry.link_name()?.map(std::borrow::Cow::into_owned);
        let Some(name) = relative(&entry.path()?) else { continue };
        if !tree.admits(&name, kind, link.as_deref()) {
            tracing::debug!(path = %name.display(), ?kind, "left out of a copy");
            continue;
        }
        if tree.entries.len() > MAX_ENTRIES {
            return Err(Refused::TooMany);
        }
        match link.filter(|_| kind.is_symlink()) {
            Some(target) => out.link(&name, &target)?,
            None => out.append(&name, entry)?,
        }
    }
    out.end()
}

/// A path that is a file: exactly that file.
fn single<R: Read>(
    copied: &Copied,
    entry: tar::Entry<'_, R>,
    parts: mpsc::Sender<pb::PutFileRequest>,
) -> Result<(), Refused> {
    let (Some(parent), Some(name)) = (copied.path.parent(), copied.path.file_name()) else {
        return Ok(());
    };
    let named = relative(&entry.path()?).is_some_and(|path| path.as_os_str() == name);
    if !named || !is_file(entry.header().entry_type()) {
        return Ok(());
    }
    let mut out = Out::begin(parent, copied, parts)?;
    out.append(Path::new(name), entry)?;
    out.end()
}

fn is_file(kind: EntryType) -> bool {
    matches!(kind, EntryType::Regular | EntryType::Continuous)
}

/// Its components without `.`; `None` with a `..` or a `/` in front.
fn relative(path: &Path) -> Option<PathBuf> {
    path.components().try_fold(PathBuf::new(), |relative, part| match part {
        Component::Normal(part) => Some(relative.join(part)),
        Component::CurDir => Some(relative),
        Component::ParentDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

/// What of a directory has passed: by path, whether it is a directory.
#[derive(Debug, Default)]
struct Tree {
    entries: HashMap<PathBuf, bool>,
}

impl Tree {
    /// No path twice, none below a link or a file, and only links that stay inside: up no
    /// farther than to the root, then only down. Since no entry lies below a link, a
    /// link's own directory is as deep as its path says, and by induction so is whatever
    /// other links its way down meets.
    fn admits(&mut self, name: &Path, kind: EntryType, link: Option<&Path>) -> bool {
        let parent = name.parent().unwrap_or(Path::new(""));
        let in_directory =
            parent == Path::new("") || self.entries.get(parent).is_some_and(|is_dir| *is_dir);
        let whole = match (kind, link) {
            (EntryType::Directory, _) => true,
            (EntryType::Symlink, Some(link)) => stays_inside(link, parent.components().count()),
            _ => is_file(kind),
        };
        if name.as_os_str() == OsStr::new("")
            || !in_directory
            || !whole
            || self.entries.contains_key(name)
        {
            return false;
        }
        self.entries.insert(name.to_owned(), kind.is_dir());
        true
    }
}

fn stays_inside(link: &Path, depth: usize) -> bool {
    let up = link.components().take_while(|part| *part == Component::ParentDir).count();
    let down = link.components().skip(up);
    up <= depth
        && down.into_iter().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The archive that goes on.
struct Out {
    builder: tar::Builder<Parts>,
    bytes: u64,
}

impl Out {
    fn begin(
        directory: &Path,
        copied: &Copied,
        parts: mpsc::Sender<pb::PutFileRequest>,
    ) -> Result<Self, Refused> {
        let target = pb::FileTarget {
            trajectory_id: copied.sandbox.clone(),
            path: directory.to_string_lossy().into_owned(),
            tar: true,
            mode: 0,
        };
        let parts = Parts { to: parts, piece: Vec::with_capacity(PIECE) };
        parts.send(Part::Target(target))?;
        Ok(Self { builder: tar::Builder::new(parts), bytes: 0 })
    }

    fn append<R: Read>(
        &mut self,
        name: &Path,
        mut entry: tar::Entry<'_, R>,
    ) -> Result<(), Refused> {
        let size = entry.size();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > MAX_BYTES {
            return Err(Refused::TooLong);
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(entry.header().entry_type());
        header.set_size(size);
        // No set-user-id across the border.
        header.set_mode(entry.header().mode()? & 0o777);
        header.set_mtime(entry.header().mtime()?);
        let mut content = Counted { from: &mut entry, read: 0 };
        self.builder.append_data(&mut header, name, &mut content)?;
        if content.read < size {
            return Err(Refused::Malformed(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }

    fn link(&mut self, name: &Path, target: &Path) -> Result<(), Refused> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        Ok(self.builder.append_link(&mut header, name, target)?)
    }

    fn end(self) -> Result<(), Refused> {
        let mut parts = self.builder.into_inner()?;
        Ok(parts.flush()?)
    }
}

/// Counts what is read.
struct Counted<'a, R> {
    from: &'a mut R,
    read: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

/// Bytes as the messages of an upload.
struct Parts {
    to: mpsc::Sender<pb::PutFileRequest>,
    piece: Vec<u8>,
}

impl Parts {
    fn send(&self, part: Part) -> io::Result<()> {
        let sent = self.to.blocking_send(pb::PutFileRequest { part: Some(part) });
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Parts {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.piece.len();
        let taken = data.len().min(room);
        self.piece.extend_from_slice(&data[..taken]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.send(Part::Data(piece.into()))
    }
}

/// Messages of a download as bytes.
struct Pieces {
    from: mpsc::Receiver<Result<Bytes, Broken>>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.from.blocking_recv() {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(Broken)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
