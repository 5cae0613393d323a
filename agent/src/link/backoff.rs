//! How long to wait before dialling again. Pure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubling pauses with jitter, so that the agents of a pool do not dial in step.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause; `random` is anything.
    pub(super) fn next(&mut self, random: u32) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
    }

    /// A stream stood.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pauses_stay_within_their_bounds(randoms in proptest::collection::vec(any::<u32>(), 1..50)) {
            let mut backoff = Backoff::default();
            for random in randoms {
                let pause = backoff.next(random);
                prop_assert!(pause >= FIRST / 2 && pause <= LONGEST);
            }
            backoff.reset();
            prop_assert!(backoff.next(u32::MAX) <= FIRST);
        }
    }
}
