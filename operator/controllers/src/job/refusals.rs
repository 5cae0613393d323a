//! Workers that the API server refuses to have made: by a quota, by Pod Security, by a policy.
//! Kept in memory alone: who forgets it hears it again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A refusal that nobody has repeated for so long is of a job that is gone.
const FORGOTTEN: Duration = Duration::from_hours(1);

/// What was said last, by the uid of the job.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<String, (String, Instant)>>);

impl Refusals {
    /// It was refused, in these words.
    pub(super) fn note(&self, uid: &str, said: String, now: Instant) {
        let mut all = self.open();
        all.retain(|_, (_, at)| now.saturating_duration_since(*at) < FORGOTTEN);
        all.insert(uid.to_owned(), (said, now));
    }

    /// All that it wants was made.
    pub(super) fn clear(&self, uid: &str) {
        self.open().remove(uid);
    }

    /// What was said.
    pub(super) fn of(&self, uid: &str) -> Option<String> {
        self.open().get(uid).map(|(said, _)| said.clone())
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, (String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
