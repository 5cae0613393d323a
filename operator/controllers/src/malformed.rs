//! Custom resources whose content does not parse: edited with validation bypassed, or written
//! by another version.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Kind, namespace (empty: cluster-scoped) and name.
type Key = (String, String, String);

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Malformed {
    known: Arc<RwLock<BTreeMap<Key, Seen>>>,
}

/// Whether the watch has shown the object since it last began anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Now,
    Before,
}

impl Malformed {
    /// Whether it exists and does not parse.
    pub fn contains(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains_key(&key)
    }

    /// Notes whether it parses; true when that is news.
    pub(crate) fn note(&self, kind: &str, namespace: &str, name: &str, malformed: bool) -> bool {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if malformed {
            known.insert(key, Seen::Now).is_none()
        } else {
            known.remove(&key).is_some()
        }
    }

    /// The watch of a kind begins anew: it will show all that there is.
    pub(crate) fn begin(&self, kind: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let of_kind = known.iter_mut().filter(|(key, _)| key.0 == kind);
        of_kind.for_each(|(_, seen)| *seen = Seen::Before);
    }

    /// It has shown all: what it did not show is gone.
    pub(crate) fn complete(&self, kind: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, seen| key.0 != kind || *seen == Seen::Now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_watch_does_not_show_is_forgotten() {
        let malformed = Malformed::default();
        for (kind, name) in [("Pool", "gone"), ("Pool", "there"), ("Job", "other")] {
            malformed.note(kind, "", name, true);
        }
        malformed.begin("Pool");
        assert!(malformed.contains("Pool", "", "gone"), "nobody knows yet");
        malformed.note("Pool", "", "there", true);
        malformed.complete("Pool");
        let left = [("Pool", "gone"), ("Pool", "there"), ("Job", "other")]
            .map(|(kind, name)| malformed.contains(kind, "", name));
        assert_eq!(left, [false, true, true]);
    }
}
