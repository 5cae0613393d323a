//! Who calls: everybody who can open the Unix socket, or the holder of a job's
//! API key over TCP. Queue and gateway ask here.
#![forbid(unsafe_code)]

mod caller;
mod metrics;

use std::path::{Path, PathBuf};

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::JobId;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

pub use caller::{Caller, DEFAULT_JOB, InvalidNamespace, Namespace};
pub use metrics::{MetricsError, MetricsListen, MetricsListener};

fn user(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

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
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<(JobId, [u8; 32])>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// Reads `JOB:KEY` or `JOB:sha256:HEX` lines; `#` begins a comment line.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeysError::Read { path: path.into(), source })?;
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = parse_line(line)
                .ok_or_else(|| KeysError::Line { path: path.into(), line: index + 1 })?;
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeysError::Empty { path: path.into() });
        }
        Ok(Self(keys))
    }

    /// Who sends this `Authorization` header. Takes as long for any key.
    pub fn authenticate(&self, header: Option<&str>) -> Result<Caller, Fault> {
        let refused = |message: &str| user("Unauthenticated", message);
        let token = header
            .and_then(|header| header.strip_prefix("Bearer "))
            .ok_or_else(|| refused("send the job's API key as `Authorization: Bearer KEY`"))?;
        let hash: [u8; 32] = Sha256::digest(token.trim().as_bytes()).into();
        let mut found = u32::MAX;
        for (index, (_, key)) in self.0.iter().enumerate() {
            found.conditional_assign(&(index as u32), key.ct_eq(&hash));
        }
        let (job, _) =
            self.0.get(found as usize).ok_or_else(|| refused("this API key is not known"))?;
        Ok(Caller::of_job(job.clone()))
    }
}

fn parse_line(line: &str) -> Option<(JobId, [u8; 32])> {
    let (job, key) = line.split_once(':')?;
    let (job, key) = (JobId::new(job.trim()).ok()?, key.trim());
    if let Some(hex) = key.strip_prefix("sha256:") {
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        return Some((job, hash));
    }
    (key.len() >= 16).then(|| (job, Sha256::digest(key.as_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<ApiKeys, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ApiKeys::read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_opens_its_own_job_only() {
        let hex = "d0f631ca1ddba8db3bcfcb9e057cdc98d0379f1bee00e75a545147a27dadd982";
        let keys = keys(&format!("# two jobs\na:0123456789abcdef-key\nb:sha256:{hex}\nc:{hex}\n"))
            .unwrap();
        let a = keys.authenticate(Some("Bearer 0123456789abcdef-key")).unwrap();
        assert_eq!(a.job("").unwrap().as_str(), "a");
        assert_eq!(a.job("b").unwrap_err().reason, "Forbidden");
        assert!(!a.may_use(&JobId::new("b").unwrap()));
        assert!(keys.authenticate(Some("Bearer nonsense")).is_err());
        assert!(keys.authenticate(Some("Basic 0123456789abcdef-key")).is_err());
        assert!(keys.authenticate(None).is_err());
        // 64 digits without the prefix are a key as any other.
        let c = keys.authenticate(Some(&format!("Bearer {hex}"))).unwrap();
        assert_eq!(c.job("").unwrap().as_str(), "c");
    }

    #[test]
    fn wrong_files_are_refused_without_showing_keys() {
        for bad in [
            "",
            "short:key",
            "a:sha256:0123456789abcdef",
            "no-colon-but-long-enough",
            "a b:0123456789abcdef",
        ] {
            let error = keys(bad).unwrap_err();
            assert!(!error.contains("0123456789abcdef"), "{error}");
        }
    }
}
