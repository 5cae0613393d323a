//! One file of a version's weights, by name, length and digest.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

/// A SHA-256.
pub(super) type Sha = [u8; 32];

/// A file of a version's weights, whole and immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its file name: 1 to 128 of `[A-Za-z0-9._-]`, not beginning with a dot.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its content, 64 hexadecimal digits.
    pub sha256: String,
}

/// The buckets of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The version.
    pub version: u64,
    /// No further bucket comes: it was committed.
    pub complete: bool,
    /// By name.
    pub buckets: Vec<Bucket>,
}

pub(super) fn user(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

pub(super) fn infrastructure(reason: &'static str, message: String) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

/// A fault of the disk below `path`.
pub(super) fn disk(path: &Path, error: &std::io::Error) -> Fault {
    infrastructure("WeightsDisk", format!("cannot keep weights at {}: {error}", path.display()))
}

/// Checks that `name` is a plain file name, so that no path leaves the directory.
pub(super) fn check_name(name: &str) -> Result<(), Fault> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let shown: String = name.chars().take(128).collect();
    if (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain) {
        return Ok(());
    }
    let message = format!(
        "`{shown}` is no bucket's name: use 1 to 128 characters of A-Z a-z 0-9 . _ -, not beginning with a dot"
    );
    Err(user("InvalidBucketName", message))
}

pub(super) fn to_hex(sha: &Sha) -> String {
    sha.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ok = write!(text, "{byte:02x}");
        text
    })
}

/// The version was aborted, or is too old: pulling it has no purpose any more.
pub(super) fn gone(version: Version) -> Fault {
    let message = format!("version {version} has no buckets any more: pull the current one");
    Fault::new(FaultKind::Stale, "VersionGone", message)
}

/// Feeds a file to `hasher`; returns its length.
pub(super) async fn hash_file(path: &Path, hasher: &mut Sha256) -> std::io::Result<u64> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut piece = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut piece).await?;
        if read == 0 {
            return Ok(bytes);
        }
        hasher.update(&piece[..read]);
        bytes += read as u64;
    }
}

/// The directory of a version below `root`.
pub(super) fn directory(root: &Path, version: Version) -> std::path::PathBuf {
    root.join(version.to_string())
}

/// Deletes a directory, though a file may be made in it meanwhile.
pub(super) async fn remove(dir: &Path) -> std::io::Result<()> {
    let mut tries = 0;
    loop {
        match tokio::fs::remove_dir_all(dir).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && tries < 8 => tries += 1,
            removed => return removed,
        }
    }
}

/// Deletes the directories of all versions below `root` but those of `keep`.
pub(super) async fn retain(root: &Path, keep: &[Version]) -> std::io::Result<()> {
    let mut entries = tokio::fs::read_dir(root).await?;
    while let Some(entry) = entries.next_entry().await? {
        let name = entry.file_name();
        let version = name.to_str().and_then(|name| name.parse().ok()).map(Version);
        if version.is_some_and(|version| !keep.contains(&version)) {
            remove(&entry.path()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_file_names() {
        for bad in ["", ".", "..", "a/b", "../x", ".part", "a b", "ä", &"x".repeat(129)] {
            assert_eq!(check_name(bad).unwrap_err().reason, "InvalidBucketName", "{bad:?}");
        }
        for good in ["model-00001-of-00002.safetensors", "config.json", "0"] {
            check_name(good).unwrap();
        }
    }
}
