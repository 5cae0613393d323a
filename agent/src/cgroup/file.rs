use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use super::CgroupError;

/// What the kernel gives at once of a file of its own.
const PAGE: usize = 4096;

/// Reads a small file whole. The kernel tells no size of these files to ask for first.
pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    let failed = |error| CgroupError::io("read", path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut page = [0; PAGE];
    loop {
        match file.read(&mut page) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&page[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))
}

/// Reads one number.
pub(super) fn read_number(path: &Path) -> Result<u64, CgroupError> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| CgroupError::Malformed {
        path: path.to_path_buf(),
        found: text.chars().take(80).collect(),
        expected: "a number",
    })
}

/// The number after `key` in a file of `key number` lines.
pub(super) fn read_keyed(path: &Path, key: &'static str) -> Result<u64, CgroupError> {
    let text = read(path)?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
        .ok_or_else(|| CgroupError::Malformed {
            path: path.to_path_buf(),
            found: text.chars().take(80).collect(),
            expected: key,
        })
}

/// Writes to a file that exists.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| CgroupError::io(format!("write {value:?} to"), path, error))
}

/// Writes a number and reads it back.
pub(super) fn write_number(path: &Path, value: u64) -> Result<(), CgroupError> {
    write(path, &value.to_string())?;
    let found = read(path)?;
    if found.trim().parse() == Ok(value) {
        return Ok(());
    }
    Err(CgroupError::NotConfirmed {
        path: path.to_path_buf(),
        wanted: value.to_string(),
        found: found.trim().to_owned(),
    })
}

/// Processes in a `cgroup.procs` file. Numbers of processes outside our process
/// namespace read as 0 and are left out.
pub(super) fn read_pids(path: &Path) -> Result<Vec<u32>, CgroupError> {
    Ok(read(path)?.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect())
}
