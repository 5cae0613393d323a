//! The set of workers on disk, for the next process.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use rollwright_core::fault::Fault;

use crate::api::types::WorkerSet;
use crate::fault::infrastructure;

/// What an earlier process has written is damaged.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the workers in {path}: {why}; remove the file, and the operator names them again"
)]
pub struct UnreadableWorkers {
    path: PathBuf,
    why: String,
}

/// The set that was written last, if one was.
pub(super) async fn read(path: PathBuf) -> Result<Option<WorkerSet>, UnreadableWorkers> {
    let unreadable = |why: String| UnreadableWorkers { path: path.clone(), why };
    match tokio::fs::read(&path).await {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|error| unreadable(error.to_string()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Writes a set so that the one or the other is found, whenever the machine stops.
pub(super) async fn write(path: PathBuf, set: WorkerSet) -> Result<(), Fault> {
    let written = tokio::task::spawn_blocking(move || replace(&path, &set)).await;
    let unwritten = |why: String| {
        infrastructure("WorkersNotKept", format!("the set of workers is not on disk: {why}"))
    };
    written
        .map_err(|error| unwritten(error.to_string()))?
        .map_err(|error| unwritten(error.to_string()))
}

fn replace(path: &Path, set: &WorkerSet) -> std::io::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec(set)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
