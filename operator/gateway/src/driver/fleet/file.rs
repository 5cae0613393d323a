//! The set of workers on disk, for the next process.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rollwright_core::fault::Fault;

use crate::api::types::WorkerSet;
use crate::fault::infrastructure;

/// The set that was written last, if one was and can be read.
pub(super) async fn read(path: PathBuf) -> Option<WorkerSet> {
    let why = match tokio::fs::read(&path).await {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(set) => return Some(set),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    let path = path.display();
    tracing::error!(%path, why, "the last set of workers cannot be read: it waits to be named again");
    None
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
    // No two writes share a file, whatever became of the task that began one.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("json.{write}.new"));
    let replaced = write_beside(&beside, set).and_then(|()| std::fs::rename(&beside, path));
    if replaced.is_err() {
        // What failed is told; that nothing is left of it is only tidy.
        let _left = std::fs::remove_file(&beside);
    }
    replaced?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn write_beside(beside: &Path, set: &WorkerSet) -> std::io::Result<()> {
    let mut file = File::create(beside)?;
    file.write_all(&serde_json::to_vec(set)?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn writes_at_once_leave_one_whole_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("workers.json");
        let set = |workers: usize| -> WorkerSet {
            let worker = |n| serde_json::json!({"name": format!("w{n}"), "url": "http://h", "class": "c", "slots": 1});
            let workers: Vec<_> = (0..workers).map(worker).collect();
            serde_json::from_value(serde_json::json!({ "workers": workers })).unwrap()
        };
        let writes = (1..33).map(|workers| write(path.clone(), set(workers)));
        for written in futures::future::join_all(writes).await {
            written.unwrap();
        }
        assert!((1..33).contains(&read(path).await.unwrap().workers.len()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
