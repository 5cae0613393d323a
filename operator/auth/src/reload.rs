//! What was read from files, and is read again when they change: certificates, keys and
//! tokens are rotated under a running process.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds between two looks at the files.
const LOOK_EVERY: u64 = 1000;

type Load<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value made from files. While the files cannot be used, the last good value stays.
pub struct Reloading<T> {
    what: &'static str,
    paths: Vec<PathBuf>,
    load: Load<T>,
    /// Milliseconds of the last look.
    looked: AtomicU64,
    current: RwLock<Current<T>>,
    /// Why the files cannot be used; said once for each reason.
    failing: Mutex<Option<String>>,
}

struct Current<T> {
    seen: Vec<Option<Stamp>>,
    generation: u64,
    value: Arc<T>,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: (file.dev(), file.ino()),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| Stamp::of(path)).collect()
}

fn millis(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl<T> std::fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloading").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> Reloading<T> {
    /// Loads for the first time. `what` names it in the log; `load` reads `paths`.
    pub fn open<E: Display>(
        what: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + Sync + 'static,
        now: SystemTime,
    ) -> Result<Self, E> {
        // Looked at before it is read: what changes in between is read again.
        let seen = stamps(&paths);
        let value = Arc::new(load()?);
        Ok(Self {
            what,
            paths,
            load: Box::new(move || load().map_err(|error| error.to_string())),
            looked: AtomicU64::new(millis(now)),
            current: RwLock::new(Current { seen, generation: 0, value }),
            failing: Mutex::new(None),
        })
    }

    /// The value. Looks at the files at most once a second.
    pub fn get(&self, now: SystemTime) -> Arc<T> {
        self.versioned(now).1
    }

    /// The value and its number, which grows with each change.
    pub fn versioned(&self, now: SystemTime) -> (u64, Arc<T>) {
        let (now, last) = (millis(now), self.looked.load(Ordering::Relaxed));
        // Whoever sets the time looks; the others go on with what there is.
        let due = now.abs_diff(last) >= LOOK_EVERY;
        let order = Ordering::Relaxed;
        if due && self.looked.compare_exchange(last, now, order, order).is_ok() {
            self.look();
        }
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (current.generation, Arc::clone(&current.value))
    }

    fn look(&self) {
        let seen = stamps(&self.paths);
        if self.current.read().unwrap_or_else(PoisonError::into_inner).seen == seen {
            return;
        }
        let loaded = (self.load)();
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match loaded {
            Ok(value) => {
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                let (generation, value) = (current.generation + 1, Arc::new(value));
                *current = Current { seen, generation, value };
                *failing = None;
                tracing::info!(what = self.what, "read again: it has changed");
            }
            Err(error) => {
                if failing.as_ref() != Some(&error) {
                    tracing::warn!(
                        what = self.what,
                        error,
                        "it has changed and cannot be used: the last good one counts on"
                    );
                    *failing = Some(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn number(path: &Path) -> Result<u32, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        text.trim().parse().map_err(|_| format!("`{text}` is no number"))
    }

    /// Puts a file in place as the kubelet does: whole, under a new inode.
    fn replace(path: &Path, text: &str) {
        let fresh = path.with_extension("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, path).unwrap();
    }

    #[test]
    fn a_change_counts_a_second_later_and_a_broken_one_never() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        assert!(
            Reloading::open(
                "number",
                vec![],
                {
                    let p = path.clone();
                    move || number(&p)
                },
                UNIX_EPOCH
            )
            .is_err()
        );
        replace(&path, "1");
        let read = path.clone();
        let start = UNIX_EPOCH + Duration::from_secs(1000);
        let at = |millis| start + Duration::from_millis(millis);
        let value =
            Reloading::open("number", vec![path.clone()], move || number(&read), start).unwrap();
        assert_eq!(value.versioned(at(0)), (0, Arc::new(1)));
        replace(&path, "2");
        assert_eq!(*value.get(at(999)), 1);
        assert_eq!(value.versioned(at(1000)), (1, Arc::new(2)));
        for (round, broken) in ["x", ""].into_iter().enumerate() {
            replace(&path, broken);
            assert_eq!(value.versioned(at(2000 + 1000 * round as u64)), (1, Arc::new(2)));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(*value.get(at(5000)), 2);
        replace(&path, "3");
        assert_eq!(value.versioned(at(6000)), (2, Arc::new(3)));
        assert_eq!(value.versioned(at(7000)), (2, Arc::new(3)));
        // A clock that was set back is no reason to look no more.
        replace(&path, "4");
        assert_eq!(*value.get(start - Duration::from_mins(15)), 4);
    }
}
