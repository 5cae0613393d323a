//! Named quotas: how many at once, and how many starts in a period.

mod backoff;

use std::collections::VecDeque;
use std::time::Duration;

use self::backoff::Backoff;
use crate::time::Time;

/// The bounds of a quota; at least one should be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimit {
    /// How much may be held at once.
    pub concurrency: Option<u32>,
    /// How much may start in any half-open window `(t - period, t]`.
    pub rate: Option<Rate>,
}

/// An amount per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The amount.
    pub amount: u32,
    /// The length of the window.
    pub period: Duration,
}

impl QuotaLimit {
    /// The most that one taker can ever be given.
    pub fn most(&self) -> u32 {
        let rate = self.rate.map_or(u32::MAX, |rate| rate.amount);
        self.concurrency.unwrap_or(u32::MAX).min(rate)
    }
}

/// What is held of a quota, and what was started lately.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    limit: QuotaLimit,
    held: u32,
    /// Starts inside the window, oldest first: at most `rate.amount` entries.
    starts: VecDeque<(Time, u32)>,
    started: u32,
    blocked_until: Option<Time>,
    backoff: Backoff,
}

impl Quota {
    /// An unused quota.
    pub fn new(limit: QuotaLimit) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Its bounds.
    pub fn limit(&self) -> QuotaLimit {
        self.limit
    }

    /// How much is held.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Takes `amount` if there is room at `now`.
    pub fn try_take(&mut self, amount: u32, now: Time) -> bool {
        self.forget(now);
        let blocked = self.blocked_until.is_some_and(|until| now < until);
        let held = self.held.saturating_add(amount);
        let started = self.started.saturating_add(amount);
        let room = self.limit.concurrency.is_none_or(|most| held <= most)
            && self.limit.rate.is_none_or(|rate| started <= rate.amount);
        if blocked || !room {
            return false;
        }
        self.take(amount, now);
        true
    }

    /// Takes `amount` whether there is room or not: it is held already, by an
    /// action that was found running.
    pub fn take(&mut self, amount: u32, now: Time) {
        self.held = self.held.saturating_add(amount);
        if self.limit.rate.is_some() {
            self.starts.push_back((now, amount));
            self.started = self.started.saturating_add(amount);
        }
    }

    /// Gives `amount` back. What was started stays counted in its window.
    pub fn release(&mut self, amount: u32) {
        self.held = self.held.saturating_sub(amount);
    }

    /// The API refused (429) a call that began then, and said for how long everybody should
    /// stay away, or did not: then that is 1 s, twice as long each time, at most a minute.
    pub fn refused(&mut self, began: Time, said: Option<Duration>, now: Time) {
        if let Some(wait) = said.or_else(|| self.backoff.refused(began, now)) {
            self.block(now + wait);
        }
    }

    /// The API answered a call that began then.
    pub fn answered(&mut self, began: Time) {
        self.backoff.answered(began);
    }

    /// Nobody is let through before `until`.
    fn block(&mut self, until: Time) {
        self.blocked_until = self.blocked_until.max(Some(until));
    }

    /// The next instant after `now` at which time alone may make room.
    pub fn next_room(&self, now: Time) -> Option<Time> {
        let window = self.limit.rate.and_then(|rate| {
            self.starts.iter().map(|(at, _)| *at + rate.period).find(|expiry| *expiry > now)
        });
        let blocked = self.blocked_until.filter(|until| *until > now);
        // While it is blocked, an expiring start helps nobody.
        blocked.or(window)
    }

    fn forget(&mut self, now: Time) {
        let Some(rate) = self.limit.rate else { return };
        while let Some((at, amount)) = self.starts.front().copied() {
            if at + rate.period > now {
                break;
            }
            self.starts.pop_front();
            self.started -= amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the definition: recompute held and window from the history.
        #[test]
        fn never_exceeds_concurrency_or_window(
            concurrency in prop::option::of(1u32..5),
            rate in prop::option::of((1u32..6, 1u64..20)),
            steps in prop::collection::vec((0u64..6, 1u32..4, any::<bool>()), 1..80),
        ) {
            let limit = QuotaLimit {
                concurrency,
                rate: rate.map(|(amount, period)| Rate { amount, period: Duration::from_nanos(period) }),
            };
            let mut quota = Quota::new(limit);
            let mut now = 0;
            let mut history: Vec<(u64, u32)> = Vec::new();
            let mut held: Vec<u32> = Vec::new();
            for (pass, amount, release) in steps {
                now += pass;
                if release && !held.is_empty() {
                    quota.release(held.remove(0));
                }
                let in_window: u32 = rate.map_or(0, |(_, period)| history.iter()
                    .filter(|(at, _)| at + period > now).map(|(_, a)| a).sum());
                let room = concurrency.is_none_or(|most| held.iter().sum::<u32>() + amount <= most)
                    && rate.is_none_or(|(most, _)| in_window + amount <= most);
                let taken = quota.try_take(amount, Time::from_nanos(now));
                prop_assert_eq!(taken, room);
                if taken {
                    history.push((now, amount));
                    held.push(amount);
                } else if amount <= limit.most() && concurrency.is_none() {
                    // Waiting as it says makes room in the end.
                    let mut later = Time::from_nanos(now);
                    let mut probe = quota.clone();
                    while !probe.try_take(amount, later) {
                        let next = probe.next_room(later);
                        prop_assert!(next.is_some_and(|next| next > later));
                        later = next.unwrap_or(later);
                    }
                }
            }
        }
    }

    #[test]
    fn a_429_without_a_time_stops_everybody_for_longer_and_longer() {
        let mut quota = Quota::new(QuotaLimit { concurrency: Some(9), rate: None });
        let mut now = Time::ZERO;
        for wait in [1, 2, 4] {
            let until = now + Duration::from_secs(wait);
            // Two at once are refused: one wait.
            for _ in 0..2 {
                quota.refused(now, None, now);
            }
            assert!(!quota.try_take(1, now));
            assert_eq!(quota.next_room(now), Some(until));
            now = until;
            assert!(quota.try_take(1, now));
            now = now + Duration::from_nanos(1);
        }
        quota.answered(now);
        quota.refused(now, None, now);
        assert_eq!(quota.next_room(now), Some(now + Duration::from_secs(1)));
        // What is said counts as it is.
        quota.refused(now, Some(Duration::from_secs(7)), now);
        assert_eq!(quota.next_room(now), Some(now + Duration::from_secs(7)));
    }

    #[test]
    fn a_429_stops_everybody_until_it_has_passed() {
        let mut quota = Quota::new(QuotaLimit { concurrency: Some(2), rate: None });
        quota.block(Time::from_nanos(10));
        quota.block(Time::from_nanos(5));
        assert!(!quota.try_take(1, Time::from_nanos(9)));
        assert_eq!(quota.next_room(Time::from_nanos(9)), Some(Time::from_nanos(10)));
        assert!(quota.try_take(1, Time::from_nanos(10)));
    }
}
