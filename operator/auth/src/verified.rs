//! Tokens that were verified: a signature costs tens of microseconds, a look here less
//! than one.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::Caller;

/// Tokens remembered at most; beyond it all are forgotten, and verified again.
const MAX_TOKENS: usize = 4096;

/// Callers by their token's SHA-256, of one generation of keys.
#[derive(Default)]
pub(crate) struct Verified(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    generation: u64,
    callers: HashMap<[u8; 32], (Caller, u64)>,
}

impl std::fmt::Debug for Verified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verified(..)")
    }
}

impl Verified {
    /// The caller, where its token was verified with these keys and counts in second `now`.
    pub(crate) fn get(&self, hash: &[u8; 32], generation: u64, now: u64) -> Option<Caller> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (caller, until) = inner.callers.get(hash)?;
        (inner.generation == generation && now < *until).then(|| caller.clone())
    }

    /// Remembers a caller until the second `until`.
    pub(crate) fn put(
        &self,
        hash: [u8; 32],
        generation: u64,
        caller: Caller,
        until: u64,
        now: u64,
    ) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if generation < inner.generation {
            // Verified with keys that have been replaced meanwhile.
            return;
        }
        if generation > inner.generation {
            *inner = Inner { generation, callers: HashMap::new() };
        }
        if inner.callers.len() >= MAX_TOKENS {
            inner.callers.retain(|_, (_, until)| now < *until);
        }
        if inner.callers.len() >= MAX_TOKENS {
            inner.callers.clear();
        }
        inner.callers.insert(hash, (caller, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> [u8; 32] {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        hash
    }

    #[test]
    fn new_keys_and_time_end_what_was_verified() {
        let verified = Verified::default();
        verified.put(hash(1), 3, Caller::operator(), 100, 0);
        assert_eq!(verified.get(&hash(1), 3, 99), Some(Caller::operator()));
        assert_eq!(verified.get(&hash(1), 3, 100), None);
        assert_eq!(verified.get(&hash(1), 4, 0), None);
        assert_eq!(verified.get(&hash(2), 3, 0), None);
        verified.put(hash(2), 4, Caller::operator(), 100, 0);
        verified.put(hash(3), 3, Caller::operator(), 100, 0);
        assert_eq!(verified.get(&hash(1), 3, 0), None);
        assert_eq!(verified.get(&hash(3), 4, 0), None);
        assert!(verified.get(&hash(2), 4, 0).is_some());
    }

    #[test]
    fn it_is_bounded() {
        let verified = Verified::default();
        for number in 0..3 * MAX_TOKENS {
            verified.put(hash(number), 0, Caller::operator(), 10, 0);
            assert!(verified.get(&hash(number), 0, 0).is_some());
        }
        assert!(verified.0.read().unwrap().callers.len() <= MAX_TOKENS);
    }
}
