//! The queue's time: unix nanoseconds that never run backwards while it runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rollwright_core::time::Time;

/// A monotonic clock that began at the wall clock's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    began: Instant,
    origin: Time,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { began: Instant::now(), origin: Time::ZERO + wall }
    }

    pub(crate) fn now(&self) -> Time {
        self.origin + self.began.elapsed()
    }

    /// When `time` comes, for the runtime's timers.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.began + time.since(self.origin)
    }
}
