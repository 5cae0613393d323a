use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;

use super::CgroupError;

/// Reads a small file whole.
pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|mut file| file.read_to_string(&mut text))
        .map_err(|error| CgroupError::io("read", path, error))?;
    Ok(text)
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
