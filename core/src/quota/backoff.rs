//! How long everybody stays away from an API that turns calls away and does not say for
//! how long: twice as long each time, up to a bound, until a call is answered again.

use std::time::Duration;

use crate::time::Time;

/// After the first refusal.
const FIRST: Duration = Duration::from_secs(1);
/// After many.
const MOST: Duration = Duration::from_mins(1);

/// Refusals since a call was last answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    times: u32,
    last: Option<Time>,
}

impl Backoff {
    /// How long to stay away, now that a call that began then was refused. `None` where the
    /// call began before the last refusal: of many at once the first says all.
    pub(super) fn refused(&mut self, began: Time, now: Time) -> Option<Duration> {
        if !self.is_news(began) {
            return None;
        }
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.times).unwrap_or(u32::MAX));
        self.times = self.times.saturating_add(1);
        self.last = Some(now);
        Some(wait.min(MOST))
    }

    /// A call that began then was answered.
    pub(super) fn answered(&mut self, began: Time) {
        if self.is_news(began) {
            self.times = 0;
        }
    }

    fn is_news(&self, began: Time) -> bool {
        self.last.is_none_or(|last| began > last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn it_doubles_up_to_a_minute_and_an_answer_begins_anew() {
        let mut backoff = Backoff::default();
        let mut refused = |n: u64| backoff.refused(at(2 * n), at(2 * n + 1)).unwrap().as_secs();
        let waits: Vec<u64> = (0..40).map(&mut refused).collect();
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(waits[8..].iter().all(|&wait| wait == 60));
        backoff.answered(at(10));
        assert_eq!(backoff.refused(at(90), at(91)), Some(MOST), "it began before the last refusal");
        backoff.answered(at(92));
        assert_eq!(backoff.refused(at(93), at(94)), Some(FIRST));
    }

    proptest! {
        /// Against the history: the wait follows from the refusals, each of a call that began
        /// after the one before was known, since the last answer that says anything.
        #[test]
        fn waits_follow_from_the_history(
            calls in prop::collection::vec((0_u64..20, 0_u64..5, any::<bool>()), 1..60),
        ) {
            let mut backoff = Backoff::default();
            let (mut now, mut history) = (0, Vec::<u64>::new());
            let mut last = None;
            for (ago, pass, answered) in calls {
                now += pass;
                let began = now.saturating_sub(ago);
                let news = last.is_none_or(|last| began > last);
                if answered {
                    backoff.answered(at(began));
                    if news {
                        history.clear();
                    }
                    continue;
                }
                let want = news.then(|| {
                    let doubled = history.iter().fold(1_u64, |wait, _| wait * 2);
                    Duration::from_secs(doubled.min(60))
                });
                prop_assert_eq!(backoff.refused(at(began), at(now)), want);
                if news {
                    history.push(now);
                    last = Some(now);
                }
            }
        }
    }
}
