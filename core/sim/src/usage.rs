//! How much of a pool ran actions, and how much was held.

/// A level over time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Level {
    /// Millionths of units, since `since`.
    amount: u64,
    since: u64,
    /// Unit-nanoseconds up to `since`.
    area: f64,
}

impl Level {
    pub(crate) fn add(&mut self, amount: u64, now: u64) {
        self.settle(now);
        self.amount += amount;
    }

    pub(crate) fn remove(&mut self, amount: u64, now: u64) {
        self.settle(now);
        self.amount = self.amount.saturating_sub(amount);
    }

    /// Adds what was used at no steady level.
    pub(crate) fn add_area(&mut self, unit_nanos: f64) {
        self.area += unit_nanos;
    }

    fn settle(&mut self, now: u64) {
        self.area += self.amount as f64 * 1e-6 * (now - self.since) as f64;
        self.since = now;
    }

    /// Unit-nanoseconds up to `now`.
    pub(crate) fn until(mut self, now: u64) -> f64 {
        self.settle(now);
        self.area
    }
}

/// Both of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Ran an action.
    pub(crate) busy: Level,
    /// Was nobody else's.
    pub(crate) held: Level,
}
