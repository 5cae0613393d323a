//! Custom resources whose content does not parse: edited with validation bypassed, or written
//! by another version.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// Kind, namespace (empty: cluster-scoped) and name of each.
#[derive(Clone, Debug, Default)]
pub struct Malformed {
    known: Arc<RwLock<BTreeSet<(String, String, String)>>>,
}

impl Malformed {
    /// Whether it exists and does not parse.
    pub fn contains(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// Notes whether it parses; true when that is news.
    pub(crate) fn note(&self, kind: &str, namespace: &str, name: &str, malformed: bool) -> bool {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if malformed { known.insert(key) } else { known.remove(&key) }
    }
}
