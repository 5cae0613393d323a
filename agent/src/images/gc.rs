//! Which images this agent pulled, and when each was last used.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The record of pulled images. Survives a restart where it has a file.
#[derive(Debug, Clone)]
pub struct Ledger {
    file: Option<PathBuf>,
    last_use: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Ledger {
    /// Reads the record; images in it count as used now. A missing or broken
    /// file is an empty record: its images are then nobody's to collect.
    pub fn open(file: Option<PathBuf>) -> Self {
        let text = file.as_ref().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        let names: Vec<String> = serde_json::from_slice(&text).unwrap_or_default();
        let now = Instant::now();
        let last_use = names.into_iter().map(|name| (name, now)).collect();
        Self { file, last_use: Arc::new(Mutex::new(last_use)) }
    }

    /// This agent pulled the image.
    pub fn pulled(&self, image: &str, now: Instant) {
        self.lock().insert(image.to_owned(), now);
        self.save();
    }

    /// A sandbox uses the image; nothing is recorded for images of others.
    pub fn used(&self, image: &str, now: Instant) {
        if let Some(last) = self.lock().get_mut(image) {
            *last = now;
        }
    }

    /// The image is gone.
    pub fn forget(&self, image: &str) {
        self.lock().remove(image);
        self.save();
    }

    /// Images to remove: pulled here, not in use, unused for `idle`; the longest
    /// unused first.
    pub fn victims(&self, in_use: &[String], now: Instant, idle: Duration) -> Vec<String> {
        let mut old: Vec<(Instant, String)> = self
            .lock()
            .iter()
            .filter(|(image, last)| {
                now.saturating_duration_since(**last) >= idle && !in_use.contains(image)
            })
            .map(|(image, last)| (*last, image.clone()))
            .collect();
        old.sort();
        old.into_iter().map(|(_, image)| image).collect()
    }

    fn save(&self) {
        let Some(path) = &self.file else { return };
        let mut names: Vec<String> = self.lock().keys().cloned().collect();
        names.sort();
        let written = serde_json::to_vec(&names)
            .map_err(std::io::Error::other)
            .and_then(|bytes| std::fs::write(path, bytes));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot record pulled images");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first_and_what_is_used_stays() {
        let ledger = Ledger::open(None);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (image, second) in [("b", 2), ("a", 1), ("used", 0), ("fresh", 90)] {
            ledger.pulled(image, at(second));
        }
        ledger.used("never-pulled", at(0));
        let victims = ledger.victims(&["used".into()], at(100), Duration::from_secs(50));
        assert_eq!(victims, ["a", "b"]);
        ledger.used("a", at(99));
        assert_eq!(ledger.victims(&["used".into()], at(100), Duration::from_secs(50)), ["b"]);
    }

    #[test]
    fn the_record_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pulled.json");
        Ledger::open(Some(file.clone())).pulled("a", Instant::now());
        let again = Ledger::open(Some(file));
        assert_eq!(again.victims(&[], Instant::now(), Duration::ZERO), ["a"]);
    }
}
