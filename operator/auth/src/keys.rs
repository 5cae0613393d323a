//! API keys of jobs, for clients that do not rotate tokens.

use std::path::{Path, PathBuf};

use rollwright_core::ids::JobId;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use crate::Namespace;

/// Why API keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read the API keys in {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is wrong. It is not shown, since it may hold a key.
    #[error(
        "line {line} of {path} is not `JOB:KEY`, with KEY of at least 16 characters, or `sha256:` and the 64 hexadecimal digits of its SHA-256"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
    },
    /// There is none.
    #[error("{path} holds no API key: write one `JOB:KEY` a line")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The API keys of all jobs, as hashes.
pub(crate) struct ApiKeys(Vec<(JobId, [u8; 32])>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// Reads `JOB:KEY` or `JOB:sha256:HEX` lines; `#` begins a comment line. Jobs are those
    /// of `namespace`, where there is one.
    pub(crate) fn read(path: &Path, namespace: Option<&Namespace>) -> Result<Self, KeysError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeysError::Read { path: path.into(), source })?;
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = parse_line(line, namespace)
                .ok_or_else(|| KeysError::Line { path: path.into(), line: index + 1 })?;
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeysError::Empty { path: path.into() });
        }
        Ok(Self(keys))
    }

    /// The job whose key has this SHA-256. Takes as long for any key.
    pub(crate) fn job(&self, hash: &[u8; 32]) -> Option<JobId> {
        let mut found = u32::MAX;
        for (index, (_, key)) in self.0.iter().enumerate() {
            found.conditional_assign(&(index as u32), key.ct_eq(hash));
        }
        self.0.get(found as usize).map(|(job, _)| job.clone())
    }
}

fn parse_line(line: &str, namespace: Option<&Namespace>) -> Option<(JobId, [u8; 32])> {
    let (job, key) = line.split_once(':')?;
    let (job, key) = (JobId::new(job.trim()).ok()?, key.trim());
    let job = match namespace {
        Some(namespace) => JobId::new(&namespace.qualify(job.as_str())).ok()?,
        None => job,
    };
    let hashed = key.starts_with(HASHED);
    (hashed || key.len() >= 16).then(|| Some((job, hash(key)?))).flatten()
}

/// Begins what is the SHA-256 of a key or token, in place of itself.
const HASHED: &str = "sha256:";

/// The SHA-256 of a key or token, of which a file holds that or itself; `None` where what follows
/// `sha256:` is no hash.
pub(crate) fn hash(written: &str) -> Option<[u8; 32]> {
    let Some(hex) = written.strip_prefix(HASHED) else {
        return Some(Sha256::digest(written.as_bytes()).into());
    };
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_files_are_refused_without_showing_keys() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bad in [
            "",
            "short:key",
            "a:sha256:0123456789abcdef",
            "no-colon-but-long-enough",
            "a b:0123456789abcdef",
        ] {
            std::fs::write(file.path(), bad).unwrap();
            let error = ApiKeys::read(file.path(), None).unwrap_err().to_string();
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
    }
}
