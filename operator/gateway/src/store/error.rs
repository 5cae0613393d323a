//! Why the store cannot be used, or refused something.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollwright_core::fault::{Fault, FaultKind};

/// When it is worth trying again on a disk that was full.
const RETRY_FULL: Duration = Duration::from_secs(10);

/// Why the store cannot be used, or refused something. Cheap to clone: one failure may
/// answer many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Its directory cannot be made, or kept from other users.
    #[error("cannot use {path} for the store: {source}; it must be a directory of this user")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// Another process has it.
    #[error(
        "the store in {path} is in use by another process: each gateway needs a directory of its own"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It was written by another version.
    #[error(
        "the store in {path} has schema `{found}`, this gateway writes `{wants}`: use the version that wrote it, or an empty directory",
        wants = super::meta::SCHEMA
    )]
    Schema {
        /// The directory.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// Something in it cannot be read.
    #[error(
        "the store is corrupt: {what} `{key}`: {message}; restore the directory from a backup, or start with an empty one"
    )]
    Corrupt {
        /// Sort of record.
        what: &'static str,
        /// Its key.
        key: String,
        /// What is wrong with it.
        message: String,
    },
    /// The disk is full. What was accepted before is safe.
    #[error(
        "the disk of the store is full ({available} bytes are left): let the trainer acknowledge batches, or give it a larger volume"
    )]
    Full {
        /// Bytes that are left on it.
        available: u64,
    },
    /// A group is not in it: it has ended.
    #[error("group `{group}` is not in the store: it has ended")]
    GroupNotFound {
        /// The group.
        group: String,
    },
    /// A record is not in it: it was dropped, or its batch acknowledged.
    #[error(
        "the record of trajectory `{trajectory}` is not in the store: it was dropped, or its batch acknowledged"
    )]
    RecordNotFound {
        /// The trajectory.
        trajectory: String,
    },
    /// A record or payload is larger than the store takes.
    #[error("{length} bytes are too many for one record of the store: at most {max}")]
    TooLarge {
        /// Its length.
        length: usize,
        /// The most that is taken.
        max: usize,
    },
    /// Reading or writing failed.
    #[error("the store failed: {0}")]
    Io(Arc<std::io::Error>),
    /// The embedded database failed.
    #[error("the store failed: {0}")]
    Database(Arc<fjall::Error>),
    /// It failed before, and writes no more: what was accepted is on disk.
    #[error("the store has stopped after a failure: restart the gateway")]
    Stopped,
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<fjall::Error> for StoreError {
    fn from(error: fjall::Error) -> Self {
        Self::Database(Arc::new(error))
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        use FaultKind::{Cancelled, Infrastructure, User};
        let (kind, reason, retry_after) = match &error {
            StoreError::Directory { .. } => (Infrastructure, "StoreDirectory", None),
            StoreError::Locked { .. } => (Infrastructure, "StoreLocked", None),
            StoreError::Schema { .. } => (Infrastructure, "StoreSchema", None),
            StoreError::Corrupt { .. } => (Infrastructure, "StoreCorrupt", None),
            StoreError::Full { .. } => (Infrastructure, "StoreFull", Some(RETRY_FULL)),
            StoreError::GroupNotFound { .. } => (Cancelled, "GroupEnded", None),
            StoreError::RecordNotFound { .. } => (Cancelled, "RecordEnded", None),
            StoreError::TooLarge { .. } => (User, "RecordTooLarge", None),
            StoreError::Io(_) | StoreError::Database(_) => (Infrastructure, "StoreFailed", None),
            StoreError::Stopped => (Infrastructure, "StoreStopped", None),
        };
        Self { retry_after, ..Self::new(kind, reason, error.to_string()) }
    }
}
