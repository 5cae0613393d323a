//! Files and tar archives in and out of the sandbox, by a process of the user.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::protocol::{FileFailure, FileFailureKind, FileOpen};

/// Permission bits of a written file where none are given.
const DEFAULT_MODE: u32 = 0o644;

/// Does the transfer; returns the bytes of content moved.
pub(crate) fn transfer(open: &FileOpen, data: File) -> Result<u64, FileFailure> {
    let path = Path::new(&open.path);
    if !path.is_absolute() {
        let message = format!("{:?} is not an absolute path", open.path);
        return Err(FileFailure { kind: FileFailureKind::Other, message });
    }
    match (open.put, open.tar) {
        (true, true) => unpack(path, Frames::new(data)),
        (true, false) => put(path, open.mode, Frames::new(data)),
        (false, true) => pack(path, data),
        (false, false) => get(path, data),
    }
}

/// Content that comes in frames, counted.
struct Frames {
    data: File,
    left: usize,
    ended: bool,
    read: u64,
}

impl Frames {
    fn new(data: File) -> Self {
        Self { data, left: 0, ended: false, read: 0 }
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut length = [0; 4];
            self.data.read_exact(&mut length)?;
            self.left = u32::from_le_bytes(length) as usize;
            self.ended = self.left == 0;
        }
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        let want = buffer.len().min(self.left);
        let count = self.data.read(&mut buffer[..want])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        self.read += count as u64;
        Ok(count)
    }
}

fn put(path: &Path, mode: u32, mut frames: Frames) -> Result<u64, FileFailure> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        let message = format!("{} is a directory, not a file", path.display());
        return Err(FileFailure { kind: FileFailureKind::WrongType, message });
    };
    fs::create_dir_all(parent).map_err(|error| failure("make", parent, &error))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}", std::process::id()));
    let hidden = parent.join(hidden);
    let written = write_new(&hidden, mode, &mut frames)
        .map_err(|error| failure("write", path, &error))
        .and_then(|()| fs::rename(&hidden, path).map_err(|error| failure("write", path, &error)));
    if written.is_err() {
        // It may not exist; the first error is the one to tell.
        let _ = fs::remove_file(&hidden);
    }
    written.map(|()| frames.read)
}

fn write_new(path: &Path, mode: u32, frames: &mut Frames) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::copy(frames, &mut file)?;
    let mode = if mode == 0 { DEFAULT_MODE } else { mode & 0o7777 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

fn unpack(path: &Path, frames: Frames) -> Result<u64, FileFailure> {
    fs::create_dir_all(path).map_err(|error| failure("make", path, &error))?;
    let mut archive = tar::Archive::new(frames);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(false);
    archive.set_overwrite(true);
    let bad = |error: io::Error| archive_failure(path, &error);
    // Directories come last: one without write permission would refuse its content.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        if entry.header().entry_type().is_dir() {
            directories.push((entry.path().map_err(bad)?.into_owned(), entry.header().mode()));
            let inside = entry.path().map_err(bad)?.into_owned();
            make_inside(path, &inside)?;
            continue;
        }
        let name = entry.path().map_err(bad)?.into_owned();
        if !entry.unpack_in(path).map_err(bad)? {
            return Err(leads_out(&name));
        }
    }
    directories.sort_by(|(a, _), (b, _)| b.cmp(a));
    for (directory, mode) in directories {
        let directory = path.join(relative(&directory)?);
        let mode = mode.map_err(bad)? & 0o7777;
        // A link put in its place by the same archive is left alone.
        if fs::symlink_metadata(&directory).is_ok_and(|metadata| metadata.is_dir()) {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode))
                .map_err(|error| failure("unpack", &directory, &error))?;
        }
    }
    let mut frames = archive.into_inner();
    // Padding after the archive, up to the end of the data.
    io::copy(&mut frames, &mut io::sink()).map_err(bad)?;
    Ok(frames.read)
}

/// Makes a directory of the archive; refused where a link leads out.
fn make_inside(root: &Path, name: &Path) -> Result<(), FileFailure> {
    let directory = root.join(relative(name)?);
    fs::create_dir_all(&directory).map_err(|error| failure("make", &directory, &error))?;
    let real = |path: &Path| path.canonicalize().map_err(|error| failure("make", path, &error));
    if real(&directory)?.starts_with(real(root)?) { Ok(()) } else { Err(leads_out(name)) }
}

/// The path of an entry without a leading `/`; refused with `..` in it.
fn relative(name: &Path) -> Result<PathBuf, FileFailure> {
    use std::path::Component;
    let mut relative = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => relative.push(part),
            Component::ParentDir => return Err(leads_out(name)),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    Ok(relative)
}

fn leads_out(name: &Path) -> FileFailure {
    let message = format!("the entry {} leads out of the directory", name.display());
    FileFailure { kind: FileFailureKind::BadArchive, message }
}

fn get(path: &Path, mut data: File) -> Result<u64, FileFailure> {
    let mut file = open_regular(path)?;
    io::copy(&mut file, &mut data).map_err(|error| failure("read", path, &error))
}

/// Opens a regular file without waiting for the other end of a pipe.
fn open_regular(path: &Path) -> Result<File, FileFailure> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(|error| failure("read", path, &error))?;
    let metadata = file.metadata().map_err(|error| failure("read", path, &error))?;
    if !metadata.is_file() {
        let message = format!("{} is not a regular file; ask for a tar of it", path.display());
        return Err(FileFailure { kind: FileFailureKind::WrongType, message });
    }
    Ok(file)
}

/// Counts what is written.
struct Counted(File, u64);

impl Write for Counted {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.0.write(data)?;
        self.1 += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn pack(path: &Path, data: File) -> Result<u64, FileFailure> {
    let mut builder = tar::Builder::new(Counted(data, 0));
    builder.follow_symlinks(false);
    let metadata = fs::symlink_metadata(path).map_err(|error| failure("read", path, &error))?;
    if metadata.is_dir() {
        pack_directory(&mut builder, path, Path::new("."))?;
    } else {
        let name = path.file_name().map(PathBuf::from).unwrap_or_default();
        pack_one(&mut builder, path, &name)?;
    }
    let counted = builder.into_inner().map_err(|error| failure("send", path, &error))?;
    Ok(counted.1)
}

fn pack_directory(
    builder: &mut tar::Builder<Counted>,
    path: &Path,
    name: &Path,
) -> Result<(), FileFailure> {
    builder.append_dir(name, path).map_err(|error| failure("read", path, &error))?;
    let entries = fs::read_dir(path).map_err(|error| failure("read", path, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failure("read", path, &error))?;
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let kind = entry.file_type().map_err(|error| failure("read", &path, &error))?;
        if kind.is_dir() {
            pack_directory(builder, &path, &name)?;
        } else if kind.is_file() || kind.is_symlink() {
            // Sockets, pipes and devices are nothing without their process, and must not
            // keep what lies beside them from being read.
            pack_one(builder, &path, &name)?;
        }
    }
    Ok(())
}

fn pack_one(
    builder: &mut tar::Builder<Counted>,
    path: &Path,
    name: &Path,
) -> Result<(), FileFailure> {
    let failed = |error: io::Error| failure("read", path, &error);
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return builder.append_path_with_name(path, name).map_err(failed);
    }
    let file = open_regular(path)?;
    let size = metadata.len();
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&metadata);
    header.set_size(size);
    // A file that is cut while it is read is filled up, so that the archive stays whole.
    let content = file.chain(io::repeat(0)).take(size);
    builder.append_data(&mut header, name, content).map_err(failed)
}

fn archive_failure(path: &Path, error: &io::Error) -> FileFailure {
    let mut failure = failure("unpack into", path, error);
    if failure.kind == FileFailureKind::Other {
        failure.kind = FileFailureKind::BadArchive;
    }
    failure
}

fn failure(what: &str, path: &Path, error: &io::Error) -> FileFailure {
    use io::ErrorKind as E;
    let kind = match error.kind() {
        E::NotFound => FileFailureKind::NotFound,
        E::PermissionDenied | E::ReadOnlyFilesystem => FileFailureKind::PermissionDenied,
        E::NotADirectory | E::IsADirectory | E::AlreadyExists => FileFailureKind::WrongType,
        E::StorageFull | E::QuotaExceeded | E::FileTooLarge => FileFailureKind::NoSpace,
        E::UnexpectedEof => FileFailureKind::Cut,
        _ => FileFailureKind::Other,
    };
    // Errors of the tar crate wrap the cause.
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let message = format!("cannot {what} {}: {error}{}", path.display(), cause.unwrap_or_default());
    FileFailure { kind, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_or_socket_does_not_keep_the_files_beside_it_from_travelling() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("answer"), "42").unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let archive = tempfile::tempfile().unwrap();
        pack(dir.path(), archive.try_clone().unwrap()).unwrap();
        io::Seek::rewind(&mut &archive).unwrap();
        let mut archive = tar::Archive::new(archive);
        let names: Vec<PathBuf> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert_eq!(names, [Path::new("."), Path::new("answer")]);
    }
}
