//! How long to wait before a failed object is looked at again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Wait after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait.
const LONGEST: Duration = Duration::from_mins(5);

/// Failures in a row of each object, by its uid. Entries live while an object fails, so
/// there are never more of them than objects.
#[derive(Debug, Default)]
pub struct Backoffs {
    failures: Mutex<HashMap<String, u32>>,
}

impl Backoffs {
    /// Counts one more failure; returns how long to wait: 1 s, doubled up to 5 min.
    pub fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_default();
        let wait = FIRST.saturating_mul(1 << (*count).min(16)).min(LONGEST);
        *count = count.saturating_add(1);
        wait
    }

    /// It succeeded, or is gone: the next failure is a first one.
    pub fn clear(&self, uid: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_per_object_up_to_a_bound_and_begin_anew() {
        let backoffs = Backoffs::default();
        let waits: Vec<u64> = (0..12).map(|_| backoffs.failed("a").as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(backoffs.failed("b").as_secs(), 1);
        backoffs.clear("a");
        assert_eq!(backoffs.failed("a").as_secs(), 1);
    }
}
