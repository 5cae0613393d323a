//! A bandwidth cap that is lifted when the weights are waited for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Shares one cap among several transfers: each byte books its time on one line.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Bytes a second.
    cap: Option<u64>,
    /// When everything booked so far has its time behind it.
    booked: Mutex<Instant>,
    lifted: CancellationToken,
}

impl Pacer {
    pub(super) fn new(cap: Option<u64>) -> Self {
        Self { cap, booked: Mutex::new(Instant::now()), lifted: CancellationToken::new() }
    }

    /// Ends the cap for what waits and all that comes.
    pub(super) fn lift(&self) {
        self.lifted.cancel();
    }

    /// Returns when `bytes`, which came just now, have had their time.
    pub(super) async fn passed(&self, bytes: u64) {
        let Some(cap) = self.cap.filter(|_| !self.lifted.is_cancelled()) else { return };
        let until = {
            let mut booked = self.booked.lock().unwrap_or_else(PoisonError::into_inner);
            let time = Duration::from_secs_f64(bytes as f64 / cap.max(1) as f64);
            *booked = (*booked).max(Instant::now()) + time;
            *booked
        };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = self.lifted.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transfers_share_the_cap_until_it_is_lifted() {
        let pacer = Pacer::new(Some(1000));
        let start = Instant::now();
        tokio::join!(pacer.passed(1000), pacer.passed(2000), pacer.passed(500));
        assert_eq!(start.elapsed().as_millis(), 3500);
        let lift = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pacer.lift();
        };
        tokio::join!(pacer.passed(1_000_000), lift);
        assert_eq!(start.elapsed().as_millis(), 4500);
        pacer.passed(u64::MAX).await;
        assert_eq!(start.elapsed().as_millis(), 4500);
    }
}
