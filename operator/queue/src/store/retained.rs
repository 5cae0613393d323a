//! Which ids may have a stored result: a fingerprint of each in memory, so that a
//! new id costs no read.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

type Fingerprints = HashSet<u64, BuildHasherDefault<Identity>>;

/// The fingerprints by bucket, oldest first. Says yes too often (once in 10^13
/// with a million results), never too seldom.
#[derive(Default)]
pub(crate) struct Retained {
    buckets: VecDeque<(u64, Fingerprints)>,
}

impl Retained {
    pub(crate) fn insert(&mut self, bucket: u64, action: &str) {
        let fingerprint = fingerprint(action);
        if let Some((last, fingerprints)) = self.buckets.back_mut()
            && *last == bucket
        {
            fingerprints.insert(fingerprint);
            return;
        }
        let mut fingerprints = Fingerprints::default();
        fingerprints.insert(fingerprint);
        self.buckets.push_back((bucket, fingerprints));
    }

    /// True when a result of this id may be stored.
    pub(crate) fn may_hold(&self, action: &str) -> bool {
        let fingerprint = fingerprint(action);
        self.buckets.iter().any(|(_, fingerprints)| fingerprints.contains(&fingerprint))
    }

    /// Forgets all buckets up to and with `bucket`.
    pub(crate) fn expire(&mut self, bucket: u64) {
        while self.buckets.front().is_some_and(|(seq, _)| *seq <= bucket) {
            self.buckets.pop_front();
        }
    }
}

fn fingerprint(action: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    action.hash(&mut hasher);
    hasher.finish()
}
